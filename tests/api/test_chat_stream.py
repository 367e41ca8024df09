"""Streamed chat: framing, order of chunks, usage, stop strings, failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from meshnet_heads import MODEL, Head, Heads
from meshnet_serving import sse_events
from meshnet_tokenizers import byte_fallback, byte_ids, byte_level
from openai import APIError, InternalServerError

from meshnet_node.errors import overloaded
from meshnet_node.text.text_model import TextModel

MESSAGES = [{"role": "user", "content": "Say it."}]


async def chunks(head: Head, **fields: Any) -> list[Any]:
    """The events of a streamed chat, after the checks that hold for every stream."""
    reply = await head.chat(stream=True, **fields)
    assert reply.status == 200
    events = sse_events(reply.body)
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    return events[:-1]


def text_of(events: list[Any]) -> str:
    return "".join(choice["delta"].get("content", "") for event in events for choice in event.get("choices", []))


async def test_headers_and_framing_are_what_simple_clients_need(heads: Heads) -> None:
    reply = await (await heads.start("Hi.")).chat(stream=True)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (reply.headers["cache-control"], reply.headers["x-accel-buffering"]) == ("no-cache", "no")
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert b"\r" not in reply.body


async def test_role_first_then_text_then_an_empty_delta_with_the_reason(heads: Heads) -> None:
    # ollama 4357, vllm 27572 (cases 7, 8): null until the last, exactly one reason.
    events = await chunks(await heads.start("Paris is the capital."))
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(set(event["choices"][0]["delta"]) == {"content"} for event in events[1:-1])
    assert events[-1]["choices"][0]["delta"] == {}
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["stop"]
    assert text_of(events) == "Paris is the capital."
    assert len({(event["id"], event["created"], event["model"], event["object"]) for event in events}) == 1
    assert events[0]["object"] == "chat.completion.chunk"
    assert all("usage" not in event for event in events)  # apfel 100 (case 10)


async def test_a_length_end_says_length(heads: Heads) -> None:
    events = await chunks(await heads.start("a b c d e"), max_tokens=2)
    assert events[-1]["choices"][0]["finish_reason"] == "length"


async def test_the_real_client_reads_the_stream(heads: Heads) -> None:
    head = await heads.start("Paris is the capital.")
    async with head.client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "Paris is the capital."


@pytest.mark.parametrize("continuous", [False, True])
async def test_usage_comes_only_when_asked_and_equals_that_of_the_whole_answer(heads: Heads, continuous: bool) -> None:
    # vllm 8625 (case 15).
    head = await heads.start("Paris is the capital.")
    options = {"include_usage": True, "continuous_usage_stats": continuous}
    events = await chunks(head, stream_options=options)
    whole = (await head.chat()).json()["usage"]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == whole
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    counts = [event["usage"]["completion_tokens"] if event["usage"] else None for event in events[:-1]]
    if continuous:
        assert counts == sorted(counts)
        assert (counts[0], counts[-1]) == (0, whole["completion_tokens"])
    else:
        assert set(counts) == {None}


@pytest.mark.parametrize(
    "answer",
    ["你是谁？我是助手。", "👩‍👩‍👧‍👦🇫🇷👍🏽", "e\u0301a\u0308", "안녕하세요 😀", "नमस्ते"],
    ids=["chinese", "emoji", "combining", "korean", "devanagari"],
)
async def test_streamed_text_equals_the_whole_answer(heads: Heads, answer: str) -> None:
    # vllm 931 (case 1).
    head = await heads.start(answer)
    events = await chunks(head)
    assert text_of(events) == answer == (await head.chat()).json()["choices"][0]["message"]["content"]
    assert all("\ufffd" not in text_of([event]) for event in events)


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
async def test_one_byte_a_token(heads: Heads, make: Any, tmp_path: Any) -> None:
    # text-generation-inference 131 (case 2).
    tokenizer = make()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("x")
    answer = "a안녕😀é"
    head = await heads.start(byte_ids(tokenizer, answer.encode()), text=TextModel.load(tmp_path), max_context=1000)
    events = await chunks(head, max_tokens=len(answer.encode()))
    assert text_of(events) == answer
    assert events[-1]["choices"][0]["finish_reason"] == "length"


async def test_an_answer_cut_inside_a_character_is_the_same_both_ways(heads: Heads) -> None:
    ids = heads.text.encode("ok 👩‍👩‍👧", special=False)
    head = await heads.start(ids)
    for budget in range(1, len(ids)):
        streamed = text_of(await chunks(head, max_tokens=budget))
        assert streamed == (await head.chat(max_tokens=budget)).json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("answer", "stop", "expected"),
    [
        ("ABCDEFGHIJKLM", ["DEFGHIJ"], "ABC"),
        ("alpha beta gamma delta", ["beta gamma"], "alpha "),
        ("you 。你好。再见", "再见", "you 。你好。"),
        ("ends with almost DEF", ["DEFG"], "ends with almost DEF"),
    ],
)
async def test_nothing_of_a_stop_string_is_ever_sent(
    heads: Heads, answer: str, stop: str | list[str], expected: str
) -> None:
    # vllm 3574, mlx-knife 68, vllm 44620 (cases 3, 4, 85), smg 2203 (case 6): the end's flush goes the same way.
    head = await heads.start(answer)
    events = await chunks(head, stop=stop)
    assert text_of(events) == expected
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert (await head.chat(stop=stop)).json()["choices"][0]["message"]["content"] == expected


async def test_only_what_may_become_a_stop_string_waits(heads: Heads) -> None:
    # vllm 45636 (case 5).
    head = await heads.start("So </think> it is", pause_at=None)
    events = await chunks(head, stop=["</thinking-is-over>"])
    assert text_of(events) == "So </think> it is"


async def test_a_failure_before_the_status_is_a_status(heads: Heads) -> None:
    head = await heads.start(start_error=overloaded("full"))
    with pytest.raises(InternalServerError):
        await head.client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)


@pytest.mark.parametrize("bug", [False, True])
async def test_a_failure_in_mid_stream_is_an_event_then_done_and_never_a_reason(heads: Heads, bug: bool) -> None:
    # open-webui 29628, litellm 39748, vllm-mlx 101 (cases 11, 12).
    options = {"error": ValueError("a secret")} if bug else {}
    head = await heads.start("Paris is the capital.", fail_at=2, **options)
    events = await chunks(head)
    assert set(events[-1]["error"]) == {"message", "type", "param", "code"}
    assert events[-1]["error"]["code"] == ("internal_error" if bug else "overloaded")
    assert "secret" not in str(events)
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
    await head.is_idle()
    stream = await head.client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    with pytest.raises(APIError) as caught:
        [chunk async for chunk in stream]
    assert caught.value.type == "server_error"


async def test_comments_come_by_the_clock_while_the_mesh_is_silent(heads: Heads) -> None:
    # exo 616 (case 88): before the first token and in the middle; the client library ignores them.
    head = await heads.start("a b c", pause_at=0, keepalive_seconds=0.05)

    async def let_go() -> None:
        await asyncio.sleep(0.4)
        head.backend.go.set()

    reply, _ = await asyncio.gather(head.chat(stream=True), let_go())
    assert 3 <= reply.body.count(b": keep-alive\n\n") <= 9
    assert text_of(sse_events(reply.body)[:-1]) == "a b c"
    head.backend.go.clear()
    head.backend.pause_at = 2
    stream, _ = await asyncio.gather(
        head.client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True), let_go()
    )
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "a b c"


async def test_comments_also_come_while_tokens_are_held_back(heads: Heads) -> None:
    head = await heads.start("a" * 64, delay=0.01, keepalive_seconds=0.05)
    reply = await head.chat(stream=True, stop=["a" * 64], max_tokens=400)
    assert b": keep-alive\n\n" in reply.body
    assert text_of(sse_events(reply.body)[:-1]) == ""


async def test_the_head_of_a_stream_is_sent_before_the_first_token(heads: Heads) -> None:
    head = await heads.start("a b", pause_at=0)
    stream = await head.client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    first = await anext(aiter(stream))
    assert first.choices[0].delta.role == "assistant"
    head.backend.go.set()
    await stream.close()
