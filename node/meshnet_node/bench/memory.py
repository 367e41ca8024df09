"""What a shard process takes: peak memory beside the bytes of its own range, and state per position of a session.

"Without weights" is the same process serving as many layers of a tiny model: the same imports, the same threads, nearly
no weights. Peaks are the kernel's own high-water marks (VmHWM), read when the weights are loaded and the probe has run,
and again after a generation. Beside them stands a process that holds the whole model and runs generate.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2

from meshnet_node.bench.client import checked, complete
from meshnet_node.bench.numbers import ratio
from meshnet_node.bench.session import POLL_SECONDS, Bench, Result
from meshnet_node.errors import ConfigError
from meshnet_node.local.child import Child
from meshnet_node.local.files import write_token
from meshnet_node.local.mesh import LocalMesh, free_port

READY_SECONDS = 180.0
STOP_SECONDS = 5.0
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Sizes:
    """The generation during which the state of a session is read."""

    prompt: int = 200
    tokens: int = 40

    @property
    def positions(self) -> int:
        """What a shard reserves for it: the last token is never fed."""
        return self.prompt + self.tokens - 1


@dataclass
class Shard:
    """One shard process, in bytes. base_peak: the peak of the same process without weights."""

    layers: tuple[int, int]
    weights: int
    loaded_peak: int
    base_peak: int = 0
    served_peak: int = 0
    state: int = 0


async def run(bench: Bench, sizes: Sizes = Sizes()) -> Result:
    """Measure. Raises ConfigError when a process or an answer fails."""
    async with httpx2.AsyncClient() as client:
        async with bench.mesh("mesh") as mesh:
            shards = [await _loaded(client, child) for child in mesh.shards]
            for shard, state in zip(shards, await _states(bench, client, mesh, sizes), strict=True):
                shard.state = state
            for shard, child in zip(shards, mesh.shards, strict=True):
                shard.served_peak = peak(_pid(child))
            arguments, environment = mesh.shards[0].arguments, mesh.shards[0].environment
        bench.say("the same processes without weights")
        await asyncio.to_thread(_write_twin, bench)
        twins = [_twin(bench, number, arguments, environment, shard.layers) for number, shard in enumerate(shards)]
        bases = await asyncio.gather(*(_peak_alone(client, twin) for twin in twins))
    for shard, base in zip(shards, bases, strict=True):
        shard.base_peak = base
    bench.say("one process with the whole model and generate")
    whole = await _whole(bench, sizes)
    return result(sizes, shards, whole)


def result(sizes: Sizes, shards: Sequence[Shard], whole: int) -> Result:
    """The JSON's figures."""
    ranges = [_figures(sizes, shard) for shard in shards]
    largest = max(shard.served_peak for shard in shards)
    return {
        "positions": sizes.positions,
        "shards": ranges,
        "worst_ratio_to_own_range": max(one["ratio_to_own_range"] for one in ranges),
        "generate_peak_mb": round(whole / MEGABYTE, 1),
        "ratios": {"largest_shard_to_generate": ratio(largest, whole)},
        "notes": ["peaks are VmHWM; net = peak when loaded - peak of the same process without weights"],
    }


def rows(found: Result) -> list[list[object]]:
    """The table: heading first."""
    heading = ["", "peak MB", "without weights MB", "net MB", "own range MB", "net / own range", "after serving MB"]
    table: list[list[object]] = [[*heading, "state bytes per position"]]
    for one in found["shards"]:
        start, end = one["layers"]
        names = ("peak_mb", "base_mb", "net_mb", "weights_mb", "ratio_to_own_range", "served_peak_mb")
        table.append([f"layers {start} to {end}", *(one[name] for name in names), one["state_bytes_per_position"]])
    return [*table, ["generate, whole model", *[None] * 5, found["generate_peak_mb"], None]]


