"""POST /v1/completions: forms of prompts, echo, several choices, streams."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from meshnet_heads import MODEL, Head, Heads, until
from meshnet_serving import Reply, sse_events

from meshnet_node.errors import overloaded
from meshnet_node.head.backend import GenerationRequest

PATH = "/v1/completions"


async def complete(head: Head, prompt: Any, **fields: Any) -> Reply:
    return await head.post(PATH, {"model": MODEL, "prompt": prompt, **fields})


async def test_a_whole_completion(heads: Heads) -> None:
    head = await heads.start(" is Paris.")
    reply = await head.client.completions.create(model=MODEL, prompt="The capital", max_tokens=20)
    assert (reply.object, reply.choices[0].text, reply.choices[0].finish_reason) == (
        "text_completion",
        " is Paris.",
        "stop",
    )
    assert reply.id.startswith("cmpl-")
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len(heads.text.encode("The capital"))
    assert reply.choices[0].logprobs is None


async def test_the_default_budget_is_sixteen_tokens(heads: Heads) -> None:
    head = await heads.start("a " * 40)
    assert (await complete(head, "x")).json()["usage"]["completion_tokens"] == 16
    assert (await complete(head, "x", max_tokens=None)).json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("one", ["one"]),
        (["one", "two"], ["one", "two"]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
    ids=["string", "strings", "ids", "lists of ids"],
)
async def test_each_form_of_a_prompt_gives_one_choice_per_prompt(heads: Heads, prompt: Any, texts: list[Any]) -> None:
    head = await heads.start("yes")
    body = (await complete(head, prompt)).json()
    expected = [tuple(heads.text.encode(text)) if isinstance(text, str) else tuple(text) for text in texts]
    assert [request.prompt for request in head.backend.requests] == expected
    assert [choice["index"] for choice in body["choices"]] == list(range(len(texts)))
    assert body["usage"]["prompt_tokens"] == sum(map(len, expected))
    assert head.backend.open == 0


@pytest.mark.parametrize(
    "prompt",
    [None, "", [], [""], ["a", ""], [[]], [[5], []], [5, "a"], ["a", 5], [[5], 5], 5, {}, [-1], [49152], [[True]],
     [1.5], ["a"] * 129],
)  # fmt: skip
async def test_a_wrong_prompt_is_named(heads: Heads, prompt: Any) -> None:
    head = await heads.start()
    reply = await complete(head, prompt)
    assert (reply.status, reply.json()["error"]["param"]) == (400, "prompt")
    assert not head.backend.requests


@pytest.mark.parametrize(
    ("name", "value"), [("suffix", "x"), ("best_of", 2), ("n", 2), ("logprobs", True), ("logprobs", 21), ("echo", 1)]
)
async def test_fields_that_are_refused(heads: Heads, name: str, value: Any) -> None:
    reply = await complete(await heads.start(), "x", **{name: value})
    assert (reply.status, reply.json()["error"]["param"]) == (400, name)


async def test_max_tokens_zero_with_echo_is_a_400(heads: Heads) -> None:
    # vllm 6521 (case 22).
    assert (await complete(await heads.start(), "x", echo=True, max_tokens=0)).status == 400


@pytest.mark.parametrize("prompt", ["The café", [504, 3575]], ids=["text", "ids"])
async def test_echo_puts_the_prompt_first(heads: Heads, prompt: Any) -> None:
    head = await heads.start(" is")
    shown = prompt if isinstance(prompt, str) else heads.text.decode(prompt)
    assert (await complete(head, prompt, echo=True)).json()["choices"][0]["text"] == shown + " is"
    events = sse_events((await complete(head, prompt, echo=True, stream=True)).body)
    assert events[0]["choices"][0]["text"] == shown


async def test_a_stream_has_reasons_last_and_usage_only_when_asked(heads: Heads) -> None:
    head = await heads.start(" is Paris.")
    events = sse_events((await complete(head, "x", stream=True, stream_options={"include_usage": True})).body)
    assert events[-1] == "[DONE]"
    assert {event["object"] for event in events[:-1]} == {"text_completion"}
    assert (events[-2]["choices"], events[-2]["usage"]["completion_tokens"]) == ([], 4)
    reasons = [event["choices"][0]["finish_reason"] for event in events[:-2]]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert "".join(event["choices"][0]["text"] for event in events[:-2]) == " is Paris."
    events = sse_events((await complete(head, "x", stream=True)).body)[:-1]
    assert not any("usage" in event for event in events)
    stream = await head.client.completions.create(model=MODEL, prompt="x", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == " is Paris."


async def test_many_prompts_stream_side_by_side_each_with_its_own_text(heads: Heads) -> None:
    # mlx-lm 965 (case 34).
    def script(request: GenerationRequest) -> list[int]:
        return [*heads.text.encode(f" echo {request.prompt[-1]} end", special=False), *heads.text.eos_ids]

    head = await heads.start(script=script, delay=0.002)
    prompts = [[number] for number in range(20, 32)]
    events = sse_events((await complete(head, prompts, stream=True, max_tokens=40)).body)[:-1]
    texts: dict[int, str] = {}
    for event in events:
        choice = event["choices"][0]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {index: f" echo {index + 20} end" for index in range(12)}
    assert sum(event["choices"][0]["finish_reason"] == "stop" for event in events) == 12
    await head.is_idle()


async def test_equal_prompts_in_a_batch_get_other_seeds_unless_one_is_given(heads: Heads) -> None:
    # mlx-vlm 1818 (case 19).
    head = await heads.start()
    await complete(head, ["a", "a"])
    await complete(head, ["a", "a"], seed=5)
    seeds = [request.sampling.seed for request in head.backend.requests]
    assert seeds[0] != seeds[1]
    assert seeds[2:] == [5, 5]


async def test_one_refused_prompt_ends_all(heads: Heads) -> None:
    head = await heads.start(start_error=overloaded("full"))
    for stream in (False, True):
        assert (await complete(head, ["a", "b", "c"], stream=stream)).status == 503
    head = await heads.start("one two three", fail_at=2)
    assert (await complete(head, ["a", "b", "c"])).status == 503
    events = sse_events((await complete(head, ["a", "b", "c"], stream=True)).body)
    assert (events[-1], events[-2]["error"]["code"]) == ("[DONE]", "overloaded")
    await head.is_idle()


async def test_a_batch_whose_client_leaves_is_closed_as_a_whole(heads: Heads) -> None:
    head = await heads.start("word " * 200, delay=0.005)
    task = asyncio.ensure_future(complete(head, ["a", "b", "c", "d", "e", "f"], max_tokens=500))
    await until(lambda: head.backend.said >= 20)
    task.cancel()
    await head.is_idle()
    assert len(head.backend.requests) == 4  # the others had not begun


async def test_a_prompt_beyond_the_context(heads: Heads) -> None:
    head = await heads.start(max_context=4)
    reply = await complete(head, [5, 6, 7, 8])
    assert (reply.status, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert (await complete(head, [5, 6, 7])).json()["usage"]["completion_tokens"] == 1
