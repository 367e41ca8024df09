"""Log-probabilities: once per token, true bytes, no infinities, and nothing told through them too early."""

from __future__ import annotations

import math
from typing import Any

import pytest
from meshnet_heads import MODEL, Head, Heads
from meshnet_serving import sse_events

from meshnet_node.wire.frames import Score

ANSWER = "Oh 😀 naïve 你是谁"


def scorer(id_: int, wanted: int) -> Score:
    """-id/1000 for the token itself, and alternatives of which the last are impossible (sglang 5984)."""
    if wanted < 0:
        return Score(id=id_)
    top = [(id_, -id_ / 1000), *((other, -math.inf) for other in range(100, 99 + wanted))]
    return Score(id=id_, logprob=-id_ / 1000, top=top[:wanted])


async def streamed(head: Head, **fields: Any) -> list[Any]:
    return sse_events((await head.chat(stream=True, **fields)).body)[:-1]


@pytest.mark.parametrize("top", [0, 1, 5, 20])
async def test_entries_join_to_the_text_with_true_bytes(heads: Heads, top: int) -> None:
    # ollama 13497 (case 17), sglang 5984 (case 16).
    head = await heads.start(ANSWER, scorer=scorer)
    body = (await head.chat(logprobs=True, top_logprobs=top)).json()
    entries = body["choices"][0]["logprobs"]["content"]
    assert body["choices"][0]["logprobs"]["refusal"] is None
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == ANSWER
    assert len(entries) == body["usage"]["completion_tokens"] - 1  # the end token has no text
    assert all(len(entry["top_logprobs"]) == top for entry in entries)
    assert {item["logprob"] for entry in entries for item in entry["top_logprobs"][1:]} <= {-9999.0}


async def test_a_stream_tells_the_same_entries_each_once(heads: Heads) -> None:
    # litellm 10686 (case 13): the finish chunk comes although it has none.
    head = await heads.start(ANSWER, scorer=scorer)
    whole = (await head.chat(logprobs=True, top_logprobs=2)).json()["choices"][0]["logprobs"]["content"]
    events = await streamed(head, logprobs=True, top_logprobs=2)
    found = [entry for event in events for entry in (event["choices"][0]["logprobs"] or {}).get("content", [])]
    assert found == whole
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert events[-1]["choices"][0]["logprobs"] is None


async def test_nothing_of_a_stop_string_is_told_by_entries(heads: Heads) -> None:
    head = await heads.start("alpha beta gamma delta", scorer=scorer)
    events = await streamed(head, logprobs=True, stop=["beta gamma"])
    entries = [entry for event in events for entry in (event["choices"][0]["logprobs"] or {}).get("content", [])]
    # The space belongs to the token of "beta": it is the only one of the stop string that begins before the cut.
    assert [entry["token"] for entry in entries] == ["alpha", " beta"]
    whole = (await head.chat(logprobs=True, stop=["beta gamma"])).json()["choices"][0]
    assert whole["message"]["content"] == "alpha "
    assert whole["logprobs"]["content"] == entries


async def test_held_back_text_that_is_let_out_brings_its_entries(heads: Heads) -> None:
    head = await heads.start("alpha beta delta", scorer=scorer)
    events = await streamed(head, logprobs=True, stop=["beta gamma"])
    told = ""
    for event in events:
        text = event["choices"][0]["delta"].get("content", "")
        entries = (event["choices"][0]["logprobs"] or {}).get("content", [])
        told += text
        assert not text or entries or told != "alpha beta delta"
    tokens = [e["token"] for event in events for e in (event["choices"][0]["logprobs"] or {}).get("content", [])]
    assert "".join(tokens) == told == "alpha beta delta"


async def test_the_old_shape(heads: Heads) -> None:
    head = await heads.start("Oh 你是谁", scorer=scorer)
    fields = {"model": MODEL, "prompt": "Say", "logprobs": 2, "max_tokens": 50}
    choice = (await head.post("/v1/completions", fields)).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert {len(logprobs[name]) for name in logprobs} == {len(logprobs["tokens"])}
    assert logprobs["tokens"][-1] == "<|im_end|>"  # evaluation tools count on an entry for it
    assert any(token.startswith("bytes:\\x") for token in logprobs["tokens"])
    assert logprobs["text_offset"][:2] == [0, 2]
    assert all(token in top for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True))
    assert all(value == -9999.0 or value > -60 for top in logprobs["top_logprobs"] for value in top.values())


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_with_logprobs_scores_the_prompt(heads: Heads, stream: bool) -> None:
    # What lm-eval asks for: ids in, one token more, one entry per position. vllm 10234 (case 16).
    head = await heads.start([5], scorer=scorer)
    prompt = heads.text.encode("The capital of France", special=False)
    fields = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0, "stream": stream}
    reply = await head.post("/v1/completions", {"model": MODEL, **fields})
    events = sse_events(reply.body)[:-1] if stream else [reply.json()]
    found = [event["choices"][0] for event in events if event["choices"]]
    tokens = [token for choice in found if choice["logprobs"] for token in choice["logprobs"]["tokens"]]
    values = [value for choice in found if choice["logprobs"] for value in choice["logprobs"]["token_logprobs"]]
    tops = [top for choice in found if choice["logprobs"] for top in choice["logprobs"]["top_logprobs"]]
    assert len(tokens) == len(prompt) + 1
    assert "".join(tokens[:-1]) == "The capital of France"
    assert (values[0], tops[0]) == (None, None)
    assert values[1:-1] == [-id_ / 1000 for id_ in prompt[1:]]
    assert "".join(choice["text"] for choice in found) == "The capital of France" + heads.text.decode([5])
    assert head.backend.requests[0].prompt_scores


async def test_nobody_asks_for_scores_unless_the_client_does(heads: Heads) -> None:
    head = await heads.start()
    await head.chat()
    await head.chat(logprobs=True)
    await head.chat(logprobs=True, top_logprobs=4)
    await head.post("/v1/completions", {"model": MODEL, "prompt": "x", "echo": True})
    assert [request.sampling.logprobs for request in head.backend.requests] == [-1, 0, 4, -1]
    assert not any(request.prompt_scores for request in head.backend.requests)
