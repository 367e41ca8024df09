"""Follows the route table in a ConfigMap: a GET by name, then a watch of that one object, again and again.

Each watch has an end that the server keeps and the client waits only a little longer for; the GET before the next one
finds whatever a watch may have lost. Whatever goes wrong (the server gone, the object deleted, rights or token
refused), the last table stays in force, and the way back is tried with a growing, jittered delay.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from meshnet_node.errors import ApiServerError
from meshnet_node.head.apiserver import Account, Connection, connect, told_in_stream
from meshnet_node.head.routes import Intake
from meshnet_node.logs import events

log = events(__name__)

KEY = "routes.json"
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, GONE = 401, 403, 404, 410


@dataclass(frozen=True)
class Timing:
    """Seconds. watch: life of a watch at the server; margin: how much longer the client waits; settled: a watch that
    lived so long worked, so that the next delay is a first one again.
    """

    watch: int = 120
    margin: float = 10.0
    first_delay: float = 0.1
    longest_delay: float = 5.0
    settled: float = 5.0


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _ConfigMap(msgspec.Struct):
    metadata: _Metadata
    data: dict[str, str] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class ConfigMapRoutes:
    """`state`: connecting, connected (a watch runs), missing (one runs, there is no such object) or broken."""

    def __init__(
        self,
        namespace: str,
        name: str,
        account: Account,
        intake: Intake,
        timing: Timing | None = None,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.source = f"configmap://{namespace}/{name}"
        self.state: Literal["connecting", "connected", "missing", "broken"] = "connecting"
        self.fault = ""
        self._namespace = namespace
        self._name = name
        self._account = account
        self._intake = intake
        self._timing = timing or Timing()
        self._jitter = jitter
        self._since = self._heard = time.monotonic()
        self._present = False
        self._failures = 0
        self._began = math.inf

    def describe(self) -> dict[str, object]:
        """Where the table comes from, for GET /mesh."""
        now = time.monotonic()
        return {
            "from": self.source,
            "state": self.state,
            "since_seconds": round(now - self._since, 1),
            "heard_seconds": round(now - self._heard, 1),
            "fault": self.fault,
        }

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._began = math.inf
            try:
                await self._follow()
                self._failures = 0
            except ApiServerError as error:
                if time.monotonic() - self._began > self._timing.settled:
                    self._failures = 0
                delay = retry_delay(self._failures, error, self._timing, self._jitter)
                self._failures += 1
                self._broke(error, delay)
                await asyncio.sleep(delay)

    async def _follow(self) -> None:
        """One GET and one watch. Returns where the server ended it in time."""
        async with connect(self._account) as connection:
            query = {
                "watch": "true",
                "fieldSelector": f"metadata.name={self._name}",
                "allowWatchBookmarks": "true",
                # Heads that started together do not come back together for ever.
                "timeoutSeconds": str(round(self._timing.watch * self._jitter(0.75, 1.0))),
            }
            # Without a version the server first tells what is there: right for an object that may come any moment.
            if version := await self._get(connection):
                query["resourceVersion"] = version
            silence = self._timing.watch + self._timing.margin
            async with connection.watch(self._path(), query, silence) as lines:
                self._stands()
                self._began = time.monotonic()
                async for line in lines:
                    self._take(line)

    async def _get(self, connection: Connection) -> str:
        """Take the object as it is now; its version, "" where there is none."""
        try:
            raw = await connection.get(f"{self._path()}/{self._name}")
        except ApiServerError as error:
            if error.status != NOT_FOUND:
                raise
            self._present = False
            return ""
        return self._take_object(raw)

    def _take(self, line: bytes) -> None:
        try:
            event = msgspec.json.decode(line, type=_Event)
        except msgspec.MsgspecError as error:
            raise ApiServerError(f"an unreadable line in a watch: {error}") from error
        if event.type == "ERROR":
            raise told_in_stream(bytes(event.object))
        self._heard = time.monotonic()
        if event.type in ("ADDED", "MODIFIED"):
            self._take_object(bytes(event.object))
        elif event.type == "DELETED":
            self._present = False
        self._stands()

    def _take_object(self, raw: bytes) -> str:
        try:
            found = msgspec.json.decode(raw, type=_ConfigMap)
        except msgspec.MsgspecError as error:
            raise ApiServerError(f"an unreadable ConfigMap: {error}") from error
        self._heard = time.monotonic()
        self._present = True
        self._intake.offer((found.data or {}).get(KEY, "").encode())
        return found.metadata.resource_version

    def _stands(self) -> None:
        """A watch runs."""
        self.fault = "" if self._present else "there is no such ConfigMap"
        self._change("connected" if self._present else "missing")

    def _broke(self, error: ApiServerError, delay: float) -> None:
        if error.status == GONE:  # the server's history went past our version: nothing is wrong
            log.debug("routes read again", source=self.source)
            return
        fault = explain(error, self._namespace, self._name)
        if fault != self.fault:
            log.warning("routes not followed", source=self.source, reason=fault, again_seconds=round(delay, 2))
        self.fault = fault
        self._change("broken")

    def _change(self, state: Literal["connected", "missing", "broken"]) -> None:
        if state == self.state:
            return
        if state != "broken":
            log.info("routes followed", source=self.source, state=state)
        self.state, self._since = state, time.monotonic()

    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}/configmaps"


def retry_delay(failures: int, error: ApiServerError, timing: Timing, jitter: Callable[[float, float], float]) -> float:
    """Seconds until the next try after so many failures before this one: many heads must not come back at once.

    What the server asked for with Retry-After is kept, and up to half is added to it.
    """
    most = min(timing.longest_delay, timing.first_delay * 2.0 ** min(failures, 16))
    delay = most * jitter(0.5, 1.0)
    if error.retry_after is not None:
        delay = max(delay, error.retry_after * jitter(1.0, 1.5))
    return delay


def explain(error: ApiServerError, namespace: str, name: str) -> str:
    """What went wrong, and where a person can do something about it, what."""
    if error.status == UNAUTHORIZED:
        return f"the API server does not accept the ServiceAccount's token, which is read again each time ({error})"
    if error.status == FORBIDDEN:
        return f"the ServiceAccount needs a Role with get and watch of ConfigMap {name} in {namespace} ({error})"
    return str(error)
