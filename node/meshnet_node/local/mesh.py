"""`meshnet up`: head and shards as processes of this machine, kept alive, with their route table and state file.

Dead processes are started again (child.py); one whose /healthz stays silent for 6 s (60 s while it loads) is killed
first. The route table lists every running process, also one that still loads its weights: the head finds that out at
hello.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from meshnet_node.errors import ConfigError
from meshnet_node.local.child import TRIES, Child
from meshnet_node.local.files import route_table, state, write_token, write_whole
from meshnet_node.local.layers import Range

HEALTH_SECONDS = 0.5
SILENT_SECONDS = 6.0
# Importing and loading hold the interpreter for seconds on a busy machine; a process at that is not hung.
SILENT_LOADING_SECONDS = 60.0
STOP_SECONDS = 10.0
DRAIN_SECONDS = 2
MEGABYTE = 1_000_000
SPIN_COUNT = "10000"


@dataclass(frozen=True)
class Plan:
    """What to start: the model's folder, its ranges (one shard process each, times replicas), and the head's port."""

    model: str
    ranges: list[Range]
    replicas: int = 1
    port: int = 8000
    dtype: str = "auto"
    served_name: str | None = None
    threads: int = 0
    folder: Path = field(default_factory=Path)
    state: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def shard_threads(self) -> int:
        """Cores shared out over the shard processes: more threads than cores make both slower (measured)."""
        return self.threads or max(1, (os.cpu_count() or 1) // (len(self.ranges) * self.replicas))


class LocalMesh:
    """Use as an async context manager; `children` are the head first, then the shards."""

    def __init__(self, plan: Plan, report: Callable[[str], None] = lambda _: None) -> None:
        self.plan = plan
        self.routes = plan.folder / "routes.json"
        self.token = plan.folder / "shard-token"
        self.state = plan.state or plan.folder / "state.json"
        self.url = f"http://127.0.0.1:{plan.port}"
        self.children: list[Child] = []
        self._report = report
        self._uid = secrets.token_hex(8)
        self._epoch = 0
        self._written: object = None
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._heard: dict[str, float] = {}

    @property
    def shards(self) -> list[Child]:
        """The shard processes."""
        return [child for child in self.children if child.role == "shard"]

    async def __aenter__(self) -> LocalMesh:
        self.plan.folder.mkdir(parents=True, exist_ok=True)
        write_token(self.token)
        self._build()
        self._tasks = [asyncio.create_task(child.supervise(self._changed)) for child in self.children]
        self._tasks += [asyncio.create_task(self._watch_health(child)) for child in self.children]
        self._tasks.append(asyncio.create_task(self._publish()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(child.stop(STOP_SECONDS) for child in self.children))
        with contextlib.suppress(FileNotFoundError):
            self.token.unlink()
        self._write_state()

    async def ready(self, seconds: float = 600) -> None:
        """Until the head has a complete path. Raises ConfigError with the end of a log when a process can't run."""
        deadline = time.monotonic() + seconds
        async with httpx2.AsyncClient() as client:
            while time.monotonic() < deadline:
                self.check()
                with contextlib.suppress(httpx2.HTTPError):
                    if (await client.get(f"{self.url}/ready")).status_code == 200:
                        # The head may know of a shard sooner than this process, which has yet to say so.
                        for child in self.children:
                            await self._check(client, child)
                        return
                await asyncio.sleep(0.2)
        raise ConfigError(f"the mesh was not ready in {seconds:.0f} s; see the logs in {self.plan.folder}")

    async def watch(self) -> None:
        """Never returns; raises ConfigError with the end of a log as soon as a process can't be kept running."""
        while True:
            self.check()
            await asyncio.sleep(HEALTH_SECONDS)

    def check(self) -> None:
        """Raises ConfigError with the end of its log when a process can't be kept running."""
        for child in self.children:
            if child.hopeless:
                codes = ", ".join(map(str, child.exits[-TRIES:]))
                raise ConfigError(
                    f"{child.name} does not keep running (exit codes {codes}). Its log ends:\n{child.tail()}"
                )

    def mark(self, child: Child, table_state: str) -> None:
        """Say in the route table that this shard is ready, draining or suspect."""
        child.table_state = table_state
        self._changed.set()

    def _build(self) -> None:
        plan = self.plan
        shared = {
            "MESHNET_TOKEN_FILE": str(self.token),
            "MESHNET_HOST": "127.0.0.1",
            "MESHNET_DRAIN_SECONDS": str(DRAIN_SECONDS),
            **plan.environment,
        }
        served = {"MESHNET_SERVED_NAME": plan.served_name} if plan.served_name else {}
        head = ["head", "--model", plan.model, "--port", str(plan.port), "--routes", str(self.routes)]
        self.children = [Child("head", "head", plan.port, head, {**shared, **served}, plan.folder / "head.log")]
        threads = plan.shard_threads
        # libgomp's spinning costs more than it saves as soon as processes share cores (docs/performance.md).
        compute = {"MESHNET_THREADS": str(threads), "GOMP_SPINCOUNT": SPIN_COUNT, **shared}
        for number, (start, end) in enumerate(plan.ranges):
            for replica in range(plan.replicas):
                name = f"shard-{number}" + (f"-{replica}" if plan.replicas > 1 else "")
                port = free_port()
                arguments = ["shard", "--model", plan.model, "--port", str(port), "--dtype", plan.dtype]
                arguments += ["--start-layer", str(start), "--end-layer", str(end)]
                log = plan.folder / f"{name}.log"
                self.children.append(Child("shard", name, port, arguments, compute, log, (start, end)))

    async def _publish(self) -> None:
        """Write the table (a new epoch) when a process came or went, and the state file whenever it differs."""
        while True:
            self._changed.clear()
            pids = [(child.uid, child.pid, child.table_state) for child in self.shards]
            if pids != self._written:
                self._written = pids
                self._epoch += 1
                table = route_table(self._uid, self._epoch, self.shards)
                write_whole(self.routes, json.dumps(table, indent=2))
            self._write_state()
            await self._changed.wait()

    async def _watch_health(self, child: Child) -> None:
        async with httpx2.AsyncClient(timeout=SILENT_SECONDS) as client:
            while True:
                await self._check(client, child)
                await asyncio.sleep(HEALTH_SECONDS)

    async def _check(self, client: httpx2.AsyncClient, child: Child) -> None:
        """Learn readiness and loading progress; kill a process that answered once and is silent now."""
        if child.pid is None:
            return
        uid = child.uid
        try:
            await client.get(f"{child.url}/healthz")
            self._heard[uid] = time.monotonic()
            readiness = await client.get(f"{child.url}/readyz")
        except httpx2.HTTPError:
            limit = SILENT_SECONDS if child.ready else SILENT_LOADING_SECONDS
            silent = time.monotonic() - self._heard.get(uid, time.monotonic())
            if uid == child.uid and child.pid is not None and silent > limit:
                self._report(f"{child.name} (pid {child.pid}) has been silent for {limit:.0f} s: killed")
                child.kill()
            return
        if uid != child.uid:
            return
        child.note = readiness_note(readiness)
        if child.take_ready(readiness.status_code == 200):
            self._report(f"{child.name} is {'ready' if child.ready else 'not ready'}")
            self._changed.set()

    def _write_state(self) -> None:
        write_whole(self.state, state(self.url, self.routes, self.token, self.children))


def readiness_note(response: httpx2.Response) -> str:
    """What a process is doing, in words: a shard's /readyz names its phase and the bytes that it has loaded."""
    if response.status_code == 200:
        return "ready"
    try:
        body = response.json()
        phase, done, total = str(body["status"]), int(body["loaded_bytes"]), int(body["total_bytes"])
    except (ValueError, KeyError, TypeError):
        return "not ready"
    if phase != "loading" or not total:
        return phase
    return f"loading {done // MEGABYTE} of {total // MEGABYTE} MB"


def free_port() -> int:
    """A port that was free on loopback a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
