"""Bodies of answers, in the models of the openai package, and chunks of streams.

Fields that a strict client must find (content, refusal, finish_reason, logprobs) are always set, null where they are
empty; what was never set is left out of the JSON.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from openai.types import Completion, CompletionChoice, CompletionUsage, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion import ChoiceLogprobs as WholeLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.chat.chat_completion_chunk import ChoiceLogprobs as ChunkLogprobs
from openai.types.completion_choice import Logprobs
from openai.types.completion_usage import PromptTokensDetails
from pydantic import BaseModel

from meshnet_node.errors import ApiError
from meshnet_node.head.answer import Answer, Finish
from meshnet_node.head.logprobs import ChatEntry


@dataclass(frozen=True)
class Stamp:
    """What all chunks of one reply have in common."""

    model: str
    fingerprint: str
    prefix: str
    id: str = field(init=False)
    created: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", f"{self.prefix}-{secrets.token_hex(16)}")
        object.__setattr__(self, "created", int(time.time()))


def usage(answers: Sequence[Answer]) -> CompletionUsage:
    """Sums over all choices; cached tokens are named only where there are some."""
    prompt = sum(answer.prompt_tokens for answer in answers)
    completion = sum(answer.completion_tokens for answer in answers)
    cached = sum(answer.cached_tokens for answer in answers)
    found = CompletionUsage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
    if cached:
        found.prompt_tokens_details = PromptTokensDetails(cached_tokens=cached)
    return found


def chat_completion(
    stamp: Stamp, text: str, finish: Finish, entries: list[ChatEntry] | None, used: CompletionUsage
) -> ChatCompletion:
    """A whole chat answer."""
    choice = Choice(
        index=0,
        message=ChatCompletionMessage(role="assistant", content=text, refusal=None),
        finish_reason=finish,
        logprobs=None if entries is None else WholeLogprobs(content=entries, refusal=None),
    )
    return ChatCompletion(
        id=stamp.id,
        object="chat.completion",
        created=stamp.created,
        model=stamp.model,
        system_fingerprint=stamp.fingerprint,
        choices=[choice],
        usage=used,
    )


def chat_chunk(
    stamp: Stamp,
    *,
    role: bool = False,
    text: str | None = None,
    finish: Finish | None = None,
    entries: list[ChatEntry] | None = None,
) -> ChatCompletionChunk:
    """One chunk: the first has the role, the last an empty delta and the finish reason."""
    delta = ChoiceDelta(role="assistant", content="") if role else ChoiceDelta()
    if text is not None:
        delta = ChoiceDelta(content=text)
    logprobs = None if entries is None else ChunkLogprobs(content=entries, refusal=None)
    return _chat_chunk(stamp, [ChunkChoice(index=0, delta=delta, finish_reason=finish, logprobs=logprobs)])


def chat_usage_chunk(stamp: Stamp, used: CompletionUsage) -> ChatCompletionChunk:
    """The chunk with the usage and no choices."""
    chunk = _chat_chunk(stamp, [])
    chunk.usage = used
    return chunk


def _chat_chunk(stamp: Stamp, choices: list[ChunkChoice]) -> ChatCompletionChunk:
    return ChatCompletionChunk(
        id=stamp.id,
        object="chat.completion.chunk",
        created=stamp.created,
        model=stamp.model,
        system_fingerprint=stamp.fingerprint,
        choices=choices,
    )


def completion_choice(index: int, text: str, finish: Finish | None, logprobs: Logprobs | None) -> CompletionChoice:
    """A choice of a plain completion; in a stream all but the last have no finish reason.

    The package's type knows no null here, though the API sends it: hence the copy past the validation.
    """
    choice = CompletionChoice(index=index, text=text, finish_reason=finish or "stop", logprobs=logprobs)
    return choice if finish else choice.model_copy(update={"finish_reason": None})


def with_token_ids(choice: CompletionChoice, ids: Sequence[int]) -> CompletionChoice:
    """The choice with vLLM's extension `token_ids`."""
    return choice.model_copy(update={"token_ids": list(ids)})


def completion(stamp: Stamp, choices: list[CompletionChoice], used: CompletionUsage | None) -> Completion:
    """A whole plain completion, or one chunk of a stream: both are of the same object type."""
    body = Completion(
        id=stamp.id,
        object="text_completion",
        created=stamp.created,
        model=stamp.model,
        system_fingerprint=stamp.fingerprint,
        choices=choices,
    )
    if used is not None:
        body.usage = used
    return body


def model_card(name: str, created: int, max_context: int) -> dict[str, object]:
    """An entry of GET /v1/models, with the context length as an extension."""
    card = Model(id=name, object="model", created=created, owned_by="meshnet")
    return {**card.model_dump(), "max_model_len": max_context}


def error_body(error: ApiError) -> dict[str, object]:
    """The four keys of the official schema, all present."""
    detail = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"error": detail}


def to_json(body: BaseModel) -> bytes:
    """Compact JSON without what was never set."""
    return body.model_dump_json(exclude_unset=True, warnings=False).encode()
