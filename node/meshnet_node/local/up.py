"""The `meshnet up` command: starts a local mesh, says how it is getting on, and how to talk to it."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from meshnet_node.local.layers import parse, split
from meshnet_node.local.mesh import LocalMesh, Plan
from meshnet_node.local.models import local_model

PROGRESS_SECONDS = 2.0

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
    """Run until Ctrl-C or SIGTERM. Raises ConfigError or ModelError where the model or the cut can't be."""
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
            waiting = asyncio.create_task(mesh.ready())
            stopping = asyncio.create_task(stop.wait())
            progress = asyncio.create_task(_progress(mesh))
            try:
                await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
                progress.cancel()
                if waiting.done():
                    waiting.result()
                    _say(_greeting(mesh, found.name))
                    await stopping
            finally:
                for task in (waiting, stopping, progress):
                    task.cancel()
            _say("stopping")
    return 0


async def _progress(mesh: LocalMesh) -> None:
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        for child in mesh.shards:
            if child.note and not child.ready:
                _say(
                    f"{child.name} (layers {child.layers[0]} to {child.layers[1]}): {child.note}"
                    if child.layers
                    else ""
                )


def _greeting(mesh: LocalMesh, name: str) -> str:
    ranges = ", ".join(f"layers {start} to {end}" for start, end in mesh.plan.ranges)
    victim = mesh.shards[-1].pid
    return GREETING.format(
        name=name, url=mesh.url, count=len(mesh.plan.ranges), ranges=ranges, state=mesh.state, victim=victim
    )


def _say(text: str) -> None:
    print(text, file=sys.stdout, flush=True)
