"""The slow lane: everything of a MeshModel but its route table.

    pin -> table -> plan -> apply and delete -> status -> events

Each step is idempotent; what a killed process left undone the next run does. Status is written at most once a second,
at once when a condition changes, and never when it is equal.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from meshnet_operator import kinds, status
from meshnet_operator.cluster import Cluster
from meshnet_operator.errors import ClusterError, NameTaken, NotFound, Unreachable
from meshnet_operator.executor import Executor, Result
from meshnet_operator.hub import Hub
from meshnet_operator.metrics import Metrics
from meshnet_operator.plan import Observed, Plan, desired
from meshnet_operator.pods import Pod, Trouble
from meshnet_operator.publisher import Publisher
from meshnet_operator.resource import Key, MeshModel, parse
from meshnet_operator.settings import OperatorSettings
from meshnet_operator.source import weights
from meshnet_operator.status import Note, Outcome
from meshnet_operator.store import Store

log = logging.getLogger(__name__)

Object = dict[str, Any]
EXCLUSIVE = {"ReadWriteOnce", "ReadWriteOncePod"}


@dataclass(frozen=True)
class Claim:
    """Access modes of the claim that holds the weights, and when they were read (monotonic seconds)."""

    modes: frozenset[str]
    read: float

    @property
    def exclusive(self) -> bool:
        return bool(self.modes) and self.modes <= EXCLUSIVE


class Reconciler:
    """`work` is the slow queue's."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        publisher: Publisher,
        executor: Executor,
        metrics: Metrics,
        settings: OperatorSettings,
        hub: Hub,
        monitoring: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._publisher = publisher
        self._executor = executor
        self._metrics = metrics
        self._settings = settings
        self._hub = hub
        self._monitoring = monitoring
        self._claims: dict[Key, Claim] = {}
        self._written: dict[Key, float] = {}

    def image_of(self, model: MeshModel) -> str:
        """The node image: stated, or the default that was pinned when the MeshModel was first seen."""
        pinned = model.status.get("pinned", {}).get("image")
        return str(model.spec.get("image") or pinned or self._settings.node_image)

    def forget(self, key: Key) -> None:
        self._executor.forget(self._store.children(key))
        self._claims.pop(key, None)
        self._written.pop(key, None)

    async def work(self, key: Key) -> float | None:
        """One turn. Returns when the next is wanted. Raises ClusterError to be called again with back-off."""
        model = self._store.models.get(key)
        if model is None or model.deleting:
            return None
        with self._metrics.reconcile_seconds.time():
            try:
                return await self._work(model)
            except ClusterError as error:
                self._metrics.reconcile_errors.labels(type(error).__name__).inc()
                raise

    async def _work(self, model: MeshModel) -> float | None:
        try:
            model = await self._pin(model)
        except Unreachable as error:
            trouble = Trouble("RevisionUnresolved", f"model.revision could not be looked up: {error.message}")
            await self._report(model, self._observe(model), Plan((), ()), Result(troubles=[trouble]))
            raise
        result = Result()
        try:
            await self._publisher.publish(model.key)
        except NameTaken as error:
            if not error.leftover:
                result.troubles.append(Trouble("NameConflict", error.message))
            result.waiting += [error.what] if error.leftover else []
            result.retry = error
        await self._read_claim(model)
        seen = self._observe(model)
        plan = desired(model, seen)
        if not model.paused and result.retry is None:
            result = await self._executor.carry_out(model, plan, seen.children)
            if result.writes:
                seen = replace(seen, children=self._store.children(model.key))
                plan = replace(plan, rollout=desired(model, seen).rollout)
        again = await self._report(model, seen, plan, result)
        if result.retry is not None:
            raise result.retry
        return again

    # Seeing

    def _observe(self, model: MeshModel) -> Observed:
        table = self._publisher.table(model.key)
        claim = self._claims.get(model.key)
        return Observed(
            children=self._store.children(model.key),
            pods=tuple(self._store.pods(model.key)),
            table=table if table is not None else status.NO_TABLE,
            image=self.image_of(model),
            revision=model.status.get("pinned", {}).get("revision"),
            monitoring=self._monitoring(),
            exclusive_volume=claim is not None and claim.exclusive,
            defaults=self._settings.pod_defaults,
            unproven=frozenset(self._store.unproven),
        )

    async def _pin(self, model: MeshModel) -> MeshModel:
        """Writes down the default image and the commit before anything depends on them."""
        pinned = model.status.get("pinned", {})
        if pinned.get("image"):
            return model
        chosen = {"image": self._settings.node_image}
        if revision := await self._hub.pin(model):
            chosen["revision"] = revision
        return await self._patch(model, {"pinned": chosen})

    async def _read_claim(self, model: MeshModel) -> None:
        name = weights(model).claim
        known = self._claims.get(model.key)
        if name is None or (known and time.monotonic() - known.read < self._settings.resync_seconds):
            return
        try:
            body = await self._cluster.get(kinds.CLAIM, model.namespace, name)
        except NotFound:
            # The pods say so themselves: Unschedulable, claim not found.
            return
        self._claims[model.key] = Claim(frozenset(body["spec"].get("accessModes") or []), time.monotonic())

    # Telling

    async def _report(self, model: MeshModel, seen: Observed, plan: Plan, result: Result) -> float | None:
        """Writes the status if it differs and may be written now; otherwise says when."""
        identity = self._publisher.identity(model)
        pods = [pod for pod in seen.pods if pod.model_uid == model.uid]
        outcome = Outcome(
            troubles=(*result.troubles, *_strangers(pods, identity.refused), *_unshareable(pods, seen, model)),
            waiting=tuple(result.waiting),
            publish_error=self._publisher.errors.get(model.key),
            fingerprint=identity.pinned,
        )
        now = datetime.now(UTC)
        wanted = status.build(model, seen, plan, outcome, now, self._settings.cluster_domain)
        self._gauge(model, wanted)
        again = status.next_look(model, pods, now)
        if wanted == model.status:
            return again
        since = time.monotonic() - self._written.get(model.key, -1e9)
        if since < self._settings.status_seconds and not status.urgent(model.status, wanted):
            return self._settings.status_seconds - since
        notes = status.transitions(model.status, wanted)
        await self._patch(model, status.patch(model.status, wanted))
        for note in notes:
            await self._post(model, note, now)
        return again

    async def _patch(self, model: MeshModel, change: Object) -> MeshModel:
        body = {"metadata": {"uid": model.uid}, "status": change}
        answer = await self._cluster.patch(kinds.MESHMODEL, model.namespace, model.name, body, "status")
        self._metrics.writes.labels("MeshModel").inc()
        self._written[model.key] = time.monotonic()
        fresh = parse(answer)
        if self._store.models.get(model.key) is model:
            self._store.models[model.key] = fresh
        # The spec that this turn works on stays the one that it began with.
        return replace(model, status=fresh.status)

    async def _post(self, model: MeshModel, note: Note, now: datetime) -> None:
        """An Event; losing one is no reason to fail."""
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        body: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{model.name}.", "namespace": model.namespace},
            "involvedObject": {
                "apiVersion": kinds.MESHMODEL.api_version,
                "kind": kinds.MESHMODEL.kind,
                "name": model.name,
                "namespace": model.namespace,
                "uid": model.uid,
            },
            "type": note.type,
            "reason": note.reason,
            "message": note.message,
            "source": {"component": "meshnet-operator"},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        try:
            await self._cluster.create(body, kinds.EVENT, model.namespace)
        except ClusterError as error:
            log.warning("event lost", extra={"model": str(model.key), "reason": str(error)})

    def _gauge(self, model: MeshModel, wanted: Mapping[str, Any]) -> None:
        holds = {one["type"]: one["status"] == "True" for one in wanted["conditions"]}
        self._metrics.model_ready.labels(model.namespace, model.name).set(holds["Ready"])
        self._metrics.model_degraded.labels(model.namespace, model.name).set(holds["Degraded"])
        for shard in wanted["shards"]:
            self._metrics.shard_ready.labels(model.namespace, model.name, shard["name"]).set(shard["ready"])


def _strangers(pods: list[Pod], refused: frozenset[str]) -> list[Trouble]:
    names = sorted(pod.name for pod in pods if pod.uid in refused)
    text = "serves another model than the others (another commit or file) and gets no traffic: delete it"
    return [Trouble("FingerprintMismatch", f"pod {name} {text}") for name in names]


def _unshareable(pods: list[Pod], seen: Observed, model: MeshModel) -> list[Trouble]:
    """A claim for one node that pods on several nodes want."""
    nodes = {pod.node for pod in pods if pod.node and not pod.deleting}
    stuck = any(pod.trouble and "volume node affinity conflict" in pod.trouble.message for pod in pods)
    if not seen.exclusive_volume or (len(nodes) < 2 and not stuck):
        return []
    claim = weights(model).claim
    return [
        Trouble(
            "VolumeNotShareable",
            f"claim {claim} can be mounted on one node only, and pods are on {len(nodes)}: use a claim with access mode"
            " ReadWriteMany or ReadOnlyMany, or keep the pods on one node by nodeSelector",
        )
    ]
