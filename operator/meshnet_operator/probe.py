"""Asks ready shards who they are: GET /v1/info, once for each pod. What they say is kept in the store.

A shard that can't be asked (a network policy, an old image) stays unknown and serves all the same: the head checks the
fingerprint at each link.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import aiohttp

from meshnet_operator import names
from meshnet_operator.pods import Pod
from meshnet_operator.resource import Key
from meshnet_operator.store import Store

log = logging.getLogger(__name__)

SECONDS = 2.0
AT_ONCE = 8
LIMIT = 64 * 1024


class Prober:
    """`told(key)` is called when a pod of this MeshModel has reported."""

    def __init__(self, store: Store, told: Callable[[Key], None]) -> None:
        self._store = store
        self._told = told
        self._wanted: asyncio.Queue[Pod] = asyncio.Queue()
        self._asked: set[str] = set()

    def want(self, pod: Pod) -> None:
        """Asks a pod that became ready, unless it was asked already."""
        if pod.range is not None and pod.ready and pod.address and pod.uid not in self._asked:
            self._asked.add(pod.uid)
            self._wanted.put_nowait(pod)

    def again(self) -> None:
        """Asks all pods that have not answered; forgets those that are gone."""
        self._asked &= set(self._store.reported)
        for key in list(self._store.models):
            for pod in self._store.pods(key):
                self.want(pod)

    async def run(self) -> None:
        """Until cancelled."""
        limit = aiohttp.ClientTimeout(total=SECONDS)
        async with aiohttp.ClientSession(timeout=limit) as session, asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._worker(session))

    async def _worker(self, session: aiohttp.ClientSession) -> None:
        while True:
            pod = await self._wanted.get()
            fingerprint = await self._ask(session, pod)
            if fingerprint and any(one.uid == pod.uid for one in self._store.pods(pod.key)):
                self._store.reported[pod.uid] = fingerprint
                self._told(pod.key)

    async def _ask(self, session: aiohttp.ClientSession, pod: Pod) -> str:
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        try:
            async with session.get(f"http://{host}:{names.SHARD_PORT}/v1/info") as answer:
                raw = await answer.content.read(LIMIT)
                if answer.status != 200:
                    return ""
                body: dict[str, Any] = dict(json.loads(raw))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, TypeError) as error:
            log.debug("shard not asked", extra={"pod": pod.name, "reason": type(error).__name__})
            return ""
        found = body.get("fingerprint")
        # Another pod may have got the address meanwhile.
        return found if isinstance(found, str) and body.get("pod_uid", pod.uid) in ("", pod.uid) else ""
