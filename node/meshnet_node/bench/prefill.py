"""Time to the first token of a long prompt: mesh, and generate asked for one token, in turns."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx2

from meshnet_node.bench.client import Timed, checked, complete
from meshnet_node.bench.numbers import middle, ms, ratio
from meshnet_node.bench.session import Bench, Result


@dataclass(frozen=True)
class Sizes:
    """prompt: tokens. runs: the median of so many is given."""

    prompt: int = 1000
    runs: int = 5
    warm: int = 200


async def run(bench: Bench, sizes: Sizes = Sizes()) -> Result:
    """Measure. Raises ConfigError when an answer fails, or did not compute its whole prompt."""
    ours: list[Timed] = []
    theirs: list[Timed] = []
    async with bench.mesh("mesh") as mesh, httpx2.AsyncClient() as client:
        reference = await bench.reference()
        checked("mesh", await complete(client, mesh, bench.prompt(sizes.warm), 2))
        await asyncio.to_thread(reference.generate, bench.prompt(sizes.warm), 2)
        for number in range(sizes.runs):
            bench.say(f"run {number + 1} of {sizes.runs}")
            prompt = bench.prompt(sizes.prompt)
            ours.append(checked("mesh", await complete(client, mesh, prompt, 1)))
            theirs.append(await asyncio.to_thread(reference.generate, prompt, 1))
    mesh_ms, generate_ms = (middle([ms(one.first) for one in timed]) for timed in (ours, theirs))
    return {
        "prompt_tokens": sizes.prompt,
        "runs": sizes.runs,
        "mesh": {"first_token_ms": mesh_ms, "prompt_tokens_per_s": round(sizes.prompt / mesh_ms * 1000, 1)},
        "generate": {"first_token_ms": generate_ms, "prompt_tokens_per_s": round(sizes.prompt / generate_ms * 1000, 1)},
        "ratios": {"mesh_to_generate": ratio(mesh_ms, generate_ms)},
        "identical": [one.ids for one in ours] == [one.ids for one in theirs],
    }


def rows(found: Result) -> list[list[object]]:
    """The table: heading first."""
    table: list[list[object]] = [["", "first token ms", "prompt tokens/s", "time / generate's", "generate's token"]]
    for name, against, same in (
        ("mesh", found["ratios"]["mesh_to_generate"], found["identical"]),
        ("generate", 1.0, True),
    ):
        table.append([name, found[name]["first_token_ms"], found[name]["prompt_tokens_per_s"], against, same])
    return table
