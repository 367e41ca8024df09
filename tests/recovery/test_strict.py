"""Strict determinism: in bfloat16 too the tokens are the same, alone and in company, with losses and without."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import meshnet_testing_models as models
import pytest
from meshnet_small import SmallMesh, small_mesh

from meshnet_node.head.shapes import Shapes
from meshnet_node.wire.frames import Score

CUT = [(0, 2), (3, 5)]
PROMPTS = [models.prompt(length, seed) for seed, length in enumerate((37, 5, 64, 90))]
NEW = 60


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_model(tmp_path_factory.mktemp("strict") / "model", "llama")


def ids(scores: list[Score]) -> list[int]:
    return [score.id for score in scores]


async def mesh_of(small: SmallMesh, dtype: str) -> None:
    # One after the other: transformers sets the process's default dtype while it builds a model.
    for part in CUT * 3:
        await small.add("a", [part], dtype=dtype, determinism="strict", chunk=32)
    small.publish()
    await small.linked()


async def test_bfloat16_with_company_and_losses_gives_the_tokens_of_an_undisturbed_answer(
    llama: Path, tmp_path: Path
) -> None:
    async with small_mesh(llama, tmp_path, chunk=32) as small:
        await mesh_of(small, "bfloat16")
        # With log-probabilities: their last bits move long before a token does.
        alone = [await small.generate(prompt, NEW, logprobs=1) for prompt in PROMPTS]

        async def lose(layers: tuple[int, int]) -> None:
            """The replica that serves the first of the running answers."""
            hops = next(g for g in small.mesh.context.running if list(g.request.prompt) == PROMPTS[0]).hops
            uid = next(hop.endpoint.uid for hop in hops if (hop.stage.start_layer, hop.stage.end_layer) == layers)
            victim = next(shard for shard in small.shards if shard.uid == uid)
            victim.crash()

        def on_token(seen: int) -> Awaitable[None] | None:
            layers = {7: CUT[0], 23: CUT[1], 41: CUT[1]}.get(seen)
            return None if layers is None else lose(layers)

        disturbed = await asyncio.gather(
            small.generate(PROMPTS[0], NEW, on_token, logprobs=1),
            *(small.generate(prompt, NEW, logprobs=1) for prompt in PROMPTS[1:]),
        )
        assert disturbed == alone
        assert small.mesh.context.telemetry.recent
        await small.idle()


async def test_float32_is_what_generate_says(llama: Path, tmp_path: Path) -> None:
    model = models.uncut(llama)
    async with small_mesh(llama, tmp_path, chunk=32) as small:
        await mesh_of(small, "float32")
        for prompt in PROMPTS:
            assert ids(await small.generate(prompt, NEW)) == models.greedy(model, prompt, NEW)


async def test_no_turn_adopts_the_state_of_another(llama: Path, tmp_path: Path) -> None:
    """Its shapes were those of another prompt."""
    async with small_mesh(llama, tmp_path, chunk=32) as small:
        await mesh_of(small, "float32")
        first = await small.generate(PROMPTS[0], 8, keep=True)
        await small.generate([*PROMPTS[0], *ids(first), 5, 6], 8)
        assert small.cached == 0


async def test_strict_shards_and_others_are_no_replicas_of_each_other(llama: Path, tmp_path: Path) -> None:
    async with small_mesh(llama, tmp_path) as small:
        await small.add("a", [(0, 5)], determinism="strict")
        await small.add("a", [(0, 5)])
        await small.add("a", [(0, 5)], determinism="strict", chunk=64)
        small.publish()
        await small.linked()
        infos = [endpoint.link.info for endpoint in small.mesh.context.endpoints.all.values() if endpoint.link]
        assert len({info.fingerprint for info in infos}) == 3


@pytest.mark.parametrize(
    ("begin", "end"), [(0, 32), (31, 32), (32, 64), (64, 70), (69, 70), (70, 71), (71, 72), (96, 97)]
)
def test_a_piece_ends_with_its_chunk_the_prompt_or_the_token(begin: int, end: int) -> None:
    assert Shapes(70, 32).end(begin) == end


@pytest.mark.parametrize(
    ("filled", "begin"), [(0, 0), (31, 0), (32, 32), (33, 0), (64, 64), (69, 0), (70, 70), (75, 75)]
)
def test_a_resume_begins_where_a_piece_began_or_at_nothing(filled: int, begin: int) -> None:
    assert Shapes(70, 32).begin(filled) == begin
