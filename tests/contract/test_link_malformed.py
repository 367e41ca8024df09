"""Frames that break the contract: each is answered, none is fatal, and a row in order is served right after."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from meshnet_shard_server import Head, ShardServer, dial, make_row
from meshnet_testing_models import VOCABULARY, prompt
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from meshnet_node.wire import handshake
from meshnet_node.wire.codec import decode, encode
from meshnet_node.wire.content import pack_tokens
from meshnet_node.wire.frames import (
    Challenge,
    Close,
    Error,
    Forward,
    Hello,
    Open,
    Opened,
    Proof,
    Row,
    Sampling,
    TensorSpec,
)

IDS = prompt(10, 1)
GOOD = make_row("bad", IDS, 0, 10)


def header(content: dict[str, Any]) -> bytes:
    raw = msgspec.msgpack.encode(content)
    return struct.pack("<I", len(raw)) + raw


WHOLE_FRAMES: dict[str, bytes] = {
    "empty": b"",
    "shorter than its length field": b"\x01\x02",
    "length beyond the message": struct.pack("<I", 500) + b"\x80",
    "absurd length": struct.pack("<I", 2**32 - 1) + b"\x80",
    "not msgpack": struct.pack("<I", 4) + b"\xc1\xc1\xc1\xc1",
    "not a map": header([1, 2, 3]),  # type: ignore[arg-type]
    "no kind": header({"session": "x"}),
    "unknown kind": header({"kind": "shutdown"}),
    "field of another type": header({"kind": "ping", "seq": "one"}),
    "missing field": header({"kind": "open", "session": "x"}),
    "number too large": header({"kind": "ping", "seq": -(2**63)})[:-1],
    "nested for ever": struct.pack("<I", 100_000) + b"\x91" * 100_000,
    "truncated forward": encode(Forward([GOOD]))[:-7],
    "bytes after the last tensor": encode(Forward([GOOD])) + b"\0" * 40,
    "a frame of the shard's": header({"kind": "closed", "session": "x"}),
    "a second hello": encode(Hello(instance="x", nonce=bytes(32))),
    "too many rows": encode(Forward([GOOD] * 1025)),
    "tensor longer than the message": encode(
        Forward([msgspec.structs.replace(GOOD, tensors=[TensorSpec("hidden", "float32", [1, 10, 64])])])
    ),
    "absurd shape": encode(
        Forward([msgspec.structs.replace(GOOD, tensors=[TensorSpec("hidden", "float32", [2**40, 2**40, 64])])])
    ),
    "negative shape": encode(
        Forward([msgspec.structs.replace(GOOD, tensors=[TensorSpec("hidden", "float32", [1, -10, 64])])])
    ),
    "unknown dtype": encode(
        Forward([msgspec.structs.replace(GOOD, tensors=[TensorSpec("hidden", "complex64", [1, 10, 64])])])
    ),
}


@pytest.mark.parametrize("name", WHOLE_FRAMES)
async def test_a_frame_that_can_not_be_read_is_answered(whole: ShardServer, name: str) -> None:
    head = await dial(whole)
    await head.socket.send(WHOLE_FRAMES[name])
    answer = await head.receive()
    assert isinstance(answer, Error)
    assert answer.code in ("bad_frame", "too_large")
    assert answer.session == ""
    await still_serves(head)


async def test_a_text_message_is_answered_like_any_other(whole: ShardServer) -> None:
    head = await dial(whole)
    await head.socket.send("forward, please")
    assert isinstance(await head.receive(), Error)
    await still_serves(head)


def fresh() -> str:
    """A session id that no other test closed."""
    return secrets.token_hex(8)


async def still_serves(head: Head, *opened: str) -> None:
    """The connection works as before; `opened` are sessions to end."""
    pong = await head.ping(7)
    assert pong.seq == 7
    session = fresh()
    assert isinstance(await head.open(session), Opened)
    result = await head.row(make_row(session, IDS, 0, 10, want="last"))
    assert result.error is None
    assert result.token is not None
    for name in (session, *opened):
        await head.close(Close(name, 1))
    await head.socket.close()


def changed(**fields: Any) -> Callable[[], Row]:
    return lambda: msgspec.structs.replace(GOOD, **fields)


def sampled(**fields: Any) -> Callable[[], Row]:
    return lambda: msgspec.structs.replace(GOOD, want="last", sampling=Sampling(**fields))


ROWS: dict[str, tuple[Callable[[], Row], str]] = {
    "no positions": (changed(n=0, tokens=b""), "bad_frame"),
    "negative past_len": (changed(past_len=-1), "bad_frame"),
    "fewer tokens than n": (changed(tokens=pack_tokens(IDS[:9])), "bad_frame"),
    "odd token bytes": (changed(tokens=pack_tokens(IDS)[:-1]), "bad_frame"),
    "token beyond the vocabulary": (changed(tokens=pack_tokens([*IDS[:9], VOCABULARY])), "bad_frame"),
    "negative token": (changed(tokens=pack_tokens([*IDS[:9], -1])), "bad_frame"),
    "short hash": (changed(hash=b"1234"), "bad_frame"),
    "absurd n": (changed(n=2**40), "too_large"),
    "absurd past_len": (changed(past_len=2**62), "too_large"),
    "beyond the context": (changed(past_len=510), "too_large"),
    "attempt beyond counting": (changed(attempt=2**63), "bad_frame"),
    "negative step": (changed(step=-1), "bad_frame"),
    "no session": (changed(session=""), "bad_frame"),
    "endless session id": (changed(session="x" * 5000), "bad_frame"),
    "mode none not from 0": (changed(mode="none", past_len=3), "bad_frame"),
    "targets missing": (changed(want="all"), "bad_frame"),
    "temperature nan": (sampled(temperature=float("nan")), "bad_frame"),
    "temperature below 0": (sampled(temperature=-1.0), "bad_frame"),
    "top_p above 1": (sampled(top_p=1.5), "bad_frame"),
    "penalty infinite": (sampled(presence_penalty=float("inf")), "bad_frame"),
    "repetition penalty 0": (sampled(repetition_penalty=0.0), "bad_frame"),
    "bias beyond the vocabulary": (sampled(logit_bias={191222: -100.0}), "bad_frame"),
    "ban beyond the vocabulary": (sampled(banned=(VOCABULARY,)), "bad_frame"),
    "everything banned": (sampled(banned=tuple(range(VOCABULARY))), "bad_frame"),
    "absurd logprobs": (sampled(logprobs=10**9), "bad_frame"),
}


@pytest.mark.parametrize("name", ROWS)
async def test_a_row_out_of_order_is_refused_alone(whole: ShardServer, name: str) -> None:
    make, expected = ROWS[name]
    head = await dial(whole)
    bad, good = fresh(), fresh()
    await head.open(bad)
    await head.open(good)
    row = make()
    row.session = bad if row.session == GOOD.session else row.session
    await head.send(Forward([row, make_row(good, IDS, 0, 10, want="last")]))
    results = await head.results(2)
    neighbour = next(result for result in results if result.session == good)
    assert neighbour.token is not None
    refused = next(result for result in results if result is not neighbour)
    assert refused.error is not None
    assert refused.error.code == expected
    await still_serves(head, bad, good)


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        (None, 0),
        (TensorSpec("hidden", "bfloat16", [1, 10, 64]), 1280),
        (TensorSpec("hidden", "float32", [10, 64]), 2560),
        (TensorSpec("hidden", "float32", [1, 9, 64]), 2304),
        (TensorSpec("hidden", "float32", [1, 10, 65]), 2600),
        (TensorSpec("latents", "float32", [1, 10, 64]), 2560),
    ],
    ids=["none", "other dtype", "two sizes", "fewer positions", "wider", "other name"],
)
async def test_a_payload_that_is_not_the_boundary_is_refused(
    back: ShardServer, spec: TensorSpec | None, size: int
) -> None:
    head = await dial(back)
    session = fresh()
    await head.open(session)
    row = make_row(session, IDS, 0, 10, tensors=[] if spec is None else [spec])
    refused = await head.row(row, *([bytes(size)] if spec else []))
    assert refused.error is not None
    assert refused.error.code == "bad_frame"
    sound = make_row(session, IDS, 0, 10, 1, want="last", tensors=[TensorSpec("hidden", "float32", [1, 10, 64])])
    assert (await head.row(sound, bytes(2560))).token is not None
    await head.close(Close(session, 1))
    await head.socket.close()


async def test_hidden_states_at_layer_0_are_refused(whole: ShardServer) -> None:
    head = await dial(whole)
    session = fresh()
    await head.open(session)
    row = make_row(session, IDS, 0, 10, tensors=[TensorSpec("hidden", "float32", [1, 10, 64])])
    refused = await head.row(row, bytes(2560))
    assert refused.error is not None
    assert refused.error.code == "bad_frame"
    await still_serves(head, session)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"positions": 0}, "too_large"),
        ({"positions": 10**12}, "too_large"),
        ({"start_layer": 6}, "bad_frame"),
        ({"start_layer": -1}, "bad_frame"),
        ({"at": -1}, "bad_frame"),
        ({"source": ""}, "bad_frame"),
    ],
    ids=str,
)
async def test_an_open_that_can_never_be_is_refused(whole: ShardServer, fields: dict[str, Any], expected: str) -> None:
    head = await dial(whole)
    session = fresh()
    answer = await head.open(session, **fields)
    assert isinstance(answer, Error)
    assert (answer.code, answer.session) == (expected, session)
    await still_serves(head)


async def test_more_rows_than_credits_are_refused_one_by_one(whole: ShardServer) -> None:
    head = await dial(whole)
    session = fresh()
    await head.open(session, positions=500)
    credits = head.info.credits
    long = make_row(session, prompt(400, 2), 0, 400)
    rows = [long, *(make_row(session, IDS, 0, 1, step) for step in range(1, credits + 3))]
    await head.send(Forward(rows))
    results = await head.results(len(rows))
    over = [result.step for result in results if result.error is not None and "unanswered" in result.error.message]
    assert sorted(over) == [credits, credits + 1, credits + 2]
    await still_serves(head, session)


async def say_hello(server: ShardServer, *messages: bytes | str) -> tuple[list[Any], int]:
    """What a connection that sends just this is told, and with which code it is closed."""
    frames: list[Any] = []
    async with asyncio.timeout(20):
        socket = await connect(f"ws://127.0.0.1:{server.port}/v1/link", compression=None, proxy=None)
        try:
            for message in messages:
                await socket.send(message)
            while True:
                answer = await socket.recv()
                assert isinstance(answer, bytes)
                frames.append(decode(answer, 2**20)[0])
        except ConnectionClosed:
            return frames, socket.close_code or 0


HELLO = Hello(instance="head-1", nonce=bytes(32))


async def test_a_bad_proof_ends_the_connection(whole: ShardServer) -> None:
    frames, closed = await say_hello(whole, encode(HELLO), encode(Proof(bytes(32))))
    assert isinstance(frames[0], Challenge)
    assert isinstance(frames[1], Error)
    assert frames[1].code == "unauthorized"
    assert closed == handshake.CLOSE_UNAUTHORIZED


@pytest.mark.parametrize(
    "messages",
    [
        [b"nonsense"],
        ["text"],
        [encode(Open("x", 1, 0, 10))],
        [encode(Proof(bytes(32)))],
        [encode(Hello(instance="head", nonce=bytes(32), wire=99))],
        [encode(HELLO), encode(Close("x", 1))],
        [encode(HELLO), encode(HELLO)],
    ],
    ids=["nonsense", "text", "open", "proof first", "wire version", "close", "hello twice"],
)
async def test_anything_but_a_hello_ends_the_connection(whole: ShardServer, messages: list[bytes | str]) -> None:
    frames, closed = await say_hello(whole, *messages)
    assert isinstance(frames[-1], Error)
    assert closed == handshake.CLOSE_BAD_HELLO


async def test_a_large_message_before_the_hello_is_not_read(whole: ShardServer) -> None:
    for size in (5000, 2_000_000):
        frames, closed = await say_hello(whole, bytes(size))
        assert frames == []
        assert closed == 1009
