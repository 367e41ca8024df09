"""Real head and shard processes for tests, with a route table that the test writes.

A Fleet runs its processes from a thread of its own, so that tests stay plain functions. Nothing is simulated: faults
are signals to processes, frames to sockets and tables in a file.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from meshnet_node.local.child import Child
from meshnet_node.local.files import write_token, write_whole
from meshnet_node.local.mesh import free_port

T = TypeVar("T")
Cut = Sequence[tuple[int, int]]


class Background:
    """An event loop in a thread, for processes that outlive one test's loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], seconds: float = 120) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def start() -> asyncio.Task[None]:
            return asyncio.create_task(work)

        return self.call(start())

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@dataclass
class Fleet:
    """Processes of one model in one folder. `layouts` is what the next `publish` writes: layout id -> its shards."""

    model: Path
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.background = Background()
        self.routes = self.folder / "routes.json"
        self.token = self.folder / "token"
        self.children: list[Child] = []
        self.layouts: dict[str, list[Child]] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._epoch = 0
        self.folder.mkdir(parents=True, exist_ok=True)
        write_token(self.token)

    # processes

    def add(
        self, role: str, name: str, arguments: list[str], layers: tuple[int, int] | None, env: dict[str, str]
    ) -> Child:
        port = free_port()
        shared = {"MESHNET_TOKEN_FILE": str(self.token), "MESHNET_HOST": "127.0.0.1", "GOMP_SPINCOUNT": "10000"}
        child = Child(
            role,
            name,
            port,
            [role, "--model", str(self.model), "--port", str(port), *arguments],
            {**shared, **self.environment, **env},
            self.folder / f"{name}.log",
            layers,
        )
        self.children.append(child)
        self.background.call(child.start())
        return child

    def add_head(self, name: str = "head", **env: str) -> Child:
        return self.add("head", name, ["--routes", str(self.routes)], None, env)

    def add_shards(self, layout: str, cut: Cut, replicas: int = 1, **env: str) -> list[Child]:
        """Start the shards of one cut; they are in the table from the next `publish` on."""
        added = []
        for start, end in cut:
            for replica in range(replicas):
                arguments = ["--start-layer", str(start), "--end-layer", str(end), "--dtype", "float32"]
                name = f"{layout}-{start}-{end}-{replica}"
                added.append(self.add("shard", name, arguments, (start, end), {"MESHNET_THREADS": "1", **env}))
        self.layouts.setdefault(layout, []).extend(added)
        return added

    def restart(self, child: Child) -> None:
        """Start a dead process again at the same address; it has another uid then."""
        assert child.pid is None
        self.background.call(child.start())

    def kill(self, child: Child, number: int = signal.SIGKILL) -> None:
        assert child.pid is not None, f"{child.name} is not running"
        os.kill(child.pid, number)
        if number == signal.SIGKILL and child.process is not None:
            self.background.call(child.process.wait())

    # routes

    def publish(self, states: dict[str, str] | None = None) -> None:
        """Write a table of all layouts' running shards under a new epoch. states: child name -> draining, suspect."""
        self._epoch += 1
        layouts = []
        for layout, children in self.layouts.items():
            ranges: dict[tuple[int, int], list[Child]] = {}
            for child in children:
                assert child.layers is not None
                ranges.setdefault(child.layers, []).append(child)
            shards = [
                {
                    "name": f"layers-{start}-{end}",
                    "startLayer": start,
                    "endLayer": end,
                    "endpoints": [
                        {
                            "uid": child.uid,
                            "address": f"127.0.0.1:{child.port}",
                            "state": (states or {}).get(child.name, "ready"),
                        }
                        for child in members
                        if child.pid is not None
                    ],
                }
                for (start, end), members in sorted(ranges.items())
            ]
            layouts.append({"id": layout, "fingerprint": "", "state": "active", "shards": shards})
        write_whole(self.routes, json.dumps({"uid": "test", "epoch": self._epoch, "layouts": layouts}))

    # looking

    def mesh(self, head: Child | None = None) -> dict[str, Any]:
        head = head or next(child for child in self.children if child.role == "head")
        found: dict[str, Any] = httpx2.get(f"{head.url}/mesh").json()
        return found

    def wait_ready(self, seconds: float = 120) -> None:
        """Until every head has a complete path and every running shard is ready."""
        for child in self.children:
            path = "/ready" if child.role == "head" else "/readyz"

            def ready(child: Child = child, path: str = path) -> bool:
                if child.pid is None:
                    raise AssertionError(f"{child.name} ended:\n{child.tail(40)}")
                return status_of(f"{child.url}{path}") == 200

            wait_for(ready, seconds, f"{child.name} to be ready")

    def shard_metrics(self, child: Child) -> dict[str, float]:
        """Samples of a shard's /metrics by name (labels included)."""
        return read_metrics(f"{child.url}/metrics")

    def wait_idle(self, seconds: float = 20) -> None:
        """Until no head runs a generation and no shard an active session; without parked ones no byte may be held."""

        def idle() -> bool:
            heads = [child for child in self.children if child.role == "head" and child.pid is not None]
            if any(self.mesh(head)["sessions"]["running"] for head in heads):
                return False
            shards = [child for child in self.children if child.role == "shard" and child.pid is not None]
            return all(_held(self.shard_metrics(shard)) == (0, 0) for shard in shards)

        wait_for(idle, seconds, "all sessions and their bytes to be given back")

    def stop(self) -> None:
        for child in self.children:
            self.background.call(child.stop(5))
        self.background.stop()


