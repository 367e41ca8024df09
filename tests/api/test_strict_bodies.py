"""Bodies that loose parsers let through or fall over: each is one clean 400, and the head goes on."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from meshnet_heads import CHAT, MODEL, Heads
from meshnet_serving import head as request_head
from meshnet_serving import parse, raw_request

from meshnet_node.head.body import validate

SECRET = "the-secret-prompt"


def with_field(text: str) -> bytes:
    """A good chat body with one more field, written by hand."""
    good = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": SECRET}]})
    return (good[:-1] + ", " + text + "}").encode()


BAD_BYTES = {
    "NaN": with_field('"temperature": NaN'),
    "Infinity": with_field('"temperature": -Infinity'),
    "NaN in a field nobody knows": with_field('"x": NaN'),
    "number beyond floats": with_field('"temperature": 1e400'),
    "number beyond floats in the bias": with_field('"logit_bias": {"5": 1e400}'),
    "integer of 5000 digits": with_field('"seed": ' + "9" * 5000),
    "seed of 70 bits": with_field('"seed": ' + str(2**70)),
    "lone surrogate": with_field('"stop": "\\ud83d"'),
    "bytes that are not UTF-8": with_field('"stop": "') + b"\xff\xfe",
    "100000 brackets": b"[" * 100_000,
    "100000 nested objects": b'{"a":' * 100_000,
    "empty body": b"",
    "half a body": b'{"model": "',
    "two bodies": b"{}{}",
    "byte order mark": b"\xef\xbb\xbf{}",
    "a list": b"[]",
    "a string": b'"hello"',
    "null": b"null",
    "form": b"model=smollm2&messages=hi",
}


@pytest.mark.parametrize("body", BAD_BYTES.values(), ids=BAD_BYTES.keys())
async def test_bytes_that_are_no_request(heads: Heads, body: bytes) -> None:
    head = await heads.start()
    reply = await head.post(CHAT, body)
    error = reply.json()["error"]
    assert (reply.status, error["type"]) == (400, "invalid_request_error")
    assert set(error) == {"message", "type", "param", "code"}
    assert SECRET.encode() not in reply.body
    assert len(reply.body) < 400  # what was sent is not repeated
    assert (await head.chat()).status == 200


BAD_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "temperature below": ({"temperature": -0.1}, "temperature"),
    "temperature above": ({"temperature": 2.1}, "temperature"),
    "temperature string": ({"temperature": "1"}, "temperature"),
    "temperature bool": ({"temperature": True}, "temperature"),
    "top_p above": ({"top_p": 1.1}, "top_p"),
    "top_p below": ({"top_p": -0.1}, "top_p"),
    "top_k below": ({"top_k": -2}, "top_k"),
    "top_k float": ({"top_k": 1.5}, "top_k"),
    "min_p above": ({"min_p": 1.5}, "min_p"),
    "presence_penalty": ({"presence_penalty": 2.5}, "presence_penalty"),
    "frequency_penalty": ({"frequency_penalty": -2.5}, "frequency_penalty"),
    "repetition_penalty 0": ({"repetition_penalty": 0}, "repetition_penalty"),
    "seed true": ({"seed": True}, "seed"),
    "seed 2**63 (vllm 4529)": ({"seed": 2**63}, "seed"),
    "seed 2**64 (vllm 57018)": ({"seed": 2**64}, "seed"),
    "seed below": ({"seed": -(2**63) - 1}, "seed"),
    "seed float": ({"seed": 1.0}, "seed"),
    "max_tokens 0 (vllm 6521)": ({"max_tokens": 0}, "max_tokens"),
    "max_tokens negative": ({"max_tokens": -1}, "max_tokens"),
    "max_tokens string": ({"max_tokens": "5"}, "max_tokens"),
    "max_completion_tokens 0": ({"max_completion_tokens": 0}, "max_completion_tokens"),
    "min_tokens beyond the budget": ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    "stream string": ({"stream": "yes"}, "stream"),
    "stream number": ({"stream": 1}, "stream"),
    "stop empty": ({"stop": ""}, "stop"),
    "stop with an empty one": ({"stop": ["a", ""]}, "stop"),
    "stop number": ({"stop": 5}, "stop"),
    "stop of numbers": ({"stop": [5]}, "stop"),
    "stop too many": ({"stop": ["a"] * 17}, "stop"),
    "stop too long": ({"stop": "a" * 1025}, "stop"),
    "stop_token_ids beyond": ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    "stop_token_ids negative": ({"stop_token_ids": [-1]}, "stop_token_ids"),
    "n 0": ({"n": 0}, "n"),
    "n string": ({"n": "2"}, "n"),
    "logprobs number": ({"logprobs": 1}, "logprobs"),
    "top_logprobs 21": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "top_logprobs negative": ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    "logit_bias beyond the vocabulary (vllm 16529)": ({"logit_bias": {"191222": -100}}, "logit_bias"),
    "logit_bias negative id": ({"logit_bias": {"-1": 1}}, "logit_bias"),
    "logit_bias word": ({"logit_bias": {"hello": 1}}, "logit_bias"),
    "logit_bias other digits": ({"logit_bias": {"٣": 1}}, "logit_bias"),
    "logit_bias long number": ({"logit_bias": {"9" * 30: 1}}, "logit_bias"),
    "logit_bias string": ({"logit_bias": {"5": "1"}}, "logit_bias"),
    "logit_bias list": ({"logit_bias": [5]}, "logit_bias"),
    "chat_template_kwargs list": ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    "chat_template_kwargs reserved": ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    "model number": ({"model": 5}, "model"),
    "model null": ({"model": None}, "model"),
    "messages null (llama.cpp's table)": ({"messages": None}, "messages"),
    "messages string": ({"messages": "Hi"}, "messages"),
    "messages empty": ({"messages": []}, "messages"),
    "messages of numbers": ({"messages": [123]}, "messages"),
    "messages of nothing": ({"messages": [{}]}, "messages"),
    "messages of null": ({"messages": [None]}, "messages"),
    "role number": ({"messages": [{"role": 123, "content": "x"}]}, "messages"),
    "role unknown": ({"messages": [{"role": "wizard", "content": "x"}]}, "messages"),
    "role absent": ({"messages": [{"content": "x"}]}, "messages"),
    "content number": ({"messages": [{"role": "user", "content": 123}]}, "messages"),
    "content absent": ({"messages": [{"role": "user"}]}, "messages"),
    "content null": ({"messages": [{"role": "user", "content": None}]}, "messages"),
    "content an object": ({"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}]}, "messages"),
    "content with an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages",
    ),
    "content with a part of no text": ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
    "two assistants at the end": (
        {"messages": [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]},
        "messages",
    ),
    "tool_calls of nothing": ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages"),
    "stream_options a string": ({"stream": True, "stream_options": "yes"}, "stream_options"),
}


async def test_a_field_of_several_types_says_what_it_may_be(heads: Heads) -> None:
    head = await heads.start()
    reply = await head.post("/v1/completions", {"model": MODEL, "prompt": [-1]})
    wanted = "prompt: must be a string, a list of strings, a list of token ids, or a list of such lists"
    assert (reply.status, reply.json()["error"]["message"]) == (400, wanted)
    reply = await head.post(CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stop": [1]})
    assert (reply.status, reply.json()["error"]["message"]) == (400, "stop: must be a string or a list of strings")


async def test_a_large_body_is_checked_beside_the_loop(heads: Heads, monkeypatch: pytest.MonkeyPatch) -> None:
    """60,000 messages take half a second, in which all streams would stand still."""
    threads: list[threading.Thread] = []

    def recorded(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return validate(*arguments)

    monkeypatch.setattr("meshnet_node.head.api.validate", recorded)
    head = await heads.start()
    for count in (1, 60_000):
        messages = [{"role": "user", "content": ""}] * count + [{"role": "nobody", "content": ""}]
        reply = await head.post(CHAT, {"model": MODEL, "messages": messages})
        assert reply.status == 400
        assert "nobody" not in reply.json()["error"]["message"]
    small, large = threads
    assert small is threading.main_thread()
    assert large is not threading.main_thread()


@pytest.mark.parametrize(("fields", "param"), BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
async def test_a_field_out_of_range_is_named(heads: Heads, fields: dict[str, Any], param: str) -> None:
    # vllm 4529, 16529, 6521, llama.cpp's table (cases 20, 22, 23, 28).
    head = await heads.start()
    reply = await head.chat(**fields)
    assert (reply.status, reply.json()["error"]["param"]) == (400, param)
    assert not head.backend.requests
    assert (await head.chat()).status == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"stream_options": {"include_usage": True}},
        {"stream": False, "stream_options": {"include_usage": True}},
        {"top_logprobs": 3},
        {"logprobs": False, "top_logprobs": 3},
    ],
)
async def test_fields_that_need_another(heads: Heads, fields: dict[str, Any]) -> None:
    assert (await (await heads.start()).chat(**fields)).status == 400


REFUSED: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "auto",
    "functions": [{"name": "f"}],
    "function_call": "auto",
    "response_format": {"type": "json_object"},
    "n": 2,
    "modalities": ["audio"],
    "audio": {"voice": "x"},
    "echo": True,
    "guided_json": {},
    "json_schema": {"type": "object"},
    "chat_template": "x",
    "continue_final_message": True,
    "add_generation_prompt": False,
    "skip_special_tokens": False,
    "include_stop_str_in_output": True,
    "bad_words": ["x"],
    "use_beam_search": True,
    "typical_p": 0.5,
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_would_change_the_answer_is_refused_by_name(heads: Heads, name: str) -> None:
    reply = await (await heads.start()).chat(**{name: REFUSED[name]})
    error = reply.json()["error"]
    assert (reply.status, error["param"]) == (400, name)
    assert name in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_case_43_a_json_schema_is_refused_before_the_first_token(heads: Heads, stream: bool) -> None:
    """A recovery would go on in the middle of the JSON. Until a grammar comes back too, nothing is promised."""
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": True}}
    reply = await (await heads.start()).chat(response_format=schema, stream=stream)
    error = reply.json()["error"]
    assert (reply.status, error["param"]) == (400, "response_format")


IGNORED: dict[str, Any] = {
    "nulls": dict.fromkeys(
        [
            "temperature",
            "top_p",
            "n",
            "stop",
            "max_tokens",
            "max_completion_tokens",
            "seed",
            "stream",
            "stream_options",
            "logprobs",
            "top_logprobs",
            "logit_bias",
            "tools",
            "tool_choice",
            "response_format",
            "user",
            "presence_penalty",
            "frequency_penalty",
            "parallel_tool_calls",
            "reasoning_effort",
            "chat_template_kwargs",
            "stop_token_ids",
        ]
    ),
    "what clients send for nothing": {
        "store": True,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "verbosity": "low",
        "user": "u",
        "parallel_tool_calls": True,
        "safety_identifier": "s",
        "whatever": [1, {"x": None}],
    },
    "empty and neutral": {
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "n": 1,
        "logit_bias": {},
        "stop": [],
        "functions": [],
        "modalities": ["text"],
        "best_of": 1,
        "top_logprobs": 0,
        "min_tokens": 0,
        "top_k": 0,
        "skip_special_tokens": True,
        "add_generation_prompt": True,
        "typical_p": 1.0,
    },
}


@pytest.mark.parametrize("fields", IGNORED.values(), ids=IGNORED.keys())
async def test_what_can_not_change_the_answer_is_accepted(heads: Heads, fields: dict[str, Any]) -> None:
    reply = await (await heads.start()).chat(**fields)
    assert (reply.status, reply.json().get("error")) == (200, None)


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "text/plain", "application/json; charset=latin-1", ""]
)
async def test_the_content_type_does_not_matter(heads: Heads, content_type: str) -> None:
    head = await heads.start()
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    assert (await head.post(CHAT, body, {"content-type": content_type})).status == 200


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_beyond_the_limit_is_413_before_it_is_parsed(heads: Heads, declared: bool) -> None:
    head = await heads.start(max_body_bytes=2000)
    body = b"x" * 12_000
    if declared:
        reply = await head.post(CHAT, body)
    else:
        chunks = b"".join(b"%x\r\n%s\r\n" % (1000, body[:1000]) for _ in range(12)) + b"0\r\n\r\n"
        start = request_head("POST", CHAT, 0, {"transfer-encoding": "chunked"}).replace(b"content-length: 0\r\n", b"")
        reader, writer = await asyncio.open_connection("127.0.0.1", head.port)
        writer.write(start + chunks)
        reply = parse(await asyncio.wait_for(reader.read(), 10))
        writer.close()
    assert (reply.status, reply.json()["error"]["code"]) == (413, "request_too_large")
    assert (await head.chat()).status == 200
    padding = " " * (1999 - len(json.dumps({"model": MODEL, "messages": []})))
    assert (await head.post(CHAT, {"model": MODEL, "messages": []} | {"pad": padding})).status == 413


async def test_a_client_that_leaves_while_it_sends_leaves_nothing(heads: Heads) -> None:
    head = await heads.start()
    _, writer = await asyncio.open_connection("127.0.0.1", head.port)
    writer.write(request_head("POST", CHAT, 1000) + b'{"model"')
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.close()
    await head.is_idle()
    assert (await raw_request(head.port, "GET", "/health")).status == 200


async def test_no_prompt_and_no_answer_reach_the_log(heads: Heads, caplog: pytest.LogCaptureFixture) -> None:
    head = await heads.start("a-secret-answer", fail_at=3, error=RuntimeError(SECRET))
    with caplog.at_level("DEBUG"):
        for stream in (True, False):
            await head.chat(messages=[{"role": "user", "content": SECRET}], stream=stream, user=SECRET)
        await head.chat(messages=[{"role": "wizard", "content": SECRET}])
    written = "".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert "stream_failed" in written
    assert SECRET not in written
    assert "secret-answer" not in written
