"""The outermost layer: request ids, tolerant paths, errors as bodies of the API's shape, one log line a request.

This is the API's boundary for errors that nobody foresaw before the status line (stream.py has the one after it): the
client is told nothing of them, the log gets class and place, as an error's text might hold a prompt's.
"""

from __future__ import annotations

import re
import time
import uuid

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshnet_node.errors import ApiError
from meshnet_node.head.api_metrics import ApiMetrics
from meshnet_node.head.disconnect import ClientGone
from meshnet_node.head.gate import Gate
from meshnet_node.head.replies import error_body
from meshnet_node.logs import events, where

CLIENT_GONE = 499
CLOSE = (b"connection", b"close")

_GOOD_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_SLASHES = re.compile(r"/{2,}")
_log = events(__name__)


class Edge:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, metrics: ApiMetrics, gate: Gate) -> None:
        self._app = app
        self._metrics = metrics
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        scope = {**scope, "path": _tolerant(scope["path"])}
        request_id = _request_id(scope)
        status = 0

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
                # Another head may be ready: the next request, or try, must not come here again by this connection.
                if self._gate.leaving and CLOSE not in message["headers"]:
                    message["headers"].append(CLOSE)
            await send(message)

        try:
            await self._app(scope, receive, tagged)
        except ClientGone:
            status = status or CLIENT_GONE
        except Exception as error:
            _log.error("request_failed", request=request_id.decode(), error=type(error).__name__, where=where(error))
            if not status:
                await error_response(_INTERNAL)(scope, receive, tagged)
        finally:
            self._note(scope, request_id, status, time.perf_counter() - begin)

    def _note(self, scope: Scope, request_id: bytes, status: int, seconds: float) -> None:
        if status >= 400:
            self._metrics.rejected(status)
        _log.info(
            "request",
            request=request_id.decode(),
            method=scope["method"],
            path=scope["path"],
            status=status,
            seconds=round(seconds, 4),
        )


_INTERNAL = ApiError("internal error", status=500, type="server_error", code="internal_error")


def error_response(error: ApiError) -> Response:
    """An error as a response, with the headers that belong to its status."""
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    elif error.status < 500:
        # The official clients try some of these again by themselves: the same request would get the same answer.
        headers["x-should-retry"] = "false"
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status == 413 or error.code == "not_ready":
        headers["connection"] = "close"
    return JSONResponse(error_body(error), status_code=error.status, headers=headers)


def _tolerant(path: str) -> str:
    """Clients put base address and route together in many ways: doubled and trailing slashes mean nothing."""
    return _SLASHES.sub("/", path).rstrip("/") or "/"


def _request_id(scope: Scope) -> bytes:
    """The client's own id if it is harmless, else a new one. It is only echoed and logged, never used as a key."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _GOOD_ID.fullmatch(value):
            return bytes(value)
    return uuid.uuid4().hex.encode()