def peak(pid: int) -> int:
    """The most resident memory that this process ever had, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    raise ConfigError("this system does not tell the peak memory of a process (VmHWM)")


def _figures(sizes: Sizes, shard: Shard) -> Result:
    net = shard.loaded_peak - shard.base_peak
    return {
        "layers": list(shard.layers),
        "peak_mb": round(shard.loaded_peak / MEGABYTE, 1),
        "base_mb": round(shard.base_peak / MEGABYTE, 1),
        "net_mb": round(net / MEGABYTE, 1),
        "weights_mb": round(shard.weights / MEGABYTE, 1),
        "ratio_to_own_range": ratio(net, shard.weights),
        "served_peak_mb": round(shard.served_peak / MEGABYTE, 1),
        "state_bytes": shard.state,
        "state_bytes_per_position": round(shard.state / sizes.positions, 1),
    }


def _pid(child: Child) -> int:
    if child.pid is None:
        raise ConfigError(f"{child.name} ended:\n{child.tail()}")
    return child.pid


async def _loaded(client: httpx2.AsyncClient, child: Child) -> Shard:
    body = (await client.get(f"{child.url}/readyz")).json()
    return Shard(child.layers or (0, 0), int(body["total_bytes"]), peak(_pid(child)))


async def _states(bench: Bench, client: httpx2.AsyncClient, mesh: LocalMesh, sizes: Sizes) -> list[int]:
    """Bytes of session state at each shard while one generation runs, from the shards' own metrics."""
    midway = asyncio.Event()

    def on_token(seen: int) -> None:
        if seen == max(1, sizes.tokens // 2):
            midway.set()

    answering = asyncio.create_task(complete(client, mesh, bench.prompt(sizes.prompt), sizes.tokens, on_token))
    waiting = asyncio.create_task(midway.wait())
    await asyncio.wait({answering, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    states = [await _state_bytes(client, child) for child in mesh.shards]
    checked("mesh", await answering)
    return states


async def _state_bytes(client: httpx2.AsyncClient, child: Child) -> int:
    name = "meshnet_shard_state_bytes "
    for line in (await client.get(f"{child.url}/metrics")).text.splitlines():
        if line.startswith(name):
            return int(float(line.removeprefix(name)))
    raise ConfigError(f"{child.name} tells no {name.strip()}")


def _write_twin(bench: Bench) -> None:
    from meshnet_node.bench.reference import write_twin

    write_twin(bench.folder / "twin", bench.model.num_layers, bench.dtype)


def _twin(
    bench: Bench, number: int, arguments: Sequence[str], environment: Mapping[str, str], layers: tuple[int, int]
) -> Child:
    """The shard's own command line over the tiny model; nobody will talk to it, so its token is its own."""
    port = free_port()
    token = bench.folder / "twin-token"
    write_token(token)
    changed = {
        "--model": str(bench.folder / "twin"),
        "--port": str(port),
        "--start-layer": str(layers[0]),
        "--end-layer": str(layers[1]),
    }
    own = list(arguments)
    for option, value in changed.items():
        own[own.index(option) + 1] = value
    name = f"twin-{number}"
    return Child(
        "shard",
        name,
        port,
        own,
        {**environment, "MESHNET_TOKEN_FILE": str(token)},
        bench.folder / f"{name}.log",
        layers,
    )


async def _peak_alone(client: httpx2.AsyncClient, child: Child) -> int:
    """Start it, wait until it is ready, read its peak, and end it."""
    await child.start()
    try:
        async with asyncio.timeout(READY_SECONDS):
            while True:
                pid = _pid(child)
                try:
                    if (await client.get(f"{child.url}/readyz")).status_code == 200:
                        return peak(pid)
                except httpx2.HTTPError:
                    pass
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise ConfigError(f"{child.name} was not ready in {READY_SECONDS:.0f} s:\n{child.tail()}") from None
    finally:
        await child.stop(STOP_SECONDS)


async def _whole(bench: Bench, sizes: Sizes) -> int:
    """Peak bytes of a process of its own that loads the whole model and generates as much."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "meshnet_node.bench.whole",
        bench.model.source,
        bench.dtype,
        str(sizes.prompt),
        str(sizes.tokens),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise ConfigError("the process with the whole model failed; its errors are above")
    return int(out)
