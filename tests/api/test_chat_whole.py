"""Chat answers in one piece, through the real client."""

from __future__ import annotations

import asyncio
import time

import pytest
from meshnet_heads import MODEL, Heads
from openai import APIStatusError, BadRequestError, InternalServerError, NotFoundError

from meshnet_node.errors import ApiError, overloaded
from meshnet_node.head.backend import GenerationRequest

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


async def test_the_answer_has_text_reason_usage_and_fingerprint(heads: Heads) -> None:
    head = await heads.start("Paris is the capital.")
    begin = int(time.time())
    reply = await head.client.chat.completions.create(model=MODEL, messages=MESSAGES)
    choice = reply.choices[0]
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", "Paris is the capital.")
    assert (choice.finish_reason, choice.logprobs, reply.object) == ("stop", None, "chat.completion")
    assert reply.id.startswith("chatcmpl-")
    assert begin <= reply.created <= time.time()
    assert (reply.model, reply.system_fingerprint) == (MODEL, "fp_scripted")
    prompt = len(heads.text.encode_chat(MESSAGES))
    said = len(heads.text.encode("Paris is the capital.", special=False)) + 1  # the end token counts
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (prompt, said)
    assert reply.usage.total_tokens == prompt + said
    assert reply.usage.prompt_tokens_details is None
    assert (head.backend.open, head.api.gate.inside) == (0, 0)


async def test_keys_of_the_message_are_all_there_and_none_that_nobody_asked_for(heads: Heads) -> None:
    reply = (await (await heads.start()).chat()).json()
    assert set(reply["choices"][0]) == {"index", "message", "finish_reason", "logprobs"}
    assert reply["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Paris is the capital.",
        "refusal": None,
    }
    assert set(reply["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens"}


async def test_tokens_taken_from_a_cache_are_named(heads: Heads) -> None:
    head = await heads.start(cached=7)
    assert (await head.chat()).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}


async def test_the_budget_ends_an_answer_by_length(heads: Heads) -> None:
    # mini-sglang 126 (case 9): always "stop" and zeros.
    head = await heads.start("one two three four five six")
    reply = await head.client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=3)
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.content == "one two three"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 3


async def test_max_completion_tokens_wins_over_the_old_name(heads: Heads) -> None:
    head = await heads.start("a b c d e f g h i j")
    await head.chat(max_completion_tokens=2, max_tokens=5)
    await head.chat(max_tokens=5)
    assert [request.max_new_tokens for request in head.backend.requests] == [2, 5]


async def test_a_stop_string_is_cut_exactly_across_tokens(heads: Heads) -> None:
    # mlx-knife 68 (case 4).
    head = await heads.start("alpha beta gamma delta")
    reply = await head.client.chat.completions.create(model=MODEL, messages=MESSAGES, stop=["beta gamma"])
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("alpha ", "stop")
    said = len(heads.text.encode("alpha beta gamma", special=False))
    assert reply.usage is not None
    assert reply.usage.completion_tokens == said  # generated, though not shown
    assert head.backend.open == 0


async def test_without_a_seed_equal_calls_get_other_seeds_and_with_one_the_same(heads: Heads) -> None:
    # mlx-vlm 1818 (case 19), vllm 51226 (case 18).
    head = await heads.start()
    for seed in (None, None, 7, 7, -1, -(2**63), 2**63 - 1):
        assert (await head.chat(seed=seed)).status == 200
    seeds = [request.sampling.seed for request in head.backend.requests]
    assert seeds[0] != seeds[1]
    assert seeds[2:] == [7, 7, 2**64 - 1, 2**63, 2**63 - 1]


async def test_sampling_fields_reach_the_backend(heads: Heads) -> None:
    head = await heads.start()
    fields = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1,
        "repetition_penalty": 1.1, "logit_bias": {"5": -100, "6": 250}, "ignore_eos": True, "stop_token_ids": [9],
        "min_tokens": 2, "max_tokens": 8,
    }  # fmt: skip
    assert (await head.chat(**fields)).status == 200
    request: GenerationRequest = head.backend.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, -1, 1.1)
    assert sampling.logit_bias == {5: -100.0, 6: 100.0}
    assert sampling.gen_start == len(request.prompt)
    assert (request.stop_ids, request.min_tokens, request.max_new_tokens) == (frozenset({9}), 2, 8)
    assert request.max_hold == 45


