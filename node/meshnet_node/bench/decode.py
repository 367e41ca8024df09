"""Tokens a second of one stream: mesh, mesh without caches, and generate, in turns.

The turns alternate, so that a busy moment of the machine does not fall on one of them alone. Rates count the steps
between tokens: the prompt's time is the prefill bench's business, and is given apart as first_token_ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import httpx2

from meshnet_node.bench.client import Timed, checked, complete
from meshnet_node.bench.numbers import flatness, middle, ms, rate, ratio
from meshnet_node.bench.session import Bench, Result

Run = Callable[[list[int], int], Awaitable[Timed]]


@dataclass(frozen=True)
class Sizes:
    """steps: from token to token, so one token more is asked for. runs: the median of so many is given."""

    prompt: int = 44
    steps: int = 40
    runs: int = 3
    warm: int = 8


async def run(bench: Bench, sizes: Sizes = Sizes()) -> Result:
    """Measure. Raises ConfigError when an answer fails."""
    async with (
        bench.mesh("cached") as cached,
        bench.mesh("stateless", environment={"MESHNET_STATELESS": "1"}) as stateless,
        httpx2.AsyncClient() as client,
    ):
        reference = await bench.reference()
        runners: dict[str, Run] = {
            "mesh": lambda prompt, tokens: complete(client, cached, prompt, tokens),
            "stateless": lambda prompt, tokens: complete(client, stateless, prompt, tokens),
            "generate": lambda prompt, tokens: asyncio.to_thread(reference.generate, prompt, tokens),
        }
        for name, runner in runners.items():
            checked(name, await runner(bench.prompt(sizes.prompt), sizes.warm))
        found: dict[str, list[Timed]] = {name: [] for name in runners}
        for number in range(sizes.runs):
            bench.say(f"run {number + 1} of {sizes.runs}")
            prompt = bench.prompt(sizes.prompt)
            for name, runner in runners.items():
                found[name].append(checked(name, await runner(prompt, sizes.steps + 1)))
        cut = [f"{start}-{end}" for start, end in cached.plan.ranges]
        return result(sizes, found) | {"cut": cut, "threads_per_shard": cached.plan.shard_threads}


def result(sizes: Sizes, found: Mapping[str, Sequence[Timed]]) -> Result:
    """The JSON's figures from the runs of each: medians, and ratios of the medians."""
    figures = {name: _figures(timed) for name, timed in found.items()}
    rates = {name: figure["tokens_per_s"] for name, figure in figures.items()}
    expected = [timed.ids for timed in found["generate"]]
    return {
        "prompt_tokens": sizes.prompt,
        "steps": sizes.steps,
        "runs": sizes.runs,
        **figures,
        "ratios": {
            "mesh_to_generate": ratio(rates["mesh"], rates["generate"]),
            "stateless_to_generate": ratio(rates["stateless"], rates["generate"]),
            "mesh_to_stateless": ratio(rates["mesh"], rates["stateless"]),
        },
        "identical": [timed.ids for timed in found["mesh"]] == expected,
        "stateless_identical": [timed.ids for timed in found["stateless"]] == expected,
    }


def rows(found: Result) -> list[list[object]]:
    """The table: heading first."""
    names = ("mesh", "stateless", "generate")
    against = {"mesh": found["ratios"]["mesh_to_generate"], "stateless": found["ratios"]["stateless_to_generate"]}
    same = {"mesh": found["identical"], "stateless": found["stateless_identical"]}
    table: list[list[object]] = [
        ["", "tokens/s", "/ generate", "step ms", "first token ms", "last 10 / first 10 steps", "generate's tokens"]
    ]
    for name in names:
        one = found[name]
        table.append(
            [
                name,
                one["tokens_per_s"],
                against.get(name, 1.0),
                one["step_ms"],
                one["first_token_ms"],
                one["flatness"],
                same.get(name, True),
            ]
        )
    return table


def _figures(runs: Sequence[Timed]) -> dict[str, float]:
    steps = [timed.steps for timed in runs]
    return {
        "tokens_per_s": middle([rate(one) for one in steps]),
        "step_ms": middle([ms(sum(one) / len(one)) for one in steps]),
        "first_token_ms": middle([ms(timed.first) for timed in runs]),
        "flatness": middle([flatness(one) for one in steps], 3),
    }
