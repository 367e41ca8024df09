"""Tokens a second of several streams together: mesh, and generate's batch of the same prompts.

The mesh's streams begin and end on their own; generate's batch is its best case, since all of its prompts are there at
once and end at once. Both are timed from the first request to the last token, prompts included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx2

from meshnet_node.bench.client import Timed, checked, complete
from meshnet_node.bench.numbers import middle, ratio
from meshnet_node.bench.session import Bench, Result

CONNECTIONS = httpx2.Limits(max_connections=None)


@dataclass(frozen=True)
class Sizes:
    """streams: how many at once, in turn. prompt: the shortest; each next one is `longer` tokens longer."""

    streams: tuple[int, ...] = (1, 4, 8, 16)
    prompt: int = 24
    longer: int = 4
    tokens: int = 40
    runs: int = 2


@dataclass
class Turns:
    """Aggregate tokens a second of each run at one number of streams, and how many answers were generate's."""

    mesh: list[float] = field(default_factory=list)
    generate: list[float] = field(default_factory=list)
    same: int = 0
    answers: int = 0


async def run(bench: Bench, sizes: Sizes = Sizes()) -> Result:
    """Measure. Raises ConfigError when an answer fails."""
    sessions = {"MESHNET_KV_MAX_SESSIONS": str(2 * max(sizes.streams))}
    turns = {streams: Turns() for streams in sizes.streams}
    async with bench.mesh("mesh", environment=sessions) as mesh, httpx2.AsyncClient(limits=CONNECTIONS) as client:
        reference = await bench.reference()
        checked("mesh", await complete(client, mesh, bench.prompt(sizes.prompt), sizes.tokens))
        await asyncio.to_thread(reference.generate, bench.prompt(sizes.prompt), sizes.tokens)
        for streams, turn in turns.items():
            for _ in range(sizes.runs):
                bench.say(f"{streams} streams")
                prompts = [bench.prompt(sizes.prompt + sizes.longer * number) for number in range(streams)]
                ours = await asyncio.gather(*(complete(client, mesh, prompt, sizes.tokens) for prompt in prompts))
                theirs = await asyncio.to_thread(reference.generate_batch, prompts, sizes.tokens)
                take(turn, [checked("mesh", answer) for answer in ours], theirs)
    return result(sizes, turns)


def take(turn: Turns, ours: Sequence[Timed], theirs: Sequence[Timed]) -> None:
    """Count one run of both."""
    turn.mesh.append(together(ours))
    turn.generate.append(together(theirs))
    turn.answers += len(ours)
    turn.same += sum(mine.ids == expected.ids for mine, expected in zip(ours, theirs, strict=True))


def together(answers: Sequence[Timed]) -> float:
    """Tokens a second of all answers, from the first request to the last token."""
    began, ended = min(one.began for one in answers), max(one.times[-1] for one in answers)
    return sum(len(one.ids) for one in answers) / (ended - began)


def result(sizes: Sizes, turns: dict[int, Turns]) -> Result:
    """The JSON's figures: medians of the runs."""
    levels = []
    for streams, turn in turns.items():
        mesh, generate = middle(turn.mesh), middle(turn.generate)
        levels.append(
            {
                "streams": streams,
                "mesh_tokens_per_s": mesh,
                "generate_tokens_per_s": generate,
                "ratio": ratio(mesh, generate),
                "answers": turn.answers,
                "identical": turn.same,
            }
        )
    return {"tokens": sizes.tokens, "runs": sizes.runs, "levels": levels}


def rows(found: Result) -> list[list[object]]:
    """The table: heading first."""
    table: list[list[object]] = [["streams", "mesh tokens/s", "generate tokens/s", "ratio", "same tokens"]]
    for level in found["levels"]:
        table.append(
            [
                level["streams"],
                level["mesh_tokens_per_s"],
                level["generate_tokens_per_s"],
                level["ratio"],
                f"{level['identical']} of {level['answers']}",
            ]
        )
    return table
