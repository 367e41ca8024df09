"""Faults on whole meshes of tiny models, many and fast: whatever happens, each answer is that of the uncut model."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from meshnet_small import SmallMesh, SmallShard, small_mesh
from meshnet_testing_models import FAMILIES, LAYERS, greedy, prompt, uncut, write_model

from meshnet_node.errors import ApiError

LENGTHS = [5, 23, 40, 11, 17]
NEW = 24
TWO = [(0, 2), (3, 5)]
THREE = [(0, 1), (2, 3), (4, 5)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="module")
def judge(llama: Path) -> Callable[[list[int], int], list[int]]:
    model = uncut(llama)
    return lambda ids, count: greedy(model, ids, count)


def ids(scores: list[Any]) -> list[int]:
    return [score.id for score in scores]


async def crash_and_restart(small: SmallMesh, shard: SmallShard, pause: float = 0.0) -> None:
    shard.crash()
    await asyncio.sleep(pause)
    await asyncio.to_thread(shard.start)
    small.publish()


def _family_runs() -> list[Any]:
    """Every family over two and three shards; each second one is left to `make parity`."""
    runs = []
    for number, (family, cut) in enumerate(itertools.product(FAMILIES, (TWO, THREE))):
        marks = [pytest.mark.parity] if number % 4 in (1, 2) else []
        runs.append(pytest.param(family, cut, id=f"{family} over {len(cut)} shards", marks=marks))
    return runs


@pytest.mark.parametrize(("family", "cut"), _family_runs())
async def test_five_ragged_sessions_and_a_loss(family: str, cut: list[tuple[int, int]], tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", family)
    model = uncut(folder)
    prompts = [prompt(length, seed) for seed, length in enumerate(LENGTHS)]
    expected = [greedy(model, ids_, NEW) for ids_ in prompts]
    assert len({token for tokens in expected for token in tokens}) > 20, "too few distinct tokens to prove anything"
    async with small_mesh(folder, tmp_path / "mesh") as small:
        await small.add("a", cut, max_context=128)
        small.publish()
        await small.linked()
        victim = small.shards[random.randrange(len(cut))]

        def lose(seen: int) -> Awaitable[None] | None:
            return crash_and_restart(small, victim) if seen == 9 else None

        async def late(index: int) -> list[int]:
            await asyncio.sleep(0.02 * index)
            return ids(await small.generate(prompts[index], NEW, lose if index == 2 else lambda _: None))

        got = await asyncio.gather(*(late(index) for index in range(len(prompts))))
        assert got == expected
        assert small.mesh.context.telemetry.recent
        await small.idle()


@pytest.mark.parametrize("layer", range(1, LAYERS), ids=lambda layer: f"cut before layer {layer}")
async def test_every_cut(layer: int, llama: Path, judge: Any, tmp_path: Path) -> None:
    ids_ = prompt(70, 1)
    async with small_mesh(llama, tmp_path) as small:
        await small.add("a", [(0, layer - 1), (layer, LAYERS - 1)])
        small.publish()
        await small.linked()
        assert ids(await small.generate(ids_, NEW)) == judge(ids_, NEW)


async def test_overlapping_ranges_run_nothing_twice(llama: Path, judge: Any, tmp_path: Path) -> None:
    ids_ = prompt(33, 2)
    async with small_mesh(llama, tmp_path) as small:
        await small.add("a", [(0, 3), (2, 5)])
        small.publish()
        await small.linked()
        assert ids(await small.generate(ids_, NEW)) == judge(ids_, NEW)


@pytest.mark.parametrize("stateless", [False, True], ids=["cached", "stateless"])
async def test_prompt_lengths_around_the_chunk(stateless: bool, llama: Path, judge: Any, tmp_path: Path) -> None:
    async with small_mesh(llama, tmp_path, stateless=stateless) as small:
        await small.add("a", TWO)
        small.publish()
        await small.linked()
        for length in (1, 2, 15, 16, 17, 33, 200):
            ids_ = prompt(length, length)
            assert ids(await small.generate(ids_, 12)) == judge(ids_, 12), f"prompt of {length}"
        await small.idle()


@pytest.mark.parametrize("stateless", [False, True], ids=["cached", "stateless"])
@pytest.mark.parametrize("hop", [0, 1, 2])
async def test_only_the_lost_hop_is_brought_up_again(
    hop: int, stateless: bool, llama: Path, judge: Any, tmp_path: Path
) -> None:
    ids_ = prompt(30, 3)
    async with small_mesh(llama, tmp_path, stateless=stateless) as small:
        await small.add("a", THREE)
        small.publish()
        await small.linked()

        def lose(seen: int) -> Awaitable[None] | None:
            return crash_and_restart(small, small.shards[hop], 0.2) if seen == 7 else None

        assert ids(await small.generate(ids_, NEW, lose)) == judge(ids_, NEW)
        recent = list(small.mesh.context.telemetry.recent)
        assert {tuple(entry["layers"]) for entry in recent} == {THREE[hop]}  # type: ignore[arg-type]
        if not stateless:
            assert recent[0]["replayed"] in (36, 37)


async def test_a_dropped_log_goes_back_to_the_nearest_complete_boundary(
    llama: Path, judge: Any, tmp_path: Path
) -> None:
    ids_ = prompt(30, 4)
    async with small_mesh(llama, tmp_path, replay_bytes=0) as small:
        await small.add("a", THREE)
        small.publish()
        await small.linked()

        def lose(seen: int) -> Awaitable[None] | None:
            return crash_and_restart(small, small.shards[2]) if seen == 7 else None

        assert ids(await small.generate(ids_, NEW, lose)) == judge(ids_, NEW)
        kinds = [entry["kind"] for entry in small.mesh.context.telemetry.recent]
        assert kinds.count("rebuild") == 2, f"both hops before the lost one make their rows again: {kinds}"
        assert small.mesh.context.budget.dropped > 0


async def test_eviction_on_one_shard_behind_the_heads_back(llama: Path, judge: Any, tmp_path: Path) -> None:
    ids_ = prompt(20, 5)
    async with small_mesh(llama, tmp_path) as small:
        await small.add("a", TWO)
        small.publish()
        await small.linked()

        async def evict() -> None:
            (generation,) = small.mesh.context.running
            await asyncio.to_thread(small.shards[1].evict, generation.session)

        got = await small.generate(ids_, NEW, lambda seen: evict() if seen in (3, 4, 11) else None)
        assert ids(got) == judge(ids_, NEW)
        await small.idle()


async def test_another_cut_takes_over_in_mid_generation(llama: Path, judge: Any, tmp_path: Path) -> None:
    ids_ = prompt(40, 6)
    async with small_mesh(llama, tmp_path) as small:
        old = await small.add("old", TWO)
        small.publish()
        await small.linked()

        async def change() -> None:
            await small.add("new", THREE)
            small.publish()
            await small.linked()
            for shard in old:
                shard.crash()
            del small.layouts["old"]
            small.publish()

        assert ids(await small.generate(ids_, NEW, lambda seen: change() if seen == 5 else None)) == judge(ids_, NEW)
        assert any(entry["kind"] == "repath" for entry in small.mesh.context.telemetry.recent)


async def test_a_frozen_shard_is_left_for_its_replica_and_waited_for_without_one(
    llama: Path, judge: Any, tmp_path: Path
) -> None:
    ids_ = prompt(20, 7)
    async with small_mesh(llama, tmp_path, silent_seconds=0.5) as small:
        await small.add("a", TWO, replicas=2)
        small.publish()
        await small.linked()

        def serving(layers: tuple[int, int]) -> SmallShard:
            (generation,) = small.mesh.context.running
            hop = next(h for h in generation.hops if (h.stage.start_layer, h.stage.end_layer) == layers)
            return next(shard for shard in small.shards if shard.uid == hop.endpoint.uid)

        async def freeze() -> None:
            serving(TWO[0]).freeze()

        got = await small.generate(ids_, NEW, lambda seen: freeze() if seen == 4 else None)
        assert ids(got) == judge(ids_, NEW)
        assert [entry["kind"] for entry in small.mesh.context.telemetry.recent] == ["moved"]
        for shard in small.shards:
            shard.thaw()

        for shard in small.shards[1::2]:
            shard.crash()
        only = small.shards[2]

        async def freeze_for_a_while() -> None:
            only.freeze()
            asyncio.get_running_loop().call_later(1.5, only.thaw)

        before = len(small.mesh.context.telemetry.recent)
        await asyncio.sleep(1.0)
        got = await small.generate(ids_, NEW, lambda seen: freeze_for_a_while() if seen == 4 else None)
        assert ids(got) == judge(ids_, NEW)
        assert len(small.mesh.context.telemetry.recent) == before, "the same attempt is waited for: nothing is replayed"


async def test_the_hold_ends_with_an_error_and_everything_is_given_back(llama: Path, tmp_path: Path) -> None:
    async with small_mesh(llama, tmp_path, hold_seconds=0.5) as small:
        await small.add("a", TWO)
        small.publish()
        await small.linked()

        async def lose() -> None:
            small.shards[1].crash()

        with pytest.raises(ApiError, match="no shard could go on") as caught:
            await small.generate(prompt(9, 8), NEW, lambda seen: lose() if seen == 3 else None)
        assert (caught.value.status, caught.value.code) == (503, "overloaded")
        await small.idle()


async def test_nine_streams_on_eight_places(llama: Path, judge: Any, tmp_path: Path) -> None:
    """The ninth waits for a place and is then served; with no place in time it is refused, and nobody is disturbed."""
    prompts = [prompt(8 + i, i) for i in range(9)]
    async with small_mesh(llama, tmp_path, queue_seconds=30) as small:
        await small.add("a", TWO)
        small.publish()
        await small.linked()
        got = await asyncio.gather(*(small.generate(ids_, NEW) for ids_ in prompts))
        assert [ids(scores) for scores in got] == [judge(ids_, NEW) for ids_ in prompts]
        assert not small.mesh.context.telemetry.recent
        await small.idle()


async def test_the_ninth_is_refused_when_no_place_comes_free(llama: Path, judge: Any, tmp_path: Path) -> None:
    async with small_mesh(llama, tmp_path, queue_seconds=0.3) as small:
        await small.add("a", TWO)
        small.publish()
        await small.linked()
        full = asyncio.Event()
        release = asyncio.Event()

        def hold(seen: int) -> Awaitable[Any] | None:
            if seen == 2 and len(small.mesh.context.running) == 8:
                full.set()
            return release.wait() if seen == 2 else None

        running = [asyncio.create_task(small.generate(prompt(6 + i, i), NEW, hold)) for i in range(8)]
        await asyncio.wait_for(full.wait(), 20)
        with pytest.raises(ApiError, match="full"):
            await small.generate(prompt(5, 99), 4)
        release.set()
        got = [ids(await task) for task in running]
        assert got == [judge(prompt(6 + i, i), NEW) for i in range(8)]
        await small.idle()


async def test_two_heads_on_the_same_shards(llama: Path, judge: Any, tmp_path: Path) -> None:
    async with small_mesh(llama, tmp_path / "one") as one, small_mesh(llama, tmp_path / "two") as two:
        await one.add("a", TWO)
        two.layouts = one.layouts
        for small in (one, two):
            small.publish()
            await small.linked()
        prompts = [prompt(12 + i, i) for i in range(6)]
        got = await asyncio.gather(*((one, two)[i % 2].generate(ids_, NEW) for i, ids_ in enumerate(prompts)))
        assert [ids(scores) for scores in got] == [judge(ids_, NEW) for ids_ in prompts]
        await one.idle()
        two.layouts = {}


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.parity) for n in range(1, 8))])
async def test_random_faults_against_random_load(seed: int, llama: Path, judge: Any, tmp_path: Path) -> None:
    """Crashes, evictions, freezes and drains at random moments, while six streams run: no token is other than alone."""
    rng = random.Random(seed)
    prompts = [prompt(rng.randint(1, 90), 100 * seed + i) for i in range(6)]
    expected = [judge(ids_, 60) for ids_ in prompts]
    async with small_mesh(llama, tmp_path, silent_seconds=0.4, replay_bytes=rng.choice([0, 30_000, 2**30])) as small:
        await small.add("a", THREE, replicas=2)
        small.publish()
        await small.linked()
        done = asyncio.Event()
        faults = asyncio.create_task(_trouble(small, rng, done))
        try:
            got = await asyncio.gather(*(small.generate(ids_, 60) for ids_ in prompts))
        finally:
            done.set()
            await faults
        assert [ids(scores) for scores in got] == expected
        assert len(small.mesh.context.telemetry.recent) > 0
        await small.idle()


async def _trouble(small: SmallMesh, rng: random.Random, done: asyncio.Event) -> None:
    while not done.is_set():
        await asyncio.sleep(rng.uniform(0.05, 0.2))
        shard = rng.choice([shard for shard in small.shards if shard.up])
        fault = rng.choice(["crash", "evict", "evict", "freeze", "drain"])
        if fault == "crash":
            await crash_and_restart(small, shard, rng.uniform(0, 0.2))
        elif fault == "evict" and small.mesh.context.running:
            session = rng.choice(sorted(g.session for g in small.mesh.context.running))
            await asyncio.to_thread(shard.evict, session)
        elif fault == "freeze":
            shard.freeze()
            await asyncio.sleep(rng.uniform(0.1, 0.8))
            shard.thaw()
        elif fault == "drain":
            small.publish(states={shard.uid: "draining"})
            await asyncio.sleep(0.3)
            small.publish()
