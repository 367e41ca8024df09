"""What each fault costs a reader: the longest pause, the rows computed again, and whether the tokens stayed the same.

Each fault hits the shard of the last range in the middle of a stream. stall_ms is the client's: the longest pause after
the fault, less the usual one. It is put beside what starting over costs: generate's time for the prompt and the tokens
that were there already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import httpx2

from meshnet_node.bench.client import Timed, complete
from meshnet_node.bench.faults import FAULTS, Fault, Scene, recoveries, scene
from meshnet_node.bench.numbers import ms, ratio
from meshnet_node.bench.session import Bench, Result, all_linked, describe
from meshnet_node.errors import ConfigError
from meshnet_node.local.mesh import LocalMesh


@dataclass(frozen=True)
class Sizes:
    """The fault comes when the client has seen `at` of `tokens`: enough are left on a quick machine for the two seconds
    within which a draining shard is left."""

    prompt: int = 200
    tokens: int = 160
    at: int = 30
    faults: Sequence[Fault] = FAULTS


async def run(bench: Bench, sizes: Sizes = Sizes()) -> Result:
    """Measure every fault; an answer that fails is counted, not raised."""
    reference = await bench.reference()
    found: list[Result] = []
    for replicas in sorted({fault.replicas for fault in sizes.faults}, reverse=True):
        async with bench.mesh(f"mesh-{replicas}", replicas=replicas) as mesh, httpx2.AsyncClient() as client:
            await complete(client, mesh, bench.prompt(sizes.prompt), 4)
            for fault in sizes.faults:
                if fault.replicas != replicas:
                    continue
                prompt = bench.prompt(sizes.prompt)
                answer, what, healed = await disturbed(client, mesh, prompt, sizes, fault)
                what.mesh.mark(what.victim, "ready")
                # Also before the reference is timed: a process that starts again would take its cores.
                await all_linked(mesh)
                expected = await asyncio.to_thread(reference.generate, prompt, sizes.tokens)
                row = figures(answer, expected, healed, sizes.at)
                bench.say(f"{fault.name}: {row}")
                found.append({"fault": fault.name, "replicas": replicas} | row)
    return {
        "prompt_tokens": sizes.prompt,
        "tokens": sizes.tokens,
        "fault_at": sizes.at,
        "faults": found,
        "identical": all(one["identical"] for one in found),
        "errors": sum(one["errors"] for one in found),
    }


async def disturbed(
    client: httpx2.AsyncClient, mesh: LocalMesh, prompt: list[int], sizes: Sizes, fault: Fault
) -> tuple[Timed, Scene, list[Result]]:
    """One stream with its fault: what the client saw, where it struck, and what the head healed."""
    moment = asyncio.Event()

    def on_token(seen: int) -> None:
        if seen == sizes.at:
            moment.set()

    async def strike() -> Scene:
        await moment.wait()
        found = await scene(client, mesh)
        await fault.act(found)
        return found

    striking = asyncio.create_task(strike())
    try:
        answer = await complete(client, mesh, prompt, sizes.tokens, on_token)
        if not moment.is_set():
            raise ConfigError(f"{fault.name}: the answer ended before its fault: {answer.error}")
        what = await striking
    finally:
        striking.cancel()
    return answer, what, recoveries(await describe(client, mesh), what.session)


def figures(answer: Timed, expected: Timed, healed: Sequence[Result], at: int) -> Result:
    """One fault's row. head_stall_ms: from the fault to the next new position, as the head saw it; None where it saw
    none. start_over_ms: generate's time to the token of the fault."""
    usual = median(answer.steps)
    stall = max(answer.steps[at - 1 :], default=usual) - usual
    over = expected.times[at - 1] - expected.began
    stalls = [entry["stall_ms"] for entry in healed if "stall_ms" in entry]
    return {
        "identical": answer.ids == expected.ids,
        "errors": int(answer.failed),
        "stall_ms": ms(stall),
        "head_stall_ms": max(stalls, default=None),
        "replayed_rows": sum(entry["replayed"] for entry in healed),
        "recoveries": [f"{entry['cause']}: {entry['kind']}" for entry in healed],
        "usual_pause_ms": ms(usual),
        "start_over_ms": ms(over),
        "stall_to_start_over": ratio(stall, over),
    }


def rows(found: Result) -> list[list[object]]:
    """The table: heading first."""
    table: list[list[object]] = [
        [
            "fault",
            "generate's tokens",
            "errors",
            "stall ms",
            "head's stall ms",
            "rows replayed",
            "stall / starting over",
        ]
    ]
    for one in found["faults"]:
        table.append(
            [
                one["fault"],
                one["identical"],
                one["errors"],
                one["stall_ms"],
                one["head_stall_ms"],
                one["replayed_rows"],
                one["stall_to_start_over"],
            ]
        )
    return table
