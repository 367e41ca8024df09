"""What really crosses the wire between head and shards, seen by a tap between them, not by the code that makes it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
from meshnet_fleet import read_metrics
from meshnet_small import small_mesh
from meshnet_tap import Tap, tapped
from meshnet_testing_models import prompt, write_model

from meshnet_node.wire.content import EMPTY, extend, unpack_tokens
from meshnet_node.wire.frames import Close, Hello, Open, Proof

HIDDEN = 64
CUT = [(0, 1), (2, 3), (4, 5)]
BYTES_PER_LAYER_AND_POSITION = 2 * 2 * 16 * 4  # keys and values, two shared heads of 16, float32
NEW = 10


async def test_one_session_id_and_one_row_of_hidden_state_per_hop(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "llama")
    prompts = [prompt(20, 1), prompt(37, 2)]
    held: dict[int, float] = {}
    async with AsyncExitStack() as stack:
        small = await stack.enter_async_context(small_mesh(model, tmp_path / "mesh"))
        taps: list[Tap] = []
        for shard in await small.add("a", CUT):
            tap = await stack.enter_async_context(tapped(shard.port))
            shard.advertised = tap.port
            taps.append(tap)
        small.publish()
        await small.linked()

        async def look() -> None:
            for index, shard in enumerate(small.shards):
                metrics = await asyncio.to_thread(read_metrics, f"http://127.0.0.1:{shard.port}/metrics")
                held[index] = metrics["meshnet_shard_state_bytes"]

        answers = [await small.generate(ids, NEW, lambda seen: look() if seen == 4 else None) for ids in prompts]
        await small.idle()

    for index, tap in enumerate(taps):
        opened = tap.frames(Open)
        assert len({frame.session for frame in opened}) == len(opened) == len(prompts), (
            "one id, opened once, per generation"
        )
        assert [frame.session for frame in tap.frames(Close)] == [frame.session for frame in opened]
        assert all(len(frame.session) == 32 for frame in opened)
        assert [frame.session for frame in opened] == [frame.session for frame in taps[0].frames(Open)], (
            "the same id on all hops"
        )
        assert all(frame.start_layer == CUT[index][0] for frame in opened)

        rows = [(row, sizes) for frame, per_row in tap.rows() for row, sizes in zip(frame.rows, per_row, strict=True)]
        decode = [(row, sizes) for row, sizes in rows if row.n == 1]
        assert len(decode) == len(prompts) * (NEW - 1)
        for row, sizes in decode:
            shapes = [] if index == 0 else [[1, 1, HIDDEN]]
            assert [spec.shape for spec in row.tensors] == shapes
            assert sizes == [HIDDEN * 4 for _ in shapes]
            assert len(row.tokens) == 4, "the token's id goes to every hop"
        for frame, per_row in tap.results():
            for answer, sizes in zip(frame.rows, per_row, strict=True):
                if index == len(taps) - 1:
                    assert not answer.tensors
                    assert sizes == []
                else:
                    assert [spec.shape for spec in answer.tensors] == [[1, answer.n, HIDDEN]]
                    assert sizes == [answer.n * HIDDEN * 4]

        for session, ids, scores in zip(opened, prompts, answers, strict=True):
            mine = [row for row, _ in rows if row.session == session.session]
            sent = [token for row in mine for token in unpack_tokens(row.tokens)]
            everything = [*ids, *(score.id for score in scores)]
            assert sent == everything[:-1], "each position once, in order"
            hashes = [EMPTY, *extend(EMPTY, everything)]
            assert [row.hash for row in mine] == [hashes[row.past_len] for row in mine]

    reserved = [len(ids) + NEW - 1 for ids in prompts]
    layers = [end - start + 1 for start, end in CUT]
    assert list(held.values()) == [reserved[-1] * count * BYTES_PER_LAYER_AND_POSITION for count in layers], (
        "each shard holds the state of its own layers and nothing else"
    )


async def test_the_token_never_crosses_the_wire(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", "llama")
    secret = "a-shard-token-that-must-stay-home"
    token_file = tmp_path / "token"
    token_file.write_text(secret + "\n")
    async with AsyncExitStack() as stack:
        small = await stack.enter_async_context(small_mesh(model, tmp_path / "mesh", token_file=token_file))
        (shard,) = await small.add("a", [(0, 5)], token_file=token_file)
        tap = await stack.enter_async_context(tapped(shard.port))
        shard.advertised = tap.port
        small.publish()
        await small.linked()
        assert len(await small.generate(prompt(5, 1), 3)) == 3
        refused = await asyncio.to_thread(httpx2.get, f"http://127.0.0.1:{shard.port}/v1/info")
        assert refused.status_code == 401
    assert len(tap.frames(Hello)) == len(tap.frames(Proof)) == 2, "one hello for decode, one for bulk"
    assert len({frame.nonce for frame in tap.frames(Hello)}) == 2
    assert secret not in repr(tap)
