"""POST /v1/completions: raw prompts in, one choice per prompt out, whole or as a stream.

The first prompt is admitted before the status line; the others follow, a few at a time, in their order. With `echo` the
prompt's text comes first, and with `logprobs` its scores too (evaluation tools read likelihoods from them); the end
token has an entry there, unlike in chat, because these tools count entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from openai.types.completion_choice import Logprobs
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from meshnet_node.head.answer import Answer, Finish
from meshnet_node.head.api import Api
from meshnet_node.head.disconnect import unless_gone
from meshnet_node.head.gate import Slot
from meshnet_node.head.logprobs import LegacyLogprobs
from meshnet_node.head.merging import merge
from meshnet_node.head.planning import check_ids, plan_completion
from meshnet_node.head.replies import Stamp, completion, completion_choice, to_json, usage, with_token_ids
from meshnet_node.head.requests import CompletionRequest, StreamOptions
from meshnet_node.head.stream import EventStream, guarded

AT_ONCE = 4
_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@dataclass(frozen=True)
class Part:
    """A piece of one choice, in the shape of the reply."""

    text: str
    logprobs: Logprobs | None = None
    finish: Finish | None = None
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class ChoiceRun:
    """One prompt with its answer. `echo`: the prompt's text, None when it is not asked for."""

    answer: Answer
    echo: str | None
    legacy: LegacyLogprobs | None
    with_ids: bool = False

    async def parts(self) -> AsyncGenerator[Part]:
        """Echo first, then the answer; the last part has the finish reason."""
        scored = self.echo is not None and self.legacy is not None
        if self.echo is not None and not scored:
            yield Part(self.echo)
        echo = self.echo if scored else None
        async with aclosing(self.answer.pieces()) as pieces:
            async for piece in pieces:
                if echo is not None and self.legacy is not None:
                    yield Part(echo, self.legacy.entries(self.answer.prompt_scores, begins=True))
                    echo = None
                scores = piece.scores if piece.end is None else (*piece.scores, piece.end)
                logprobs = self.legacy.entries(scores) if self.legacy is not None and scores else None
                ids = tuple(score.id for score in scores)
                if piece.text or logprobs or piece.finish or (self.with_ids and ids):
                    yield Part(piece.text, logprobs, piece.finish, ids)


async def completions(api: Api, request: Request) -> Response:
    """The route. Everything about the request itself is refused before the status line."""
    key = api.authorize(request)
    slot = api.gate.enter(key)
    try:
        fields = await api.read(request, CompletionRequest)
        slot.begin()
        api.check_model(fields.model)
        runs = await asyncio.to_thread(_prepare, api, fields, key)
        if fields.stream:
            return await _stream(api, request, fields, runs, slot)
        body = await unless_gone(request.receive, _whole(api, runs))
        slot.leave()
        return Response(body, media_type="application/json")
    except BaseException:
        slot.leave()
        raise


def _prepare(api: Api, fields: CompletionRequest, key: str) -> list[ChoiceRun]:
    return [_run(api, fields, prompt, key) for prompt in fields.prompts]


def _run(api: Api, fields: CompletionRequest, prompt: str | list[int], key: str) -> ChoiceRun:
    if isinstance(prompt, str):
        ids = api.text.encode(prompt)
    else:
        check_ids(prompt, api.text.vocab_size, "prompt")
        ids = prompt
    plan = plan_completion(fields, ids, api.text, api.backend.max_context, key)
    echo = None
    if fields.echo:
        echo = prompt if isinstance(prompt, str) else api.text.decode(prompt)
    legacy = None if fields.logprobs is None else LegacyLogprobs(api.text.vocabulary, fields.logprobs)
    return ChoiceRun(api.answer(plan, fields.stops), echo, legacy, fields.return_token_ids)


async def _close(runs: list[ChoiceRun]) -> None:
    for run in runs:
        await run.answer.close()


def _failed(runs: list[ChoiceRun]) -> None:
    for run in runs:
        run.answer.failed()


async def _whole(api: Api, runs: list[ChoiceRun]) -> bytes:
    stamp = Stamp(api.name, api.backend.fingerprint(), "cmpl")
    found: list[list[Part]] = [[] for _ in runs]
    try:
        async with aclosing(merge([run.parts() for run in runs], AT_ONCE)) as merged:
            async for index, part in merged:
                found[index].append(part)
    finally:
        await _close(runs)
    choices = []
    for index, parts in enumerate(found):
        text = "".join(part.text for part in parts)
        choice = completion_choice(index, text, parts[-1].finish or "stop", _joined(parts))
        ids = [id_ for part in parts for id_ in part.ids]
        choices.append(with_token_ids(choice, ids) if runs[index].with_ids else choice)
    return to_json(completion(stamp, choices, usage([run.answer for run in runs])))


async def _stream(api: Api, request: Request, fields: CompletionRequest, runs: list[ChoiceRun], slot: Slot) -> Response:
    async def close() -> None:
        slot.leave()
        await _close(runs)

    try:
        await unless_gone(request.receive, runs[0].answer.start())
    except BaseException:
        await _close(runs)
        raise
    events = guarded(_chunks(api, fields, runs), lambda: _failed(runs))
    seconds = api.settings.keepalive_seconds
    return EventStream(events, close, keepalive=seconds, reader_seconds=api.settings.reader_seconds)


async def _chunks(api: Api, fields: CompletionRequest, runs: list[ChoiceRun]) -> AsyncGenerator[BaseModel]:
    stamp = Stamp(api.name, api.backend.fingerprint(), "cmpl")
    options = fields.stream_options or StreamOptions()
    answers = [run.answer for run in runs]
    async with aclosing(merge([run.parts() for run in runs], AT_ONCE)) as merged:
        async for index, part in merged:
            choice = completion_choice(index, part.text, part.finish, part.logprobs)
            if fields.return_token_ids:
                choice = with_token_ids(choice, part.ids)
            chunk = completion(stamp, [choice], None)
            if options.include_usage:
                chunk = chunk.model_copy(update={"usage": usage(answers) if options.continuous_usage_stats else None})
            yield chunk
    if options.include_usage:
        yield completion(stamp, [], usage(answers))


def _joined(parts: list[Part]) -> Logprobs | None:
    """All parts' entries as one object."""
    found = [part.logprobs for part in parts if part.logprobs is not None]
    if not found:
        return None
    fields = {name: [item for one in found for item in getattr(one, name)] for name in _LISTS}
    return found[0].model_copy(update=fields)
