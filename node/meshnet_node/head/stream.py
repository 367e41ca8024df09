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
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from meshnet_node.errors import ApiError
from meshnet_node.head.disconnect import until_gone
from meshnet_node.head.replies import error_body, to_json
from meshnet_node.logs import events as event_logger

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


def where(error: BaseException) -> str:
    """File and line in which an error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(send))
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            sending.cancel()
            try:
                await asyncio.wait({sending, gone})
            finally:
                await self._close()
        if sending.cancelled():
            _log.info("client_gone", path=str(scope.get("path")))
        elif isinstance(sending.exception(), TimeoutError):
            _log.info("reader_stuck", seconds=self._reader_seconds)
        else:
            sending.result()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events), aclosing(self._with_comments()) as parts:
            async for data in parts:
                async with asyncio.timeout(self._reader_seconds):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _with_comments(self) -> AsyncGenerator[bytes]:
        while True:
            upcoming = asyncio.ensure_future(anext(self._events, None))
            try:
                while not (await asyncio.wait({upcoming}, timeout=self._keepalive))[0]:
                    yield COMMENT
            finally:
                upcoming.cancel()
                await asyncio.wait({upcoming})
            data = upcoming.result()
            if data is None:
                return
            yield data