def _held(metrics: dict[str, float]) -> tuple[float, float]:
    """Active sessions, and bytes of session state where none is parked either."""
    parked = metrics["meshnet_shard_sessions_parked"]
    return metrics["meshnet_shard_sessions_active"], 0 if parked else metrics["meshnet_shard_state_bytes"]


def read_metrics(url: str) -> dict[str, float]:
    samples = {}
    for line in httpx2.get(url).text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            samples[name] = float(value)
    return samples


def status_of(url: str) -> int:
    try:
        return httpx2.get(url, timeout=2).status_code
    except httpx2.HTTPError:
        return 0


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll until the condition holds; fails with `what` otherwise."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds:.0f} s for {what}")


@dataclass
class Answer:
    """What a streaming client saw: token ids and text with arrival times (monotonic seconds), and how it ended."""

    pieces: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    comments: int = 0
    finish: str | None = None
    error: dict[str, Any] | None = None
    done: bool = False
    status: int = 0

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def longest_pause(self) -> float:
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=0.0)


def stream(
    url: str,
    prompt: Sequence[int],
    tokens: int,
    on_token: Callable[[int], None] = lambda _: None,
    seconds: float = 300,
    **fields: Any,
) -> Answer:
    """Stream POST /v1/completions over token ids, greedy and without an end token; on_token(k) after the k-th token."""
    body = {"model": model_name(url), "prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "stream": True}
    body |= {"ignore_eos": True, "return_token_ids": True, **fields}
    answer = Answer()
    with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=seconds) as response:
        answer.status = response.status_code
        if response.status_code != 200:
            answer.error = json.loads(response.read())["error"]
            return answer
        for line in response.iter_lines():
            _take(answer, line, on_token)
    return answer


def _take(answer: Answer, line: str, on_token: Callable[[int], None]) -> None:
    if line.startswith(":"):
        answer.comments += 1
    elif line == "data: [DONE]":
        answer.done = True
    elif line.startswith("data: "):
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            answer.error = event["error"]
            return
        for choice in event["choices"]:
            answer.pieces.append(choice["text"])
            if choice.get("token_ids"):
                answer.ids.extend(choice["token_ids"])
                answer.times.append(time.monotonic())
                on_token(len(answer.ids))
            answer.finish = choice["finish_reason"] or answer.finish


def model_name(url: str) -> str:
    found: str = httpx2.get(f"{url}/v1/models").json()["data"][0]["id"]
    return found


def kept_running(fleet: Fleet) -> Iterator[Fleet]:
    """For fixtures: hand out, and stop at the end whatever happened."""
    try:
        yield fleet
    finally:
        fleet.stop()
