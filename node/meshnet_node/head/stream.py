"""Server-sent events: framing, keep-alive, the slow reader's limit and the client's leaving.

Only `data:` fields and comments, lines ended by LF, `data: [DONE]` as the last event on every path. The reply's status
is promised before this begins; a failure from then on is one event with an `error`, followed by [DONE], never a finish
reason.

Comments are sent by wall clock while nothing else is, whatever the mesh is doing. One event is pulled at a time: a slow
reader stops the pulling, so nothing piles up here.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from meshnet_node.errors import ApiError
from meshnet_node.head.disconnect import until_gone
from meshnet_node.head.replies import error_body, to_json
from meshnet_node.logs import events as event_logger
from meshnet_node.logs import where

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}

_log = event_logger(__name__)


def event(body: BaseModel) -> bytes:
    """One event with a JSON body."""
    return b"data: " + to_json(body) + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """The event that tells a failure after the status line."""
    return b"data: " + json.dumps(error_body(error), ensure_ascii=False).encode() + b"\n\n"


async def guarded(chunks: AsyncGenerator[BaseModel], failed: Callable[[], None]) -> AsyncGenerator[bytes]:
    """The chunks as events, ended by [DONE] in every case; `failed` is called when they end by an error.

    This is the API's boundary for errors that nobody foresaw once the status is out: they are logged by class, as their
    text might hold a prompt's, and told to the client without details.
    """
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield event(chunk)
    except ApiError as error:
        failed()
        yield error_event(error)
    except Exception as error:
        failed()
        _log.error("stream_failed", error=type(error).__name__, where=where(error))
        yield error_event(ApiError("internal error", status=500, type="server_error", code="internal_error"))
    yield DONE


class EventStream(Response):
    """Sends events to a client that reads, and stops at once when it leaves or does not read.

    close: called once at the end, whatever the end was, also when nothing was sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        close: Callable[[], Awaitable[None]],
        *,
        keepalive: float,
        reader_seconds: float,
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._keepalive = keepalive
        self._reader_seconds = reader_seconds
        self._turn = asyncio.Lock()
        self._sending_since: float | None = None
        self._last = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._last = time.monotonic()
        sending = asyncio.ensure_future(self._send_all(send))
        watching = asyncio.ensure_future(self._watch(send))
        gone = asyncio.ensure_future(until_gone(receive))
        tasks = {sending, watching, gone}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if watching.done() and not sending.done():
                _log.info("reader_stuck", seconds=self._reader_seconds)
        finally:
            for task in tasks:
                task.cancel()
            try:
                await asyncio.wait(tasks)
            finally:
                await self._close()
        if not sending.cancelled():
            sending.result()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events) as events:
            async for data in events:
                await self._put(send, data)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _put(self, send: Send, data: bytes) -> None:
        async with self._turn:
            self._sending_since = time.monotonic()
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._sending_since = None
            self._last = time.monotonic()

    async def _watch(self, send: Send) -> None:
        """Comments while nothing else is sent; returns when the client takes nothing for too long.

        One task for both, beside the sending, so that an event costs no timer of its own.
        """
        while True:
            now = time.monotonic()
            if self._sending_since is not None:
                wait = self._sending_since + self._reader_seconds - now
                if wait <= 0:
                    return
                await asyncio.sleep(min(wait, self._keepalive / 10))
            elif (wait := self._last + self._keepalive - now) > 0:
                await asyncio.sleep(min(wait, self._reader_seconds / 4))
            else:
                try:
                    async with asyncio.timeout(self._reader_seconds):
                        await self._put(send, COMMENT)
                except TimeoutError:
                    return
