"""The `meshnet up` command: starts a local mesh, says how it is getting on, and how to talk to it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshnet_node.errors import ConfigError
from meshnet_node.local.layers import parse, split
from meshnet_node.local.mesh import LocalMesh, Plan
from meshnet_node.local.models import local_model

PROGRESS_SECONDS, REMIND_SECONDS = 1.0, 10.0

GREETING = """
{name} is served at {url} in {count} shards ({ranges}).

Ask it something:

  curl -N {url}/v1/chat/completions -d '{{"model": "{name}", "stream": true, "temperature": 0,
    "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

or from Python:

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")
  question = [{{"role": "user", "content": "What is the capital of France?"}}]
  for event in client.chat.completions.create(model="{name}", messages=question, stream=True, temperature=0):
      print(event.choices[0].delta.content or "", end="", flush=True)

See the shards, and what was healed: {url}/mesh   Processes: {state}
Kill one while it answers (kill -9 {victim}) and read on. Ctrl-C ends it all.
"""


@dataclass(frozen=True)
class Wanted:
    """The command line: model, how to cut it (`layers` such as 0-14,15-29 goes before `shards`), and the rest."""

    model: str
    shards: int
    layers: str | None
    replicas: int
    port: int
    dtype: str
    state: Path | None


async def up(wanted: Wanted) -> int:
    """Run until Ctrl-C or SIGTERM. Raises ConfigError or ModelError where model, cut or port can't be, or a process
    does not keep running."""
    check(wanted)
    found = local_model(wanted.model)
    layers = wanted.layers
    ranges = parse(layers, found.num_layers) if layers else split(found.num_layers, wanted.shards)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with tempfile.TemporaryDirectory(prefix="meshnet-") as folder:
        plan = Plan(
            model=found.source,
            ranges=ranges,
            replicas=wanted.replicas,
            port=wanted.port,
            dtype=wanted.dtype,
            served_name=found.name,
            folder=Path(folder),
            state=wanted.state,
        )
        async with LocalMesh(plan, _say) as mesh:
            _say(f"starting {found.name} ({found.num_layers} layers): a head and {len(mesh.shards)} shards")
            await _serve(mesh, found.name, stop)
            _say("stopping")
    return 0


def check(wanted: Wanted) -> None:
    """Raises ConfigError where a number is out of its range, or the port is taken."""
    if wanted.replicas < 1:
        raise ConfigError(f"--replicas {wanted.replicas}: at least 1 process per range is needed")
    if not 1 <= wanted.port <= 65535:
        raise ConfigError(f"--port {wanted.port}: ports are numbers from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted.port))
        except OSError as error:
            raise ConfigError(f"--port {wanted.port} can't be used: {error.strerror}; choose another") from error


async def _serve(mesh: LocalMesh, name: str, stop: asyncio.Event) -> None:
    """Until `stop`; raises what makes going on useless."""
    progress = asyncio.create_task(_progress(mesh))
    try:
        if not await _done_first(mesh.ready(), stop):
            return
        progress.cancel()
        _say(_greeting(mesh, name))
        await _done_first(mesh.watch(), stop)
    finally:
        progress.cancel()


async def _done_first(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Whether the work ended before `stop` was set; raises what it raised."""
    tasks = [asyncio.create_task(work), asyncio.create_task(stop.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            return False
        tasks[0].result()
        return True
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _progress(mesh: LocalMesh) -> None:
    """Say what each shard is doing when that has changed, and now and then when it has not."""
    said: dict[str, tuple[str, float]] = {}
    began = time.monotonic()
    while True:
        now = time.monotonic()
        for child in mesh.shards:
            note, at = said.get(child.name, ("", now))
            if child.ready or not child.layers or (note == child.note and now - at < REMIND_SECONDS):
                continue
            said[child.name] = (child.note, now)
            start, end = child.layers
            _say(f"[{now - began:3.0f} s] {child.name} (layers {start} to {end}): {child.note}")
        await asyncio.sleep(PROGRESS_SECONDS)


def _greeting(mesh: LocalMesh, name: str) -> str:
    ranges = ", ".join(f"layers {start} to {end}" for start, end in mesh.plan.ranges)
    victim = mesh.shards[-1].pid
    return GREETING.format(
        name=name, url=mesh.url, count=len(mesh.plan.ranges), ranges=ranges, state=mesh.state, victim=victim
    )


def _say(text: str) -> None:
    print(text, file=sys.stdout, flush=True)
