"""Carries a plan out: applies what differs, deletes what is too much, and tells what went wrong.

An object that is not there yet is looked for by name first: what exists without our owner reference is left alone. A
failure of one object does not keep the others from being made.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, field
from typing import Any

from meshnet_operator import diff, kinds, names
from meshnet_operator.children import access
from meshnet_operator.cluster import Cluster
from meshnet_operator.errors import Busy, ClusterError, Conflict, Forbidden, NameTaken, NotFound, Unreachable
from meshnet_operator.kinds import Kind
from meshnet_operator.metrics import Metrics
from meshnet_operator.plan import Children, Plan
from meshnet_operator.pods import Trouble
from meshnet_operator.publisher import check_owner
from meshnet_operator.resource import MeshModel
from meshnet_operator.store import Store, pack

log = logging.getLogger(__name__)

Object = dict[str, Any]
# Passing conditions of the API server: retried, not told to the user.
PASSING = (Conflict, Busy, Unreachable)


@dataclass
class Result:
    """troubles: for the condition Degraded; waiting: leftovers that must go first; retry: the first error that a
    later call may not meet."""

    troubles: list[Trouble] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    retry: ClusterError | None = None
    writes: int = 0


class Executor:
    def __init__(self, cluster: Cluster, store: Store, metrics: Metrics) -> None:
        self._cluster = cluster
        self._store = store
        self._metrics = metrics
        # What was found equal last: (kind, uid) -> digest of what is wanted, version of what is there.
        self._equal: dict[tuple[Kind, str], tuple[str, str]] = {}

    async def carry_out(self, model: MeshModel, plan: Plan, children: Children) -> Result:
        result = Result()
        if not self._store.has_secret(model):
            await self._guard(model, access.secret(model, secrets.token_hex(32)), kinds.SECRET, None, result)
        for body in plan.apply:
            kind = kinds.of(body)
            live = children.get(kind, {}).get(body["metadata"]["name"])
            await self._guard(model, diff.stamped(body), kind, live, result)
        if result.retry is None:
            for kind, body in plan.delete:
                await self._delete(model, kind, body, result)
        return result

    async def _guard(self, model: MeshModel, body: Object, kind: Kind, live: Object | None, result: Result) -> None:
        """One object; failures go to `result`."""
        what = f"{kind.kind} {body['metadata']['name']}"
        try:
            if kind == kinds.SECRET:
                await self._secret(model, body, result)
            else:
                await self._object(model, body, kind, live, result)
        except NameTaken as error:
            if error.leftover:
                result.waiting.append(what)
            else:
                result.troubles.append(Trouble("NameConflict", f"{error.message}: rename one of the two"))
            result.retry = result.retry or error
        except PASSING as error:
            result.retry = result.retry or error
        except ClusterError as error:
            result.troubles.append(_trouble(what, error))
            result.retry = result.retry or error

    async def _object(self, model: MeshModel, body: Object, kind: Kind, live: Object | None, result: Result) -> None:
        if live is None:
            live = await self._find(kind, model.namespace, body["metadata"]["name"])
        if live is not None:
            check_owner(model, live, f"{kind.kind} {body['metadata']['name']}")
            if "deletionTimestamp" in live["metadata"]:
                raise NameTaken(f"{kind.kind} {body['metadata']['name']}", leftover=True)
            where = self._differs(body, kind, live)
            if where is None:
                return
            await self._let_go_of_replicas(model, body, kind, live)
            log.info("apply", extra={"model": str(model.key), "kind": kind.kind, "at": where})
            body = {**body, "metadata": {**body["metadata"], "uid": live["metadata"]["uid"]}}
        try:
            answer = await self._cluster.apply(body, kind, model.namespace)
        except (Conflict, NotFound):
            self._store.drop_child(kind, model.key, body["metadata"]["name"])
            raise
        self._count(kind, result)
        self._store.set_child(kind, pack(answer))

    async def _let_go_of_replicas(self, model: MeshModel, body: Object, kind: Kind, live: Object) -> None:
        """A count that the spec does not set any more stays as it is until somebody scales: a field that its only owner
        leaves out of an apply would fall back to 1. A suspended Deployment's 0 is no count to keep.
        """
        count = live.get("spec", {}).get("replicas")
        if kind != kinds.DEPLOYMENT or not live.get("ownsReplicas") or "replicas" in body["spec"] or not count:
            return
        metadata = {"name": body["metadata"]["name"], "uid": live["metadata"]["uid"]}
        keep = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": {"replicas": count}}
        await self._cluster.apply(keep, kind, model.namespace, f"{names.MANAGER}-handover")

    def _differs(self, body: Object, kind: Kind, live: Object) -> str | None:
        """The first difference. The same pair is not compared twice: most turns come from pods and change no child."""
        identity = (kind, live["metadata"]["uid"])
        pair = (body["metadata"]["annotations"][names.APPLIED], live["metadata"]["resourceVersion"])
        if self._equal.get(identity) == pair:
            return None
        where = diff.differs(body, live)
        if where is None:
            self._equal[identity] = pair
        return where

    def forget(self, gone: Children) -> None:
        for kind, bodies in gone.items():
            for body in bodies.values():
                self._equal.pop((kind, body["metadata"]["uid"]), None)

    async def _secret(self, model: MeshModel, body: Object, result: Result) -> None:
        """POST only: an existing Secret is never overwritten, and its content never read."""
        name = body["metadata"]["name"]
        try:
            answer = await self._cluster.create(body, kinds.SECRET, model.namespace)
        except Conflict:
            listing = await self._cluster.list(
                kinds.SECRET, model.namespace, fields=f"metadata.name={name}", metadata_only=True
            )
            for found in listing.items:
                check_owner(model, found, f"Secret {name}")
                self._store.add_secret(model.key, found)
            return
        self._count(kinds.SECRET, result)
        self._store.add_secret(model.key, {"metadata": answer["metadata"]})

    async def _find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        try:
            return await self._cluster.get(kind, namespace, name)
        except NotFound:
            return None

    async def _delete(self, model: MeshModel, kind: Kind, body: Object, result: Result) -> None:
        name = body["metadata"]["name"]
        try:
            await self._cluster.delete(kind, model.namespace, name, body["metadata"]["uid"])
            self._count(kind, result)
            log.info("deleted", extra={"model": str(model.key), "kind": kind.kind, "object": name})
        except (NotFound, Conflict):
            pass
        except ClusterError as error:
            result.retry = result.retry or error
            return
        self.forget({kind: {name: body}})
        self._store.drop_child(kind, model.key, name)

    def _count(self, kind: Kind, result: Result) -> None:
        result.writes += 1
        self._metrics.writes.labels(kind.kind).inc()


def _trouble(what: str, error: ClusterError) -> Trouble:
    if isinstance(error, Forbidden) and "quota" in error.message:
        return Trouble("QuotaExceeded", f"{what}: {error.message}")
    if kinds.DEPLOYMENT.kind in what and "must specify a volume type" in error.message:
        return Trouble("ImageVolumesUnsupported", f"{what}: image volumes need Kubernetes 1.35, or their feature gate")
    return Trouble("ApplyFailed", f"{what}: {error.message}")
