"""Clients that leave, do not read, or come in crowds: nothing is left behind and nobody else is disturbed."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from meshnet_heads import CHAT, MODEL, Head, Heads, until
from meshnet_serving import head as request_head
from meshnet_serving import sse_events

from meshnet_node.head.backend import GenerationRequest


async def open_chat(head: Head, **fields: Any) -> asyncio.StreamWriter:
    """A chat request whose answer nobody reads."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **fields}).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", head.port)
    writer.write(request_head("POST", CHAT, len(body)) + body)
    return writer


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_in_mid_answer_frees_everything_at_once(heads: Heads, stream: bool) -> None:
    # vllm 9428, 54947, ATOM 1562, sglang 36333 (cases 31, 32).
    head = await heads.start("word " * 300, delay=0.01, max_context=5000)
    writer = await open_chat(head, stream=stream)
    await until(lambda: head.backend.said > 3)
    writer.close()
    await head.is_idle(1.0)
    said = head.backend.said
    assert head.backend.closes == 1
    await asyncio.sleep(0.1)
    assert head.backend.said == said
    assert (await head.chat(max_tokens=3)).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_it_waits_for_admission(heads: Heads, stream: bool) -> None:
    head = await heads.start(start_gate=asyncio.Event())
    writer = await open_chat(head, stream=stream)
    await until(lambda: len(head.backend.requests) == 1)
    writer.close()
    await head.is_idle()
    await until(lambda: head.backend.cancelled_starts == 1)
    assert head.backend.closes == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_during_prefill_or_recovery(heads: Heads, stream: bool) -> None:
    head = await heads.start("a b c", pause_at=0)
    writer = await open_chat(head, stream=stream)
    await until(lambda: head.backend.open == 1)
    writer.close()
    await head.is_idle()
    assert head.backend.closes == 1


async def test_the_client_librarys_own_close_is_heard(heads: Heads) -> None:
    head = await heads.start("word " * 300, delay=0.01, max_context=5000)
    stream = await head.client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    await anext(aiter(stream))
    await stream.close()
    await head.is_idle(1.0)


async def test_a_normal_end_is_closed_once_and_never_aborted(heads: Heads) -> None:
    # ATOM's log counted 58,455 useless aborts.
    head = await heads.start("a b c")
    for stream in (False, True):
        await head.chat(stream=stream)
    await head.is_idle()
    assert head.backend.closes == 2
    metrics = (await head.get("/metrics")).body.decode()
    assert 'finished_reason="stop",model_name="smollm2"} 2.0' in metrics
    assert 'finished_reason="abort"' not in metrics


async def test_a_reader_that_takes_nothing_is_given_up(heads: Heads) -> None:
    head = await heads.start("word " * 50, reader_seconds=0.4, max_context=10**7)
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, ("127.0.0.1", head.port))
        fields = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
        body = json.dumps({**fields, "stream": True, "ignore_eos": True}).encode()
        await loop.sock_sendall(raw, request_head("POST", CHAT, len(body)) + body)
        await until(lambda: head.backend.said > 0)
        await head.is_idle(30)
        said = head.backend.said
        await asyncio.sleep(0.1)
        assert head.backend.said == said


async def test_crowds_with_leavers_among_them_get_each_its_own_answer(heads: Heads) -> None:
    # mlx-lm 965, ollama 17475, vllm 10931 (cases 34, 35, 38).
    def script(request: GenerationRequest) -> list[int]:
        return [*heads.text.encode(f"answer to {request.sampling.seed}", special=False), *heads.text.eos_ids]

    head = await heads.start(script=script, delay=0.003)

    async def ask(number: int) -> str:
        if number % 4 == 3:
            writer = await open_chat(head, seed=number, stream=True)
            await asyncio.sleep(0.02)
            writer.close()
            return f"answer to {number}"
        reply = await head.chat(seed=number, stream=number % 2 == 0)
        assert reply.status == 200
        if number % 2:
            return str(reply.json()["choices"][0]["message"]["content"])
        events = sse_events(reply.body)[:-1]
        return "".join(event["choices"][0]["delta"].get("content", "") for event in events)

    answers = await asyncio.gather(*(ask(number) for number in range(24)))
    assert answers == [f"answer to {number}" for number in range(24)]
    await head.is_idle()


async def test_more_than_the_head_works_on_are_refused_before_any_work(heads: Heads) -> None:
    # vllm 58192 (case 37): counted in the step that checks.
    head = await heads.start("a b", start_gate=asyncio.Event(), max_requests=3)
    asked = [asyncio.ensure_future(head.chat()) for _ in range(8)]
    await until(lambda: sum(task.done() for task in asked) == 5 and len(head.backend.requests) == 3)
    assert head.backend.start_gate is not None
    head.backend.start_gate.set()
    replies = await asyncio.gather(*asked)
    assert sorted(reply.status for reply in replies) == [200] * 3 + [503] * 5
    refused = next(reply for reply in replies if reply.status == 503)
    assert (refused.json()["error"]["code"], "retry-after" in refused.headers) == ("overloaded", True)
    assert (await head.chat()).status == 200
    await head.is_idle()


async def test_health_answers_while_the_head_is_full(heads: Heads) -> None:
    head = await heads.start("a", start_gate=asyncio.Event(), max_requests=1)
    writer = await open_chat(head)
    await until(lambda: len(head.backend.requests) == 1)
    assert (await head.get("/health")).status == 200
    writer.close()
    await head.is_idle()
