"""The real `meshnet up` as a process: its output, its state file, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshnet_fleet import wait_for

from meshnet_node.local.mesh import free_port

START_SECONDS = 150.0


class Up:
    """One run of the command. `output` is what it printed so far."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.state_file = folder / "state.json"
        self._log = folder / "up.log"
        command = [sys.executable, "-m", "meshnet_node", "up", "--port", str(self.port), *arguments]
        command += ["--state", str(self.state_file)]
        environment = {**os.environ, "MESHNET_THREADS": "1"}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)

    @property
    def output(self) -> str:
        return self._log.read_text()

    def wait_serving(self) -> None:
        """Until it printed the greeting. Fails when it ended before."""

        def greeted() -> bool:
            assert self.process.poll() is None, f"it ended:\n{self.output}"
            return "Ask it something" in self.output

        wait_for(greeted, START_SECONDS, "meshnet up to serve")

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.state_file.read_text())
        return found

    def of_role(self, role: str) -> list[dict[str, Any]]:
        return [process for process in self.state()["processes"] if process["role"] == role]

    def shard(self, number: int) -> dict[str, Any]:
        return self.of_role("shard")[number]

    def pids(self) -> list[int]:
        return [process["pid"] for process in self.state()["processes"] if process["pid"]]

    def wait_replaced(self, number: int, old_pid: int, seconds: float = START_SECONDS) -> dict[str, Any]:
        """Until that shard is ready again under another pid; its entry in the state file."""

        def ready_again() -> bool:
            shard = self.shard(number)
            return bool(shard["ready"]) and shard["pid"] not in (None, old_pid)

        wait_for(ready_again, seconds, f"shard {number} to be replaced")
        return self.shard(number)

    def interrupt(self, seconds: float = 20) -> int:
        """Ctrl-C; its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(seconds)


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Up]:
    """The command, serving; ended at the end whatever happened."""
    up = Up(folder, *arguments)
    try:
        up.wait_serving()
        yield up
    finally:
        if up.process.poll() is None:
            up.process.send_signal(signal.SIGINT)
            try:
                up.process.wait(20)
            except subprocess.TimeoutExpired:
                up.process.kill()
                up.process.wait(10)


def alive(pid: int) -> bool:
    """Whether such a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_gone(pids: list[int], seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"of {pids} still run {[pid for pid in pids if alive(pid)]}"
        time.sleep(0.05)
