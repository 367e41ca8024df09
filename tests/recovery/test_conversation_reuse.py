"""The next turn goes on from what the last one parked, with the same tokens, also when a shard is lost meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest
from meshnet_small import SmallMesh, small_mesh
from meshnet_testing_models import greedy, prompt, uncut, write_model

TWO = [(0, 2), (3, 5)]
NEW = 12


async def two_turns(small: SmallMesh, first: list[int]) -> list[int]:
    """The prompt of the second turn: the first turn, its answer, and something new."""
    await small.add("a", TWO)
    small.publish()
    await small.linked()
    answer = await small.generate(first, NEW, keep=True)
    await parked(small, 1)
    return [*first, *(score.id for score in answer), *prompt(7, 5)]


async def parked(small: SmallMesh, count: int) -> None:
    """Until every shard has parked so many sessions and runs none."""

    def counts(shard: object) -> tuple[int, int]:
        store = shard.loaded.engine.store  # type: ignore[attr-defined]
        if not store.active:
            store.check()
        return store.active, len(store)

    await small.until(
        lambda: all(shard.server is not None and shard.server.look(counts) == (0, count) for shard in small.shards),
        f"{count} parked sessions",
    )


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_next"])
async def test_the_second_turn_computes_only_what_is_new(family: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", family)
    async with small_mesh(model, tmp_path / "mesh") as small:
        second = await two_turns(small, prompt(60, 1))
        answer = await small.generate(second, NEW, keep=True)
        assert [score.id for score in answer] == greedy(uncut(model), second, NEW)
        assert small.cached >= 48, "all that was held, or up to a recurrent state's last snapshot"
        await parked(small, 1)


@pytest.mark.parametrize(("replay_bytes", "kinds"), [(2**30, {"moved"}), (0, {"moved", "rebuild"})])
async def test_a_loss_in_an_adopted_turn_is_healed_from_the_first_turns_log_or_the_tokens(
    replay_bytes: int, kinds: set[str], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model", "llama")
    async with small_mesh(model, tmp_path / "mesh", replay_bytes=replay_bytes) as small:
        second = await two_turns(small, prompt(60, 2))

        async def lose() -> None:
            small.shards[1].crash()
            await asyncio.to_thread(small.shards[1].start)
            small.publish()

        def on_token(seen: int) -> Awaitable[None] | None:
            return lose() if seen == 4 else None

        answer = await small.generate(second, NEW, on_token)
        assert small.cached == 71
        assert [score.id for score in answer] == greedy(uncut(model), second, NEW)
        assert {entry["kind"] for entry in small.mesh.context.telemetry.recent} == kinds
        parked_log = 71 * 64 * 4  # the turn is broken off here: the first turn's rows of 64 float32 are parked again
        assert small.mesh.context.budget.nbytes == (parked_log if replay_bytes else 0)


async def test_another_chat_with_the_same_beginning_copies_and_the_first_still_hits(tmp_path: Path) -> None:
    """exo 1816: an unrelated chat that shares a system prompt must not cost the first one its cache."""
    model = write_model(tmp_path / "model", "llama")
    async with small_mesh(model, tmp_path / "mesh") as small:
        second = await two_turns(small, prompt(80, 3))
        other = [*second[:50], *prompt(9, 8)]
        answer = await small.generate(other, NEW, keep=True)
        assert small.cached == 50
        assert [score.id for score in answer] == greedy(uncut(model), other, NEW)
        await parked(small, 2)
        answer = await small.generate(second, NEW, keep=True)
        assert small.cached == 91
        assert [score.id for score in answer] == greedy(uncut(model), second, NEW)


async def test_a_turn_that_is_broken_off_leaves_the_last_whole_one(tmp_path: Path) -> None:
    """SGLang 36475: the next request goes on from the last completed turn, never from a half-written one."""
    model = write_model(tmp_path / "model", "llama")
    async with small_mesh(model, tmp_path / "mesh") as small:
        second = await two_turns(small, prompt(60, 4))
        leaving = asyncio.create_task(small.generate(second, 200, keep=False))
        await small.until(lambda: bool(small.mesh.context.running), "the second turn to run")
        await asyncio.sleep(0.05)
        leaving.cancel()
        await asyncio.wait({leaving})
        await parked(small, 1)
        answer = await small.generate(second, NEW)
        assert small.cached == 71
        assert [score.id for score in answer] == greedy(uncut(model), second, NEW)
        await small.idle()


async def test_a_turn_whose_shard_leaves_while_it_waits_begins_anew_and_gives_back_the_last_ones_log(
    tmp_path: Path,
) -> None:
    model = write_model(tmp_path / "model", "llama")
    async with small_mesh(model, tmp_path / "mesh") as small:
        await small.add("a", TWO, replicas=2)
        small.publish()
        await small.linked()
        first = prompt(60, 5)
        answer = await small.generate(first, NEW, keep=True)
        second = [*first, *(score.id for score in answer), *prompt(7, 5)]
        context = small.mesh.context
        (entry,) = context.conversations._entries.values()
        left = entry.stages[0].endpoint
        async with small.mesh._admission._turn:
            waiting = asyncio.create_task(small.generate(second, NEW))
            await small.until(lambda: not len(context.conversations), "the parked turn to be taken")
            small.publish(states={left.uid: "draining"})
            await small.until(lambda: left.leaving, "the shard to leave")
        assert [score.id for score in await waiting] == greedy(uncut(model), second, NEW)
        assert small.cached == 0
        assert context.budget.nbytes == 0


async def test_state_that_was_evicted_meanwhile_is_no_harm(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "llama")
    async with small_mesh(model, tmp_path / "mesh") as small:
        second = await two_turns(small, prompt(60, 6))
        (entry,) = small.mesh.context.conversations._entries.values()
        await asyncio.to_thread(small.shards[1].evict, entry.session)
        answer = await small.generate(second, NEW)
        assert small.cached == 0
        assert [score.id for score in answer] == greedy(uncut(model), second, NEW)
        await small.idle()
