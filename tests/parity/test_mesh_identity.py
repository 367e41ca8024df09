"""The demo model through a whole mesh: every answer is that of generate, greedy, float32, token for token."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from meshnet_prose import prompt_maker
from meshnet_reference import Reference
from meshnet_small import SmallMesh, small_mesh

from meshnet_node.local.layers import split
from meshnet_node.local.models import local_model

Prose = Callable[..., list[int]]
CUTS = {
    "one shard": [(0, 29)],
    "two shards": [(0, 14), (15, 29)],
    "three uneven shards": [(0, 1), (2, 20), (21, 29)],
    "three shards": split(30, 3),
    "five shards": split(30, 5),
    "one layer first": [(0, 0), (1, 29)],
    "one layer last": [(0, 28), (29, 29)],
}


async def run(small: SmallMesh, reference: Reference, prompt: list[int], tokens: int) -> None:
    scores = await small.generate(prompt, tokens)
    reference.check(prompt, [score.id for score in scores], tokens)


async def test_eight_ragged_streams_in_each_others_company(
    demo_folder: Path, reference: Reference, prose: Prose, tmp_path: Path
) -> None:
    lengths = [1, 2, 44, 127, 128, 129, 200, 300]
    async with small_mesh(demo_folder, tmp_path, max_context=2048, chunk=128) as small:
        await small.add("a", CUTS["two shards"])
        small.publish()
        await small.linked()
        await asyncio.gather(*(run(small, reference, prose(n, n), 24) for n in lengths))
        await small.idle()


@pytest.mark.parametrize("cut", ["one shard", "three uneven shards"])
async def test_other_cuts(cut: str, demo_folder: Path, reference: Reference, prose: Prose, tmp_path: Path) -> None:
    async with small_mesh(demo_folder, tmp_path, max_context=2048, chunk=128) as small:
        await small.add("a", CUTS[cut])
        small.publish()
        await small.linked()
        await run(small, reference, prose(200, 200), 24)


async def test_stateless(demo_folder: Path, reference: Reference, prose: Prose, tmp_path: Path) -> None:
    async with small_mesh(demo_folder, tmp_path, max_context=2048, stateless=True) as small:
        await small.add("a", CUTS["two shards"])
        small.publish()
        await small.linked()
        await run(small, reference, prose(60, 60), 16)


@pytest.mark.parity
@pytest.mark.parametrize("cut", CUTS)
async def test_long_answers_over_every_cut(
    cut: str, demo_folder: Path, reference: Reference, prose: Prose, tmp_path: Path
) -> None:
    async with small_mesh(demo_folder, tmp_path, max_context=2048, chunk=128) as small:
        await small.add("a", CUTS[cut])
        small.publish()
        await small.linked()
        for length in (1, 44, 500, 1500):
            await run(small, reference, prose(length, length), 300)
        await asyncio.gather(*(run(small, reference, prose(30 + 17 * i, i), 300) for i in range(8)))
        await small.idle()


@pytest.mark.parity
@pytest.mark.parametrize("length", [1, 200])
async def test_long_stateless(
    length: int, demo_folder: Path, reference: Reference, prose: Prose, tmp_path: Path
) -> None:
    async with small_mesh(demo_folder, tmp_path, max_context=2048, stateless=True) as small:
        await small.add("a", CUTS["two shards"])
        small.publish()
        await small.linked()
        await run(small, reference, prose(length, length), 100)


@pytest.mark.parity
@pytest.mark.parametrize("seed", range(8))
async def test_long_answers_with_losses_at_random_steps(
    seed: int, demo_folder: Path, reference: Reference, prose: Prose, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    async with small_mesh(demo_folder, tmp_path, max_context=2048, chunk=128) as small:
        await small.add("a", CUTS[rng.choice(["two shards", "three uneven shards"])], replicas=2)
        small.publish()
        await small.linked()
        moments = set(rng.sample(range(2, 295), 3))

        async def lose() -> None:
            victim = rng.choice([shard for shard in small.shards if shard.up])
            victim.crash()
            await asyncio.to_thread(victim.start)
            small.publish()

        def on_token(seen: int) -> Awaitable[None] | None:
            return lose() if seen in moments else None

        prompts = [prose(rng.randint(1, 600), seed * 10 + i) for i in range(4)]
        got = await asyncio.gather(
            *(small.generate(ids, 300, on_token) for ids in prompts[:1]),
            *(small.generate(ids, 300) for ids in prompts[1:]),
        )
        for ids, scores in zip(prompts, got, strict=True):
            reference.check(ids, [score.id for score in scores], 300)
        await small.idle()


@pytest.mark.parity
@pytest.mark.real_model
async def test_cached_equals_stateless_on_a_real_model(demo_folder: Path, tmp_path: Path) -> None:
    """The golden test: MESHNET_REAL_MODEL_TESTS=1 MESHNET_REAL_MODEL=<id or folder>; the demo model by default."""
    asked = os.environ.get("MESHNET_REAL_MODEL_TESTS") == "1"
    model = local_model(os.environ["MESHNET_REAL_MODEL"] if asked else str(demo_folder))
    folder = Path(model.source)
    reference = Reference(folder)
    prompt = prompt_maker(reference.encode)(80, 3)
    answers = []
    for stateless in (False, True):
        async with small_mesh(folder, tmp_path / str(stateless), max_context=256, stateless=stateless) as small:
            await small.add("a", split(model.num_layers, 2))
            small.publish()
            await small.linked()
            answers.append([score.id for score in await small.generate(prompt, 32)])
    reference.check(prompt, answers[0], 32)
    assert answers[0] == answers[1]
