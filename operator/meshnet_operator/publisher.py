"""The routes lane: pods -> table -> one PUT, only when the table differs. It owes nothing to the slow lane.

The table that was written last is remembered with its resourceVersion; somebody else's write makes the next PUT a
Conflict, and the table is read again. Epochs count up from whatever is highest: the table that is there or the
status.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from meshnet_operator import kinds, names, routes
from meshnet_operator.children import common
from meshnet_operator.cluster import Cluster
from meshnet_operator.errors import Conflict, NameTaken, NotFound
from meshnet_operator.identity import Identity, resolve
from meshnet_operator.metrics import Metrics
from meshnet_operator.pods import Pod
from meshnet_operator.resource import Key, MeshModel
from meshnet_operator.routes import Table, Target
from meshnet_operator.store import Store

log = logging.getLogger(__name__)

Object = dict[str, Any]
FIELD = "routes.json"


@dataclass(frozen=True)
class Published:
    """A table as it lies in the cluster. version "" = there is no ConfigMap yet."""

    table: Table
    version: str = ""


class Publisher:
    """Writes route tables. `published(key)` is called after each write: the slow lane follows with the status."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        metrics: Metrics,
        image_of: Callable[[MeshModel], str],
        published: Callable[[Key], None],
        cluster_domain: str,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._metrics = metrics
        self._image_of = image_of
        self._published = published
        self._domain = cluster_domain
        self._tables: dict[Key, Published] = {}
        self._locks: defaultdict[Key, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._since: dict[Key, float] = {}
        self._down: dict[tuple[Key, str], float] = {}
        self.errors: dict[Key, str] = {}

    def changed(self, key: Key) -> None:
        """A pod of this MeshModel changed now: the time to the table counts from here."""
        self._since.setdefault(key, time.monotonic())

    def table(self, key: Key) -> Table | None:
        found = self._tables.get(key)
        return found.table if found else None

    def forget(self, key: Key) -> None:
        for known in (self._tables, self._locks, self._since, self.errors):
            known.pop(key, None)
        self._down = {down: since for down, since in self._down.items() if down[0] != key}

    def identity(self, model: MeshModel) -> Identity:
        """Which of the model's pods serve the same thing."""
        pinned = model.status.get("pinned", {})
        image = pinned.get("nodeImage")
        return resolve(
            [pod for pod in self._store.pods(model.key) if pod.model_uid == model.uid],
            self._store.reported,
            names.digest(self._image_of(model), 10),
            pinned.get("fingerprint", ""),
            names.digest(image, 10) if image else "",
        )

    def seen(self, listed: list[Object]) -> set[Key]:
        """Takes over a list of all route ConfigMaps; returns the MeshModels whose table somebody else changed."""
        by_key = {Key(body["metadata"]["namespace"], body["metadata"]["name"]): body for body in listed}
        changed = set()
        for key, known in list(self._tables.items()):
            body = by_key.get(Key(key.namespace, names.routes(key.name)))
            version = body["metadata"]["resourceVersion"] if body else ""
            if version != known.version and not self._locks[key].locked():
                changed.add(key)
                self._tables.pop(key)
        return changed

    async def work(self, key: Key) -> None:
        """One turn of the routes queue."""
        if key in self._store.models:
            await self.publish(key)
        else:
            self._since.pop(key, None)

    async def publish(self, key: Key) -> Table:
        """The table of a known MeshModel, written if it differs from the one that is there. Raises ClusterError."""
        async with self._locks[key]:
            try:
                table = await self._publish(key)
            except NameTaken as error:
                self.errors[key] = str(error)
                raise
            self.errors.pop(key, None)
            return table

    async def _publish(self, key: Key) -> Table:
        for _ in range(3):
            model = self._store.models[key]
            known = self._tables.get(key) or await self._read(model)
            since = self._since.pop(key, None)
            wanted = self._next(model, known.table, self._store.pods(key))
            if known.version and wanted.same_as(known.table):
                self._tables[key] = known
                return known.table
            epoch = max(known.table.epoch, int(model.status.get("routeEpoch", 0))) + 1
            try:
                written = await self._write(model, replace(wanted, epoch=epoch), known.version)
            except (Conflict, NotFound) as error:
                self._tables.pop(key, None)
                if since is not None:
                    self._since.setdefault(key, since)
                log.info("route table changed by somebody else", extra={"model": str(key), "reason": str(error)})
                continue
            self._tables[key] = written
            self._measure(key, known.table, written.table, since)
            self._published(key)
            return written.table
        raise Conflict(f"the route table of {key} is written by somebody else too", 409, "Conflict")

    def _next(self, model: MeshModel, previous: Table, pods: list[Pod]) -> Table:
        target = Target(model.name, model.namespace, model.uid, model.cut, self._domain)
        return routes.next_table(previous, target, pods, self.identity(model))

    async def _read(self, model: MeshModel) -> Published:
        name = names.routes(model.name)
        try:
            body = await self._cluster.get(kinds.CONFIGMAP, model.namespace, name)
        except NotFound:
            return Published(Table(model.uid))
        check_owner(model, body, f"ConfigMap {name}")
        serving = (body["metadata"].get("annotations") or {}).get(names.SERVING, "")
        table = routes.from_json((body.get("data") or {}).get(FIELD, ""), serving)
        return Published(table, body["metadata"]["resourceVersion"])

    async def _write(self, model: MeshModel, table: Table, version: str) -> Published:
        metadata = common.metadata(
            model, names.routes(model.name), "routes", annotations={names.SERVING: table.serving}
        )
        body: Object = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {FIELD: routes.to_json(table)},
        }
        if version:
            metadata["resourceVersion"] = version
            answer = await self._cluster.replace(body, kinds.CONFIGMAP, model.namespace)
        else:
            answer = await self._cluster.create(body, kinds.CONFIGMAP, model.namespace)
        self._metrics.writes.labels("ConfigMap").inc()
        return Published(table, answer["metadata"]["resourceVersion"])

    def _measure(self, key: Key, before: Table, after: Table, since: float | None) -> None:
        now = time.monotonic()
        if since is not None:
            self._metrics.publish_seconds.observe(now - since)
        self._metrics.route_epoch.labels(key.namespace, key.name).set(after.epoch)
        was = {shard.range.name for layout in before.layouts for shard in layout.shards if shard.served}
        served = {shard.range.name for layout in after.layouts for shard in layout.shards if shard.served}
        for name in was - served:
            self._down.setdefault((key, name), now)
        for name in served - was:
            if (down := self._down.pop((key, name), None)) is not None:
                self._metrics.recovery_seconds.observe(now - down)
        log.info("routes published", extra={"model": str(key), "epoch": after.epoch})


def check_owner(model: MeshModel, body: Object, what: str) -> None:
    """Raises NameTaken where the object is not this MeshModel's child."""
    owners = body["metadata"].get("ownerReferences") or []
    if any(owner.get("uid") == model.uid for owner in owners):
        return
    raise NameTaken(what, any(owner.get("kind") == "MeshModel" and owner.get("name") == model.name for owner in owners))
