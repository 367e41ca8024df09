"""Asks ready pods about themselves; what they say is kept in the store.

A shard says who it is (GET /readyz): its fingerprint, once for each start. A head says whether a token has come through
the whole path yet (GET /ready), and is asked each second until it has: pods that are ready one by one are no path.

A pod that can't be asked (a network policy, an old image) stays unknown and counts all the same: a head checks the
fingerprint at each link, and answers 503 by itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable
from typing import Any

import aiohttp

from meshnet_operator import names
from meshnet_operator.pods import Pod
from meshnet_operator.resource import Key
from meshnet_operator.store import Store

log = logging.getLogger(__name__)

SECONDS = 2.0
HEAD_AGAIN_SECONDS = 1.0
AT_ONCE = 32
LIMIT = 64 * 1024
OK, UNAVAILABLE = 200, 503
# It goes into tables, statuses and logs: nothing else is taken from a pod, which may run anybody's code.
FINGERPRINT = re.compile(r"[0-9A-Za-z._-]{1,128}")


class Prober:
    """`told(key)` is called when a pod of this MeshModel has answered."""

    def __init__(self, store: Store, told: Callable[[Key], None]) -> None:
        self._store = store
        self._told = told
        self._wanted: asyncio.Queue[Pod] = asyncio.Queue()
        # By uid: how often its container had been started again. One that is started anew knows nothing of before.
        self._asked: dict[str, int] = {}

    def want(self, pod: Pod) -> None:
        """Asks a pod that became ready, unless it was asked already."""
        if pod.ready and pod.address and self._asked.get(pod.uid) != pod.restarts:
            self._asked[pod.uid] = pod.restarts
            if pod.range is None:
                self._store.unproven.add(pod.uid)
            self._wanted.put_nowait(pod)

    def again(self) -> None:
        """Asks all shards that have not answered; forgets pods that are gone."""
        pods = [pod for key in self._store.models for pod in self._store.pods(key)]
        known = {pod.uid for pod in pods if pod.range is None or pod.uid in self._store.reported}
        self._asked = {uid: restarts for uid, restarts in self._asked.items() if uid in known}
        for pod in pods:
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
            if pod.range is None:
                await self._head(session, pod)
            else:
                await self._shard(session, pod)

    async def _shard(self, session: aiohttp.ClientSession, pod: Pod) -> None:
        status, raw = await self._ask(session, pod, names.SHARD_PORT, "/readyz")
        fingerprint = _fingerprint(pod, raw) if status == OK else ""
        if fingerprint and self._is_there(pod):
            self._store.reported[pod.uid] = fingerprint
            self._told(pod.key)

    async def _head(self, session: aiohttp.ClientSession, pod: Pod) -> None:
        status, _ = await self._ask(session, pod, names.HEAD_PORT, "/ready")
        if status == UNAVAILABLE and self._is_there(pod):
            asyncio.get_running_loop().call_later(HEAD_AGAIN_SECONDS, self._wanted.put_nowait, pod)
            return
        self._store.unproven.discard(pod.uid)
        self._told(pod.key)

    def _is_there(self, pod: Pod) -> bool:
        return any(one.uid == pod.uid for one in self._store.pods(pod.key))

    async def _ask(self, session: aiohttp.ClientSession, pod: Pod, port: int, path: str) -> tuple[int, bytes]:
        """Status and body of a GET; status 0 where the pod can't be asked."""
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        try:
            async with session.get(f"http://{host}:{port}{path}", allow_redirects=False) as answer:
                return answer.status, await answer.content.read(LIMIT)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.debug("pod not asked", extra={"pod": pod.name, "reason": type(error).__name__})
            return 0, b""


def _fingerprint(pod: Pod, raw: bytes) -> str:
    try:
        body: dict[str, Any] = dict(json.loads(raw))
    except (ValueError, TypeError, RecursionError):
        return ""
    found = body.get("fingerprint")
    # Another pod may have got the address meanwhile.
    if body.get("pod_uid", pod.uid) not in ("", pod.uid) or not isinstance(found, str):
        return ""
    return found if FINGERPRINT.fullmatch(found) else ""
