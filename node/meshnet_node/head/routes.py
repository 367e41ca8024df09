"""The route table: where new hops may go, and its file form.

A table is JSON (architecture.md section 6), written by the operator or the local mesh and replaced whole. Its identity
is (uid, epoch): another uid resets, a lower epoch of the same uid is ignored, and when the source disappears the last
table stays. The table never moves a hop that works.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

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
    except msgspec.MsgspecError as error:
        raise ConfigError(f"route table: {error}") from error


def newer(current: RouteTable | None, candidate: RouteTable) -> bool:
    """Whether `candidate` replaces `current`: another uid, or a higher epoch of the same one."""
    return current is None or candidate.uid != current.uid or candidate.epoch > current.epoch


class FileRoutes:
    """Follows a route table's file; `on_table` is called in the event loop with each newer table.

    The file is looked at every 0.1 s: a stat costs microseconds, works on every mount (a ConfigMap's symlinks
    included) and can't miss a change. A bad file is logged once and the last table stays.
    """

    def __init__(self, path: Path, on_table: Callable[[RouteTable], None]) -> None:
        self._path = path
        self._on_table = on_table
        self._seen: tuple[int, int, int] | None = None
        self._current: RouteTable | None = None

    def poll(self) -> None:
        """Read the file if it changed since the last call."""
        try:
            stat = os.stat(self._path)
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return
            table = parse(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ConfigError) as error:
            log.warning("route table not read", path=str(self._path), reason=str(error))
            self._seen = None if isinstance(error, OSError) else seen
            return
        self._seen = seen
        if newer(self._current, table):
            self._current = table
            self._on_table(table)

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            self.poll()
            await asyncio.sleep(POLL_SECONDS)
