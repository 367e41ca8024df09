"""Heads over a scripted backend, served on loopback, with the real client library."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from meshnet_scripted import Script, ScriptedBackend
from meshnet_serving import Reply, raw_request, serving
from openai import AsyncOpenAI

from meshnet_node.head.api import Api
from meshnet_node.head.app import create_app
from meshnet_node.settings import HeadSettings
from meshnet_node.text.text_model import TextModel

MODEL = "smollm2"
CHAT = "/v1/chat/completions"


async def until(true: Callable[[], bool], seconds: float = 5.0) -> None:
    """Fails unless it becomes true in time."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


@dataclass
class Head:
    """A served app with its backend and clients."""

    backend: ScriptedBackend
    api: Api
    port: int
    stack: AsyncExitStack

    @cached_property
    def client(self) -> AsyncOpenAI:
        """The real client library."""
        client = AsyncOpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=20)
        self.stack.push_async_callback(client.close)
        return client

    async def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> Reply:
        """A raw request; `body` is sent as it is when it is bytes, else as JSON."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await raw_request(self.port, "POST", path, raw, headers)

    async def get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        return await raw_request(self.port, "GET", path, b"", headers)

    async def chat(self, **fields: Any) -> Reply:
        """A raw chat request with usual defaults."""
        return await self.post(CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **fields})

    async def is_idle(self, seconds: float = 2.0) -> None:
        """Fails unless every generation is closed, once, and no request is inside, within a moment."""
        await until(lambda: not (self.backend.open or self.api.gate.inside or self.api.closer.pending), seconds)

    async def post_chat_with_id(self, request_id: str) -> Reply:
        """A chat request with an X-Request-Id of the client's."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
        return await self.post(CHAT, body, {"x-request-id": request_id})


class Heads:
    """Starts heads for a test and stops them after it."""

    def __init__(self, folder: Path, text: TextModel, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.text = text

    def says(self, answer: str, end: bool = True) -> Script:
        """A script that says `answer`, then (by default) ends the turn."""
        ids = self.text.encode(answer, special=False) + (sorted(self.text.eos_ids)[:1] if end else [])
        return lambda request: ids

    async def start(
        self, answer: str | Sequence[int] = "Paris is the capital.", *, text: TextModel | None = None, **options: Any
    ) -> Head:
        """options: fields of HeadSettings, the rest fields of ScriptedBackend."""
        known = HeadSettings.model_fields.keys()
        settings = {name: value for name, value in options.items() if name in known and name != "max_context"}
        backend_fields = {name: value for name, value in options.items() if name not in settings}
        ids = None if isinstance(answer, str) else list(answer)
        script = self.says(answer) if isinstance(answer, str) else lambda request: ids
        backend = ScriptedBackend(**{"script": script, **backend_fields})
        head_settings = HeadSettings(
            **{"model": str(self._folder), "routes": "unused", "served_name": MODEL, **settings}
        )
        app = create_app(head_settings, text or self.text, backend)
        port = await self._stack.enter_async_context(serving(app))
        return Head(backend, app.state.api, port, self._stack)
