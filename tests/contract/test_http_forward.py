"""POST /v1/forward as curl would send it, equal to the uncut model, with the contract's refusals."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from meshnet_shard_server import ShardServer, dial, shard_server
from meshnet_testing_models import VOCABULARY, greedy, prompt, uncut

from meshnet_node.wire.content import EMPTY, extend, pack_tokens
from meshnet_node.wire.frames import Opened

HIDDEN = 64


def post(server: ShardServer, body: bytes, **fields: object) -> httpx2.Response:
    """fields: session="x" is X-Meshnet-Session; cache, past_len and seq_len have the usual defaults."""
    given = {"cache": "prefill", "past_len": 0, "seq_len": len(body) // 4, **fields}
    headers = {
        f"X-Meshnet-{name.replace('_', '-').title()}": str(value) for name, value in given.items() if value is not None
    }
    return httpx2.post(f"{server.url}/v1/forward", content=body, headers=headers)


def token(response: httpx2.Response) -> int:
    assert response.status_code == 200, response.text
    assert response.headers["x-meshnet-dtype"] == "int32"
    assert response.headers["x-meshnet-shape"] == "1,1"
    ids = array("i", response.content)
    assert len(ids) == 1
    return ids[0]


def refused(response: httpx2.Response, status: int, code: str) -> Mapping[str, Any]:
    body: dict[str, Any] = response.json()
    assert (response.status_code, body["error"]) == (status, code), body
    assert body["message"]
    return body


@pytest.fixture(scope="module")
def judge(model: Path) -> Any:
    return uncut(model)


def test_prefill_and_decode_are_greedy_and_right(whole: ShardServer, judge: Any) -> None:
    ids = prompt(30, 1)
    tokens = [*ids, token(post(whole, pack_tokens(ids), session="curl"))]
    for _ in range(9):
        past = len(tokens) - 1
        answer = post(whole, pack_tokens(tokens[-1:]), session="curl", cache="decode", past_len=past)
        tokens.append(token(answer))
    assert tokens[30:] == greedy(judge, ids, 10)


def test_two_hops_pass_the_tensor_on(front: ShardServer, back: ShardServer, judge: Any) -> None:
    ids = prompt(21, 2)
    tokens = list(ids)
    for step in range(6):
        past = 0 if step == 0 else len(tokens) - 1
        cache, n = "decode" if past else "prefill", len(tokens) - past
        first = post(
            front, pack_tokens(tokens[past:]), session="hops", cache=cache, past_len=past, hop_index=0, end_layer=2
        )
        assert first.status_code == 200, first.text
        assert first.headers["x-meshnet-dtype"] == "float32"
        assert first.headers["x-meshnet-shape"] == f"1,{n},{HIDDEN}"
        assert np.isfinite(np.frombuffer(first.content, dtype="<f4")).all()
        second = post(
            back,
            first.content,
            session="hops",
            cache=cache,
            past_len=past,
            seq_len=n,
            hop_index=1,
            start_layer=3,
            dtype="float32",
            shape=first.headers["x-meshnet-shape"],
        )
        tokens.append(token(second))
    assert tokens[21:] == greedy(judge, ids, 6)


def test_mode_none_keeps_nothing(whole: ShardServer, judge: Any) -> None:
    ids = prompt(25, 3)
    before = whole.look(lambda shard: len(shard.loaded.engine.store))
    assert token(post(whole, pack_tokens(ids), cache="none")) == greedy(judge, ids, 1)[0]
    assert whole.look(lambda shard: len(shard.loaded.engine.store)) == before


def test_a_miss_is_409_and_says_what_is_held(whole: ShardServer) -> None:
    one = pack_tokens([5])
    unknown = post(whole, one, session="unknown", cache="decode", past_len=4)
    assert refused(unknown, 409, "cache_miss")["have"] == 0
    ids = prompt(12, 4)
    token(post(whole, pack_tokens(ids), session="short"))
    ahead = post(whole, one, session="short", cache="decode", past_len=20)
    assert refused(ahead, 409, "cache_miss")["have"] == 12
    token(post(whole, one, session="short", cache="decode", past_len=7))
    assert refused(post(whole, one, session="short", cache="decode", past_len=12), 409, "cache_miss")["have"] == 8


def test_only_a_prefill_at_0_creates(whole: ShardServer) -> None:
    body = pack_tokens([5, 6])
    refused(post(whole, body, session="new", cache="decode", past_len=0), 409, "cache_miss")
    refused(post(whole, body, session="new", cache="prefill", past_len=3), 409, "cache_miss")
    token(post(whole, body, session="new"))


def test_content_is_checked_where_a_hash_is_given(whole: ShardServer, back: ShardServer) -> None:
    ids = prompt(12, 5)
    token(post(whole, pack_tokens(ids), session="hash", hash=EMPTY.hex()))
    true, other = extend(EMPTY, ids)[-1].hex(), extend(EMPTY, [1, *ids[1:]])[-1].hex()
    wrong = post(whole, pack_tokens([5]), session="hash", cache="decode", past_len=12, hash=other)
    assert refused(wrong, 409, "cache_miss")["have"] == 0
    token(post(whole, pack_tokens([5]), session="hash", cache="decode", past_len=12, hash=true))
    hidden = bytes(12 * HIDDEN * 4)
    token(post(back, hidden, session="hash", seq_len=12, hash=EMPTY.hex()))
    row = hidden[: HIDDEN * 4]
    decode: dict[str, Any] = {"session": "hash", "cache": "decode", "past_len": 12, "seq_len": 1}
    token(post(back, row, hash=true, **decode))
    refused(post(back, row, hash=other, **decode), 409, "cache_miss")


def test_the_same_step_again_gives_the_same_answer(whole: ShardServer) -> None:
    ids = prompt(12, 6)
    token(post(whole, pack_tokens(ids), session="step", step=0))
    decode: dict[str, Any] = {"session": "step", "cache": "decode", "past_len": 12, "step": 1}
    first = token(post(whole, pack_tokens([5]), **decode))
    before = whole.look(lambda shard: shard.loaded.engine.steps)
    assert token(post(whole, pack_tokens([5]), **decode)) == first
    assert whole.look(lambda shard: shard.loaded.engine.steps) == before


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"cache": None}, 400, "bad_frame"),
        ({"cache": "keep"}, 400, "bad_frame"),
        ({"session": None}, 400, "bad_frame"),
        ({"session": "x" * 200}, 400, "bad_frame"),
        ({"past_len": "two"}, 400, "bad_frame"),
        ({"past_len": -1}, 400, "bad_frame"),
        ({"past_len": None}, 400, "bad_frame"),
        ({"seq_len": 0}, 400, "bad_frame"),
        ({"seq_len": 11}, 400, "bad_frame"),
        ({"seq_len": 13}, 400, "bad_frame"),
        ({"seq_len": 10**9}, 413, "too_large"),
        ({"past_len": 505}, 413, "too_large"),
        ({"hop_index": 1}, 400, "bad_frame"),
        ({"dtype": "float32"}, 400, "bad_frame"),
        ({"shape": "1,12,64"}, 400, "bad_frame"),
        ({"hash": "xyz"}, 400, "bad_frame"),
        ({"start_layer": 6}, 421, "wrong_shard"),
        ({"end_layer": 4}, 421, "wrong_shard"),
        ({"model": "another"}, 421, "wrong_shard"),
        ({"instance": "another"}, 421, "wrong_shard"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_headers_are_refused_by_name(whole: ShardServer, fields: dict[str, Any], status: int, code: str) -> None:
    body = refused(post(whole, pack_tokens(prompt(12, 7)), **{"session": "headers", **fields}), status, code)
    if code == "bad_frame" and "seq_len" not in fields:
        assert next(iter(fields)).replace("_", "-").title() in body["message"]


def test_ids_outside_the_vocabulary_are_refused(whole: ShardServer) -> None:
    refused(post(whole, pack_tokens([1, VOCABULARY]), session="ids"), 400, "bad_frame")


def test_a_session_grows_as_it_needs(model: Path, judge: Any) -> None:
    ids = prompt(490, 8)
    with shard_server(model, kv_max_sessions=2, max_context=512) as server:
        token(post(server, pack_tokens(ids[:10]), session="grows"))
        answer = post(server, pack_tokens(ids[10:]), session="grows", past_len=10)
        assert token(answer) == greedy(judge, ids, 1)[0]
        server.check_idle()


async def test_sessions_of_heads_and_of_http_keep_apart(whole: ShardServer) -> None:
    head = await dial(whole)
    assert isinstance(await head.open("headed"), Opened)
    answer = await asyncio.to_thread(post, whole, pack_tokens([5]), session="headed")
    refused(answer, 409, "not_owner")
    gone = await asyncio.to_thread(httpx2.delete, f"{whole.url}/v1/sessions/headed")
    assert gone.status_code == 204
    assert (await head.ping()).active == 0
    await head.socket.close()


async def test_requests_of_one_session_take_turns(whole: ShardServer) -> None:
    bodies = [pack_tokens(prompt(20 + n, n)) for n in range(6)]
    answers = await asyncio.gather(*(asyncio.to_thread(post, whole, body, session="busy") for body in bodies))
    assert {answer.status_code for answer in answers} == {200}
    alone = [token(await asyncio.to_thread(post, whole, body, session="calm")) for body in bodies]
    assert [token(answer) for answer in answers] == alone


def test_delete_frees_and_a_prefill_begins_anew(whole: ShardServer) -> None:
    ids = pack_tokens(prompt(12, 9))
    token(post(whole, ids, session="deleted"))
    for _ in range(2):
        assert httpx2.delete(f"{whole.url}/v1/sessions/deleted").status_code == 204
    refused(post(whole, pack_tokens([1]), session="deleted", cache="decode", past_len=12), 409, "cache_miss")
    token(post(whole, ids, session="deleted"))


def test_plain_sessions_are_evicted_and_headed_ones_are_not(model: Path) -> None:
    with shard_server(model, kv_max_sessions=1) as server:
        token(post(server, pack_tokens([5, 6]), session="one"))
        token(post(server, pack_tokens([5, 6]), session="two"))
        refused(post(server, pack_tokens([5]), session="one", cache="decode", past_len=2), 409, "cache_miss")

        async def hold() -> httpx2.Response:
            head = await dial(server)
            assert isinstance(await head.open("held"), Opened)
            answer = await asyncio.to_thread(post, server, pack_tokens([5]), session="three")
            await head.socket.close()
            return answer

        refused(asyncio.run(hold()), 429, "over_capacity")
        assert 'ended_sessions_total{reason="lru"} 2.0' in httpx2.get(f"{server.url}/metrics").text
