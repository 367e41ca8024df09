"""What the routes share: one object per app, made by create_app."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from meshnet_node.errors import ApiError
from meshnet_node.head.answer import Answer
from meshnet_node.head.api_metrics import ApiMetrics, Meter
from meshnet_node.head.auth import Keys
from meshnet_node.head.backend import Backend, GenerationRequest
from meshnet_node.head.body import parse_object, read_body, validate
from meshnet_node.head.closing import Closer
from meshnet_node.head.gate import Gate
from meshnet_node.head.refusals import UnknownFields, refuse_unsupported
from meshnet_node.settings import HeadSettings
from meshnet_node.text.control import ControlStringRefused
from meshnet_node.text.template import RESERVED, Message, TemplateRefused
from meshnet_node.text.text_model import TextModel

M = TypeVar("M", bound=BaseModel)

# From here on a body is checked in a thread.
LARGE_BYTES = 256 * 1024


@dataclass(frozen=True)
class Api:
    """name: the served model's name. created: the app's start, in seconds since the epoch."""

    settings: HeadSettings
    text: TextModel
    backend: Backend
    metrics: ApiMetrics
    keys: Keys
    gate: Gate
    name: str
    created: int
    closer: Closer = field(default_factory=Closer)
    unknown: UnknownFields = field(default_factory=UnknownFields)

    def authorize(self, request: Request) -> str:
        """The key's fingerprint. Raises ApiError 401."""
        return self.keys.check(request.headers.get("authorization"))

    async def read(self, request: Request, model: type[M], not_here: frozenset[str] = frozenset()) -> M:
        """The request's body, parsed, checked for what is not supported, and validated. Raises ApiError, ClientGone."""

        def parse(raw: bytes) -> tuple[M, set[str]]:
            body = parse_object(raw)
            refuse_unsupported(body, model.model_fields.keys(), not_here)
            return validate(model, body), body.keys() - model.model_fields.keys()

        raw = await read_body(request, self.settings.max_body_bytes)
        # A hundred thousand messages take more than a second.
        fields, unknown = parse(raw) if len(raw) < LARGE_BYTES else await asyncio.to_thread(parse, raw)
        self.unknown.note(unknown)
        return fields

    def check_model(self, name: str | None) -> None:
        """Raises ApiError 404 for a model that is not served here."""
        if name is not None and name != self.name:
            raise ApiError(
                "the model does not exist here; GET /v1/models lists what is served",
                status=404,
                code="model_not_found",
                param="model",
            )

    def encode_chat(self, messages: list[Message], options: dict[str, Any], *, prompt: bool = True) -> list[int]:
        """The conversation's ids; takes time for long ones, so call it in a thread. Raises ApiError 400."""
        if not RESERVED.isdisjoint(options):
            raise ApiError(
                f"chat_template_kwargs: {', '.join(sorted(RESERVED))} can't be set", param="chat_template_kwargs"
            )
        try:
            return self.text.encode_chat(messages, options, prompt=prompt)
        except (TemplateRefused, ControlStringRefused) as error:
            raise ApiError(str(error), param="messages") from error

    def answer(self, request: GenerationRequest, stops: Sequence[str]) -> Answer:
        """A choice that is not started yet; its owner closes it."""
        detokenizer = self.text.detokenizer(request.prompt)
        return Answer(self.backend, self.closer, request, detokenizer, stops, Meter(self.metrics))
