"""Puts the two lanes together: what happens in the cluster becomes keys in their queues.

MeshModels come from outside (`deliver`, called by kopf's handler); pods and Deployments by own label-selected
watches; all other children by a list at each resync. The resync also compares the MeshModels that a list shows with
those that were delivered.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from typing import Any

from meshnet_operator import kinds, names, pods
from meshnet_operator.children.monitoring import GROUP as MONITORING
from meshnet_operator.cluster import Cluster
from meshnet_operator.errors import ClusterError, ResourceError, Stalled
from meshnet_operator.executor import Executor
from meshnet_operator.hub import Hub
from meshnet_operator.kinds import Kind
from meshnet_operator.metrics import Metrics
from meshnet_operator.pods import Pod
from meshnet_operator.probe import Prober
from meshnet_operator.publisher import Publisher
from meshnet_operator.queue import KeyQueue
from meshnet_operator.reconciler import Reconciler
from meshnet_operator.resource import Key, MeshModel, parse
from meshnet_operator.settings import OperatorSettings
from meshnet_operator.store import Store, key_of, pack, unpack
from meshnet_operator.watch import View

log = logging.getLogger(__name__)

Object = dict[str, Any]
# The slow lane looks a little after the pods changed: the table goes first, and changes come in groups.
SETTLE = 0.1
# How many times the slow lane waits for the routes lane: it must come to its turn in any case.
PATIENCE = 20
SILENT = 3.0


class Controller:
    """One per process. `run` works until it is cancelled or raises Stalled."""

    def __init__(self, cluster: Cluster, settings: OperatorSettings, metrics: Metrics) -> None:
        self._cluster = cluster
        self._settings = settings
        self._metrics = metrics
        self._namespace = settings.namespace or None
        self.store = Store()
        self.publisher = Publisher(
            cluster, self.store, metrics, lambda model: self.reconciler.image_of(model), self._published,
            settings.cluster_domain,
        )  # fmt: skip
        self._monitoring = False
        self.reconciler = Reconciler(
            cluster, self.store, self.publisher, Executor(cluster, self.store, metrics), metrics, settings,
            Hub(settings.hub_endpoint), lambda: self._monitoring,
        )  # fmt: skip
        jitter = random.Random()
        self.routes = KeyQueue("routes", self.publisher.work, settings.route_workers, jitter)
        self.slow = KeyQueue("slow", self._slow_turn, settings.workers, jitter)
        self._prober = Prober(self.store, self._told)
        watch, resync = settings.watch_seconds, settings.resync_seconds
        self._pods: View[Pod] = View(
            cluster, kinds.POD, self._namespace, names.SELECTOR, pods.read, self._pod_changed, watch, resync
        )
        self._deployments: View[bytes] = View(
            cluster, kinds.DEPLOYMENT, self._namespace, names.SELECTOR, pack, self._deployment_changed, watch, resync
        )
        self._delivered: dict[Key, tuple[str, int]] = {}
        self._behind: dict[Key, float] = {}
        # Those of which an event came since the last list was asked for: it may be older than the event.
        self._told_meanwhile: set[Key] = set()
        self.started = False

    async def _slow_turn(self, key: Key) -> float | None:
        """A turn of the slow lane, which lets tables go first when many are due."""
        for _ in range(PATIENCE):
            if not self.routes.busy:
                break
            await asyncio.sleep(SETTLE)
        return await self.reconciler.work(key)

    # What comes in

    def deliver(self, kind: str | None, body: Mapping[str, Any]) -> None:
        """One event of a MeshModel from the watch: `kind` is ADDED, MODIFIED, DELETED or None (of a list)."""
        metadata = body["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        self._told_meanwhile.add(key)
        if kind == "DELETED":
            known = self.store.models.get(key)
            if known is None or known.uid == metadata["uid"]:
                self._forget(key)
            return
        self._delivered[key] = (metadata["uid"], int(metadata.get("generation", 1)))
        self._behind.pop(key, None)
        self._take(key, body)

    def _take(self, key: Key, body: Mapping[str, Any]) -> None:
        try:
            model = parse(body)
        except ResourceError as error:
            log.error("MeshModel not understood", extra={"model": str(key), "reason": str(error)})
            return
        known = self.store.models.get(key)
        if known is not None and known.uid == model.uid and model.version < known.version:
            # Older than the answer to our own status write: its status would be told a second time.
            return
        self.store.models[key] = model
        if known is None or known.uid != model.uid:
            self.publisher.forget(key)
        if known is None or _news(known, model):
            self.routes.add(key)
            self.slow.add(key)

    def _forget(self, key: Key) -> None:
        self.reconciler.forget(key)
        self.store.forget(key)
        self.publisher.forget(key)
        self.routes.forget(key)
        self.slow.forget(key)
        self._metrics.forget(key)
        self._delivered.pop(key, None)
        self._behind.pop(key, None)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self.store.set_pod(old, new)
        for key in {pod.key for pod in (old, new) if pod is not None}:
            if key in self.store.models:
                self.publisher.changed(key)
                self.routes.add(key, self._settings.coalesce_seconds)
                self.slow.add(key, SETTLE)
        lost = old is not None and old.ready and old.range and (new is None or not new.ready)
        if old is not None and lost and old.key in self.store.models:
            self._metrics.pod_losses.labels(old.key.namespace, old.key.name).inc()
        if new is not None and self._settings.probe_pods:
            self._prober.want(new)

    def _deployment_changed(self, before: bytes | None, after: bytes | None) -> None:
        old, new = (None if one is None else unpack(one) for one in (before, after))
        body = new or old
        if body is None:
            return
        key = key_of(body)
        if new is None:
            self.store.drop_child(kinds.DEPLOYMENT, key, body["metadata"]["name"])
        if after is not None:
            self.store.set_child(kinds.DEPLOYMENT, after)
        if key in self.store.models and not _only_counts(old, new):
            self.slow.add(key, SETTLE)

    def _published(self, key: Key) -> None:
        self.slow.add(key, SETTLE)

    def _told(self, key: Key) -> None:
        self.routes.add(key)
        self.slow.add(key, SETTLE)

    # Running

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.run())
            group.create_task(self._deployments.run())
            await self._pods.ready.wait()
            await self._deployments.ready.wait()
            await self._first_resync()
            self.started = True
            group.create_task(self._prober.run())
            group.create_task(self.routes.run())
            group.create_task(self.slow.run())
            group.create_task(self._resyncs())

    async def _first_resync(self) -> None:
        """Nothing is decided before everything was listed once."""
        delay = 0.2
        while True:
            try:
                await self.resync()
                return
            except ClusterError as error:
                log.warning("first list failed", extra={"reason": str(error)})
                await asyncio.sleep(max(delay, error.retry_after or 0.0))
                delay = min(2.0, delay * 2)

    async def _resyncs(self) -> None:
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            try:
                await self.resync()
            except ClusterError as error:
                # A list that failed is not an empty list: everything known stays.
                log.warning("resync failed", extra={"reason": str(error)})

    async def resync(self) -> None:
        """Lists every kind once, and asks for a turn of each MeshModel for which something differs. Raises
        ClusterError.
        """
        self._monitoring = await self._cluster.served(MONITORING)
        changed: set[Key] = set()
        for kind in [*(one for one in kinds.CHILDREN if one != kinds.DEPLOYMENT), *self._extra()]:
            listing = await self._list(kind)
            changed |= self.store.replace_children(kind, listing)
        self.store.set_secrets(await self._list(kinds.SECRET, metadata_only=True))
        changed |= self.publisher.seen(await self._list(kinds.CONFIGMAP))
        self._told_meanwhile.clear()
        self._compare((await self._cluster.list(kinds.MESHMODEL, self._namespace)).items)
        if self._settings.probe_pods:
            self._prober.again()
        for key, model in self.store.models.items():
            if not self.store.has_secret(model):
                changed.add(key)
        for key in changed & self.store.models.keys():
            self.routes.add(key)
            self.slow.add(key)

    def _extra(self) -> tuple[Kind, ...]:
        return kinds.MONITORING if self._monitoring else ()

    async def _list(self, kind: Kind, metadata_only: bool = False) -> list[Object]:
        listing = await self._cluster.list(kind, self._namespace, names.SELECTOR, metadata_only=metadata_only)
        return listing.items

    def _compare(self, listed: list[Object]) -> None:
        """Takes over what the watch has not delivered, and remembers since when it is behind."""
        found = {Key(body["metadata"]["namespace"], body["metadata"]["name"]): body for body in listed}
        for key in self.store.models.keys() - found.keys() - self._told_meanwhile:
            self._forget(key)
        for key, body in found.items():
            if key in self._told_meanwhile:
                continue
            state = (body["metadata"]["uid"], int(body["metadata"].get("generation", 1)))
            told = self._delivered.get(key)
            if told is None or told[0] != state[0] or told[1] < state[1]:
                self._behind.setdefault(key, time.monotonic())
                self._take(key, body)
            else:
                self._behind.pop(key, None)

    # Health

    def faults(self) -> list[str]:
        """What makes this instance unfit to lead; empty while all is well."""
        bound = SILENT * self._settings.resync_seconds
        self._metrics.watch_age.labels("Pod").set(self._pods.age)
        self._metrics.watch_age.labels("Deployment").set(self._deployments.age)
        wrong = []
        for name, view in (("pods", self._pods), ("deployments", self._deployments)):
            if view.age > bound:
                wrong.append(f"nothing heard of {name} for {view.age:.0f} s")
        return wrong + self.stalled()

    def stalled(self) -> list[str]:
        now = time.monotonic()
        late = [key for key, since in list(self._behind.items()) if now - since > self._settings.stall_seconds]
        return [f"the watch of MeshModels is behind: {late[0]} and {len(late) - 1} more"] if late else []

    async def guard(self) -> None:
        """Raises Stalled when the watch of MeshModels stays behind the lists."""
        while True:
            await asyncio.sleep(1.0)
            if wrong := self.stalled():
                raise Stalled(wrong[0])


def _news(known: MeshModel, model: MeshModel) -> bool:
    """Whether a MeshModel differs from what this process knows: its own status writes do not."""
    return (known.uid, known.generation, known.deleting) != (model.uid, model.generation, model.deleting) or (
        known.status != model.status
    )


def _only_counts(old: Object | None, new: Object | None) -> bool:
    """Whether only numbers of a Deployment's status changed: pods tell those sooner."""
    if old is None or new is None:
        return False

    def essence(body: Object) -> tuple[Any, Any, Any, Any]:
        failure = [
            (one.get("status"), one.get("message"))
            for one in body.get("status", {}).get("conditions") or []
            if one["type"] == "ReplicaFailure"
        ]
        metadata = body["metadata"]
        return (
            body["spec"],
            failure,
            metadata.get("labels"),
            (metadata.get("annotations"), "deletionTimestamp" in metadata),
        )

    return essence(old) == essence(new)
