"""The route table: where new hops may go, and its file form.

A table is JSON (docs/architecture.md, Routes), written by the operator or the local mesh and replaced whole. Its
identity is (uid, epoch): another uid resets, a lower epoch of the same uid is ignored, and when the source disappears
the last table stays. The table never moves a hop that works.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from meshnet_node.errors import ConfigError
from meshnet_node.logs import events

log = events(__name__)

POLL_SECONDS = 0.1


class EndpointRoute(msgspec.Struct, frozen=True):
    """One shard process: `uid` is its pod's (one per process start in a local mesh), address is host:port."""

    uid: str
    address: str
    state: Literal["ready", "draining", "suspect"] = "ready"
    deadline: float | None = None


class ShardRoute(msgspec.Struct, frozen=True, rename="camel"):
    """One layer range of a layout, both ends inclusive, and the endpoints that serve it."""

    name: str
    start_layer: int
    end_layer: int
    endpoints: tuple[EndpointRoute, ...] = ()
    service: str = ""


class Layout(msgspec.Struct, frozen=True):
    """A cut of the model. Generations move only between layouts of one fingerprint ("" = not known yet)."""

    id: str
    shards: tuple[ShardRoute, ...]
    fingerprint: str = ""
    state: Literal["active", "retiring"] = "active"


class RouteTable(msgspec.Struct, frozen=True):
    """The whole table."""

    uid: str = ""
    epoch: int = 0
    layouts: tuple[Layout, ...] = ()


def parse(raw: bytes) -> RouteTable:
    """A table from its JSON. Raises ConfigError that says which field is wrong."""
    try:
        return msgspec.json.decode(raw, type=RouteTable)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"route table: {error}") from error


def newer(current: RouteTable | None, candidate: RouteTable) -> bool:
    """Whether `candidate` replaces `current`: another uid, or a higher epoch of the same one."""
    return current is None or candidate.uid != current.uid or candidate.epoch > current.epoch


class Intake:
    """What all sources share: takes raw tables, lets newer ones pass to `on_table`, keeps the last when one is bad."""

    def __init__(self, on_table: Callable[[RouteTable], None]) -> None:
        self.table: RouteTable | None = None
        self.taken = 0.0
        self._on_table = on_table
        self._refused = b""

    @property
    def age(self) -> float:
        """Seconds since the table in force was taken; 0 while there is none."""
        return time.monotonic() - self.taken if self.table is not None else 0.0

    def offer(self, raw: bytes) -> None:
        """A bad table is logged once, however often it is read."""
        try:
            table = parse(raw)
        except ConfigError as error:
            if raw != self._refused:
                log.warning("route table not read", reason=str(error))
            self._refused = raw
            return
        if newer(self.table, table):
            self.table, self.taken = table, time.monotonic()
            self._on_table(table)


class Source(Protocol):
    """Where tables come from: runs until cancelled, and says for GET /mesh how it stands."""

    @property
    def state(self) -> str: ...

    async def run(self) -> None: ...

    def describe(self) -> dict[str, object]: ...


class FileRoutes:
    """Follows a route table's file.

    The file is looked at every 0.1 s: a stat costs microseconds, works on every mount (a ConfigMap's symlinks
    included) and can't miss a change. `state`: read, missing or broken.
    """

    def __init__(self, path: Path, intake: Intake) -> None:
        self.state = "missing"
        self._path = path
        self._intake = intake
        self._seen: tuple[int, int, int] | None = None

    def describe(self) -> dict[str, object]:
        """See Source."""
        return {"from": str(self._path), "state": self.state}

    def poll(self) -> None:
        """Read the file if it changed since the last call."""
        try:
            stat = os.stat(self._path)
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return
            raw = self._path.read_bytes()
        except FileNotFoundError:
            self.state = "missing"
            return
        except OSError as error:
            if self.state != "broken":
                log.warning("route table not read", path=str(self._path), reason=str(error))
            self.state, self._seen = "broken", None
            return
        self.state, self._seen = "read", seen
        self._intake.offer(raw)

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            self.poll()
            await asyncio.sleep(POLL_SECONDS)