@pytest.mark.parametrize(
    ("fields", "temperature", "top_p", "top_k"),
    [
        ({}, 1.0, 1.0, 0),
        ({"temperature": 0}, 0.0, 1.0, 0),
        ({"top_p": 0, "temperature": 1.5}, 0.0, 1.0, 0),
        ({"top_k": -1}, 1.0, 1.0, 0),
        ({"temperature": None, "top_p": None, "top_k": None}, 1.0, 1.0, 0),
    ],
    ids=["defaults", "greedy", "top_p 0 is greedy", "top_k off", "nulls"],
)
async def test_sampling_defaults(
    heads: Heads, fields: dict[str, float], temperature: float, top_p: float, top_k: int
) -> None:
    head = await heads.start()
    await head.chat(**fields)
    sampling = head.backend.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (temperature, top_p, top_k)
    assert head.backend.requests[0].stop_ids == heads.text.eos_ids


async def test_a_full_mesh_is_503_with_retry_after(heads: Heads) -> None:
    head = await heads.start(start_error=overloaded("the mesh is full", 7))
    with pytest.raises(InternalServerError) as caught:
        await head.client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert (caught.value.status_code, caught.value.code, caught.value.type) == (503, "overloaded", "server_error")
    assert caught.value.response.headers["retry-after"] == "7"
    assert head.api.gate.inside == 0


async def test_a_failure_before_the_whole_answer_is_a_status(heads: Heads) -> None:
    head = await heads.start(fail_at=2)
    with pytest.raises(APIStatusError) as caught:
        await head.client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert caught.value.status_code == 503
    assert (head.backend.open, head.api.gate.inside) == (0, 0)


async def test_a_bug_is_a_500_without_details_and_the_next_request_is_fine(heads: Heads) -> None:
    head = await heads.start(fail_at=1, error=KeyError("the user's secret"))
    reply = await head.chat()
    assert (reply.status, reply.json()["error"]["code"]) == (500, "internal_error")
    assert b"secret" not in reply.body
    assert head.backend.open == 0
    head.backend.fail_at = None
    assert (await head.chat()).status == 200


async def test_an_unknown_model_is_404(heads: Heads) -> None:
    head = await heads.start()
    with pytest.raises(NotFoundError) as caught:
        await head.client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_the_same_request_id_twice_at_once_gets_two_answers(heads: Heads) -> None:
    # vllm 10583 (case 36): a client's id is echoed, never a key.
    head = await heads.start(delay=0.01)
    replies = await asyncio.gather(*(head.post_chat_with_id("same-id") for _ in range(4)))
    assert [reply.status for reply in replies] == [200] * 4
    assert {reply.headers["x-request-id"] for reply in replies} == {"same-id"}
    assert len({reply.json()["id"] for reply in replies}) == 4


async def test_a_request_without_an_id_or_with_a_bad_one_gets_one(heads: Heads) -> None:
    head = await heads.start()
    ids = {(await head.chat()).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
    assert (await head.post_chat_with_id("a" * 500)).headers["x-request-id"] != "a" * 500


@pytest.mark.parametrize("over", [0, 1, 50])
async def test_a_prompt_at_and_beyond_the_context(heads: Heads, over: int) -> None:
    # llama-cpp-python 1759 (case 99), mini-sglang (case 29): an over-long prompt is told, in words that clients know.
    head = await heads.start()
    length = len(heads.text.encode_chat(MESSAGES))
    head.backend.max_context = length + 1 - over
    if over == 0:
        reply = await head.client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=99)
        assert reply.choices[0].finish_reason == "length"
        assert head.backend.requests[0].max_new_tokens == 1
        return
    for stream in (False, True):
        with pytest.raises(BadRequestError) as caught:
            await head.client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=99, stream=stream)
        assert caught.value.code == "context_length_exceeded"
        assert f"maximum context length is {length + 1 - over} tokens. However, you requested {length + 99} tokens" in (
            caught.value.message
        )


@pytest.mark.parametrize("stream", [False, True])
async def test_a_too_large_budget_is_clamped_in_both_modes(heads: Heads, stream: bool) -> None:
    # huggingface_hub 2514 (case 14): the same status both ways.
    head = await heads.start()
    assert (await head.chat(max_tokens=10**9, stream=stream)).status == 200
    request = head.backend.requests[0]
    assert request.max_new_tokens == head.backend.max_context - len(request.prompt)


async def test_the_error_of_a_backend_keeps_all_its_parts(heads: Heads) -> None:
    head = await heads.start(start_error=ApiError("no path", status=503, type="server_error", code="not_ready"))
    reply = await head.chat()
    assert reply.json() == {"error": {"message": "no path", "type": "server_error", "param": None, "code": "not_ready"}}
