"""Rows over a link, against the uncut model: prefill, decode, company, long rows, two shards, penalties."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from meshnet_shard_server import Head, ShardServer, dial, make_row
from meshnet_testing_models import greedy, logits_by_chunks, prompt, uncut

from meshnet_node.wire.content import pack_tokens
from meshnet_node.wire.frames import Close, Closed, Forward, Opened, RowResult, Sampling, TensorSpec

HIDDEN = 64


@pytest.fixture(scope="module")
def judge(model: Path) -> Any:
    return uncut(model)


def token(result: RowResult) -> int:
    assert result.error is None, result.error
    assert result.token is not None
    return result.token.id


async def generate(head: Head, session: str, ids: list[int], count: int, **sampling: Any) -> list[int]:
    """`count` tokens after `ids`, one row after the other."""
    parameters = Sampling(**sampling)
    assert isinstance(await head.open(session, positions=len(ids) + count), Opened)
    tokens = list(ids)
    result = await head.row(make_row(session, tokens, 0, len(ids), want="last", sampling=parameters))
    for step in range(1, count + 1):
        tokens.append(token(result))
        if step < count:
            row = make_row(session, tokens, len(tokens) - 1, 1, step, want="last", sampling=parameters)
            result = await head.row(row)
    assert isinstance(await head.close(Close(session, 1)), Closed)
    return tokens[len(ids) :]


async def test_greedy_tokens_are_those_of_generate(whole: ShardServer, judge: Any) -> None:
    head = await dial(whole)
    ids = prompt(40, 1)
    assert await generate(head, "greedy", ids, 20) == greedy(judge, ids, 20)
    await head.socket.close()


async def test_distinct_prompts_side_by_side_get_their_own_answers(whole: ShardServer, judge: Any) -> None:
    lengths = [3, 17, 40, 5, 64]
    prompts = [prompt(length, seed) for seed, length in enumerate(lengths)]
    heads = [await dial(whole) for _ in prompts]
    answers = await asyncio.gather(
        *(generate(head, f"side-{n}", ids, 12) for n, (head, ids) in enumerate(zip(heads, prompts, strict=True)))
    )
    assert answers == [greedy(judge, ids, 12) for ids in prompts]
    for head in heads:
        await head.socket.close()


async def test_a_seeded_answer_is_the_same_alone_and_in_company(whole: ShardServer) -> None:
    ids = prompt(20, 3)
    seeded: dict[str, Any] = {"temperature": 1.5, "top_p": 0.9, "seed": 77}
    heads = [await dial(whole) for _ in range(4)]
    alone = await generate(heads[0], "alone", ids, 10, **seeded)
    company = [generate(head, f"c{n}", prompt(9, n), 10, temperature=1.0, seed=n) for n, head in enumerate(heads[1:])]
    together = await asyncio.gather(generate(heads[0], "together", ids, 10, **seeded), *company)
    assert together[0] == alone
    assert len(set(alone)) > 3
    for head in heads:
        await head.socket.close()


async def test_decode_rows_of_one_frame_are_answered_for_themselves(whole: ShardServer, judge: Any) -> None:
    head = await dial(whole)
    prompts = {f"frame-{n}": prompt(10 + n, n) for n in range(3)}
    for session, ids in prompts.items():
        await head.open(session)
        ids.append(token(await head.row(make_row(session, ids, 0, len(ids), want="last"))))
    rows = [make_row(session, ids, len(ids) - 1, 1, 1, want="last") for session, ids in prompts.items()]
    rows.insert(1, make_row("never-opened", [1, 2], 1, 1, want="last"))
    await head.send(Forward(rows))
    results = {result.session: result for result in await head.results(4)}
    missing = results.pop("never-opened").error
    assert missing is not None
    assert (missing.code, missing.have) == ("cache_miss", 0)
    for session, ids in prompts.items():
        assert [ids[-1], token(results[session])] == greedy(judge, ids[:-1], 2)
        await head.close(Close(session, 1))
    await head.socket.close()


async def test_penalties_count_what_the_session_holds(whole: ShardServer, judge: Any) -> None:
    """The last hop gets all ids with the rows; a penalty must see those of earlier rows too."""
    ids = prompt(30, 5)
    plain = greedy(judge, ids, 16)
    head = await dial(whole)
    banned = await generate(head, "penalty", ids, 16, frequency_penalty=100.0, gen_start=len(ids))
    assert banned[0] == plain[0]
    assert len(set(banned)) == 16, "no token comes twice under such a penalty"
    await head.socket.close()


async def test_scores_are_the_raw_logprobs_of_the_targets(whole: ShardServer, judge: Any) -> None:
    ids = prompt(50, 6)
    head = await dial(whole)
    await head.open("score")
    targets = pack_tokens([*ids[1:], -1])
    asked = Sampling(logprobs=2, temperature=0.7, top_k=3)
    result = await head.row(make_row("score", ids, 0, 50, want="all", targets=targets, sampling=asked))
    expected = torch.log_softmax(logits_by_chunks(judge, ids, [50]), -1)
    assert [score.id for score in result.scores] == [*ids[1:], -1]
    for position, score in enumerate(result.scores[:-1]):
        assert score.logprob == pytest.approx(float(expected[position, ids[position + 1]]), abs=1e-4)
        assert [value for _, value in score.top] == pytest.approx(expected[position].topk(2).values.tolist(), abs=1e-4)
    assert result.scores[-1].logprob is None
    assert result.token is not None, "a row that scores and has parameters samples too"
    await head.close(Close("score", 1))
    await head.socket.close()


async def test_two_shards_give_what_one_gives(front: ShardServer, back: ShardServer, judge: Any) -> None:
    """The second hop starts at layer 3 of a shard that begins at layer 2, and nothing runs twice."""
    ids = prompt(33, 7)
    first, second = await dial(front), await dial(back)
    await first.open("two")
    await second.open("two", start_layer=3)
    tokens = list(ids)
    for step, past in enumerate([0, *range(33, 40)]):
        n = len(tokens) - past
        row = make_row("two", tokens, past, n, step)
        out = await first.row(row)
        assert out.tensors == [TensorSpec("hidden", "float32", [1, n, HIDDEN])]
        hidden = bytes(first.parts[0][0])
        row = make_row("two", tokens, past, n, step, want="last", tensors=out.tensors)
        tokens.append(token(await second.row(row, hidden)))
    assert tokens[33:] == greedy(judge, ids, 8)
    for head in (first, second):
        await head.close(Close("two", 1))
        await head.socket.close()


async def test_a_stateless_row_runs_and_leaves_nothing(whole: ShardServer, judge: Any) -> None:
    head = await dial(whole)
    ids = prompt(37, 8)
    before = await head.ping()
    result = await head.row(make_row("stateless", ids, 0, 37, want="last", mode="none"))
    assert [token(result)] == greedy(judge, ids, 1)
    after = await head.ping()
    assert (after.sessions, after.bytes_free) == (before.sessions, before.bytes_free)
    await head.socket.close()
