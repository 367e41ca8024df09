"""One process of a local mesh: started, watched, and started again after a pause when it dies.

A child has a uid per process start, by which the route table names it, and keeps its port, so that a restarted shard
comes back at the same address. A child dies with its parent, also when the parent is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import secrets
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PAUSE_FIRST, PAUSE_MOST = 0.2, 5.0
STEADY_SECONDS = 30.0
MISTAKE = 2
TRIES_NEVER_READY, TRIES = 3, 10
PR_SET_PDEATHSIG = 1


@dataclass
class Child:
    """role is head or shard; layers None for the head; table_state: what the route table says of it.

    The rest changes over its life: `note` says what it is doing now, `failures` counts the ends in a row before it was
    ready (`served` once it was, ever).
    """

    role: str
    name: str
    port: int
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    layers: tuple[int, int] | None = None
    uid: str = ""
    restarts: int = 0
    process: asyncio.subprocess.Process | None = None
    ready: bool = False
    note: str = ""
    table_state: str = "ready"
    served: bool = False
    failures: int = 0
    exits: list[int] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self.process.pid if self.process is not None and self.process.returncode is None else None

    @property
    def hopeless(self) -> bool:
        """Another start would end like the last: by a mistake of the user, or again before it is ready."""
        if not self.served and self.exits and self.exits[-1] == MISTAKE:
            return True
        return self.failures >= (TRIES if self.served else TRIES_NEVER_READY)

    def take_ready(self, ready: bool) -> bool:
        """Note what /readyz said; True when that is news."""
        news = ready != self.ready
        self.ready = ready
        self.served = self.served or ready
        return news

    async def start(self) -> None:
        """Start the process; its output goes to the end of its log file."""
        self.uid = secrets.token_hex(8)
        self.ready, self.note = False, "starting (importing libraries)"
        environment = {**os.environ, **self.environment, "MESHNET_POD_UID": self.uid}
        parent = os.getpid()
        # Looked up before the fork: the child of a process with threads must not load anything.
        prctl = ctypes.CDLL(None).prctl
        with self.log.open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "meshnet_node",
                *self.arguments,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: _die_with(parent, prctl),
            )

    async def supervise(self, on_change: asyncio.Event) -> None:
        """Keep it running until cancelled: a pause before each restart, doubling while it dies young."""
        pause = PAUSE_FIRST
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await self.start()
            on_change.set()
            assert self.process is not None
            self.exits.append(await self.process.wait())
            self.failures = 0 if self.ready else self.failures + 1
            self.ready, self.note = False, f"ended (exit code {self.exits[-1]}), starts again"
            on_change.set()
            pause = PAUSE_FIRST if loop.time() - began > STEADY_SECONDS else pause
            await asyncio.sleep(pause)
            pause = min(PAUSE_MOST, pause * 2)
            self.restarts += 1

    def kill(self) -> None:
        """kill -9, for a process that answers no more; the supervisor starts it again."""
        self._signal(signal.SIGKILL)

    async def stop(self, seconds: float) -> None:
        """SIGTERM, then SIGKILL after so many seconds."""
        if self.process is None or self.process.returncode is not None:
            return
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        try:
            await asyncio.wait_for(self.process.wait(), seconds)
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self.process.wait()

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def _signal(self, number: int) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


def _die_with(parent: int, prctl: Callable[[int, int], int]) -> None:
    """In the child before exec: be killed when the parent goes away."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
