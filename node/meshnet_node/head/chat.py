"""POST /v1/chat/completions: one conversation in, one answer out, whole or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from meshnet_node.head.answer import Answer
from meshnet_node.head.api import Api
from meshnet_node.head.disconnect import unless_gone
from meshnet_node.head.gate import Slot
from meshnet_node.head.logprobs import ChatEntry, chat_entries
from meshnet_node.head.messages import for_template
from meshnet_node.head.planning import plan_chat
from meshnet_node.head.replies import Stamp, chat_chunk, chat_completion, chat_usage_chunk, to_json, usage
from meshnet_node.head.requests import ChatRequest, StreamOptions
from meshnet_node.head.stream import EventStream, guarded

NOT_IN_CHAT = frozenset({"echo", "prompt"})


async def chat_completions(api: Api, request: Request) -> Response:
    """The route. Everything that can be refused is refused before the status line."""
    key = api.authorize(request)
    slot = api.gate.enter(key)
    try:
        fields = await api.read(request, ChatRequest, NOT_IN_CHAT)
        slot.begin()
        answer = await _prepare(api, fields, key)
        if fields.stream:
            return await _stream(api, request, fields, answer, slot)
        body = await unless_gone(request.receive, _whole(api, fields, answer))
        slot.leave()
        return Response(body, media_type="application/json")
    except BaseException:
        slot.leave()
        raise


async def _prepare(api: Api, fields: ChatRequest, key: str) -> Answer:
    api.check_model(fields.model)
    options = dict(fields.chat_template_kwargs)
    if fields.reasoning_effort is not None:
        options.setdefault("reasoning_effort", fields.reasoning_effort)
    ids = await asyncio.to_thread(lambda: api.encode_chat(for_template(fields.messages), options))
    plan = plan_chat(fields, ids, api.text, api.backend.max_context, key)
    return api.answer(plan, fields.stops)


async def _whole(api: Api, fields: ChatRequest, answer: Answer) -> bytes:
    """The body of an answer that is not streamed."""
    stamp = Stamp(api.name, api.backend.fingerprint(), "chatcmpl")
    texts: list[str] = []
    entries: list[ChatEntry] = []
    try:
        async with aclosing(answer.pieces()) as pieces:
            async for piece in pieces:
                texts.append(piece.text)
                if fields.logprobs:
                    entries += chat_entries(piece.scores, api.text.vocabulary, fields.top_logprobs)
    finally:
        await answer.close()
    logprobs = entries if fields.logprobs else None
    return to_json(chat_completion(stamp, "".join(texts), piece.finish or "stop", logprobs, usage([answer])))


async def _stream(api: Api, request: Request, fields: ChatRequest, answer: Answer, slot: Slot) -> Response:
    async def close() -> None:
        slot.leave()
        await answer.close()

    try:
        await unless_gone(request.receive, answer.start())
    except BaseException:
        await answer.close()
        raise
    events = guarded(_chunks(api, fields, answer), answer.failed)
    seconds = api.settings.keepalive_seconds
    return EventStream(events, close, keepalive=seconds, reader_seconds=api.settings.reader_seconds)


async def _chunks(api: Api, fields: ChatRequest, answer: Answer) -> AsyncGenerator[BaseModel]:
    """Role, text, finish reason; then the usage, where it was asked for."""
    stamp = Stamp(api.name, api.backend.fingerprint(), "chatcmpl")
    options = fields.stream_options or StreamOptions()

    def with_usage(chunk: BaseModel) -> BaseModel:
        if not options.include_usage:
            return chunk
        return chunk.model_copy(update={"usage": usage([answer]) if options.continuous_usage_stats else None})

    yield with_usage(chat_chunk(stamp, role=True))
    async with aclosing(answer.pieces()) as pieces:
        async for piece in pieces:
            entries = chat_entries(piece.scores, api.text.vocabulary, fields.top_logprobs) if fields.logprobs else []
            if piece.text or entries:
                yield with_usage(chat_chunk(stamp, text=piece.text, entries=entries or None))
            if piece.finish:
                yield with_usage(chat_chunk(stamp, finish=piece.finish))
    if options.include_usage:
        yield chat_usage_chunk(stamp, usage([answer]))
