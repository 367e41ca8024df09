"""A view of the cluster's objects of one kind with one label selector, kept by list and watch.

The view is replaced as a whole by each list, so that an object whose DELETED event was lost goes with the next list:
a list comes first, after an expired resourceVersion, after each watch that failed, and every `relist_seconds` in any
case. A list that failed changes nothing. `age` tells how long nothing (event, bookmark or end of a watch) was heard.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from meshnet_operator.cluster import Cluster, WatchEvent
from meshnet_operator.errors import ClusterError, Gone
from meshnet_operator.kinds import Kind

log = logging.getLogger(__name__)

Object = dict[str, Any]
T = TypeVar("T")
FIRST_DELAY = 0.1
LONGEST_DELAY = 10.0


class View(Generic[T]):
    """`read` makes of an object what is kept; `changed(old, new)` is called after each change that `read` shows (None
    = absent).

    `items` is by uid. Not started before the first list has succeeded: `ready` is set then.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        namespace: str | None,
        selector: str,
        read: Callable[[Object], T],
        changed: Callable[[T | None, T | None], None],
        watch_seconds: int,
        relist_seconds: float,
    ) -> None:
        self._cluster = cluster
        self._kind = kind
        self._namespace = namespace
        self._selector = selector
        self._read = read
        self._changed = changed
        self._watch_seconds = watch_seconds
        self._relist_seconds = relist_seconds
        self._jitter = random.Random()
        self._heard = time.monotonic()
        self.items: dict[str, T] = {}
        self.ready = asyncio.Event()
        self.lists = 0

    @property
    def age(self) -> float:
        """Seconds since anything was heard."""
        return time.monotonic() - self._heard

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            try:
                version = await self._list()
                failures = 0
                await self._follow(version)
            except Gone:
                log.info("watch expired", extra={"kind": self._kind.kind})
            except ClusterError as error:
                failures += 1
                delay = min(LONGEST_DELAY, FIRST_DELAY * 2**failures) * self._jitter.uniform(0.5, 1.0)
                delay = max(delay, error.retry_after or 0.0)
                fields = {"kind": self._kind.kind, "reason": str(error), "again_seconds": round(delay, 2)}
                log.warning("watch failed", extra=fields)
                await asyncio.sleep(delay)

    async def _list(self) -> str:
        listing = await self._cluster.list(self._kind, self._namespace, self._selector)
        self._heard = time.monotonic()
        self.lists += 1
        found = {body["metadata"]["uid"]: self._read(body) for body in listing.items}
        before, self.items = self.items, found
        for uid in before.keys() - found.keys():
            self._changed(before[uid], None)
        for uid, item in found.items():
            if before.get(uid) != item:
                self._changed(before.get(uid), item)
        self.ready.set()
        return listing.version

    async def _follow(self, version: str) -> None:
        """Watches again and again from where the last one ended, until it is time to list."""
        end = time.monotonic() + self._relist_seconds * self._jitter.uniform(0.8, 1.2)
        while (left := end - time.monotonic()) > 0:
            seconds = max(1, int(min(left, self._watch_seconds)))
            async for event in self._cluster.watch(self._kind, self._namespace, self._selector, version, seconds):
                self._heard = time.monotonic()
                version = event.object["metadata"]["resourceVersion"]
                self._take(event)
            self._heard = time.monotonic()

    def _take(self, event: WatchEvent) -> None:
        uid = event.object["metadata"].get("uid", "")
        if event.type == "BOOKMARK":
            return
        if event.type == "DELETED":
            if (old := self.items.pop(uid, None)) is not None:
                self._changed(old, None)
            return
        new = self._read(event.object)
        old = self.items.get(uid)
        self.items[uid] = new
        if old != new:
            self._changed(old, new)
