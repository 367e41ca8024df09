"""The shard's routes and its server: nothing here but translation between the web framework and the shard.

Invariant: uvicorn's own signal handling is off, because it would close the links at once; a SIGTERM drains first.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request as HandshakeRequest

from meshnet_node.errors import WireError
from meshnet_node.metrics import exposition
from meshnet_node.settings import ShardSettings
from meshnet_node.shard.forward_http import close_session, describe, forward
from meshnet_node.shard.link import serve_link
from meshnet_node.shard.process import MAX_MESSAGE_BYTES, Loader, Shard
from meshnet_node.shard.runner import RangeRunner
from meshnet_node.wire.frames import HELLO_LIMIT
from meshnet_node.wire.handshake import TokenFile
from meshnet_node.wire.listen import listen

USER_TIMEOUT_MS = 20_000
_LIFT = "meshnet.lift"


def create_app(
    settings: ShardSettings, load: Loader = RangeRunner.load, clock: Callable[[], float] = time.monotonic
) -> FastAPI:
    """The application; its lifespan starts to load the weights. `app.state.shard` is the process's Shard."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        shard = Shard(settings, load, clock)
        app.state.shard = shard
        shard.start()
        yield
        await shard.stop()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(WireError, _refuse)
    app.add_api_websocket_route("/v1/link", _link)
    app.add_api_route("/v1/forward", _forward, methods=["POST"], response_model=None)
    app.add_api_route("/v1/info", _info, methods=["GET"], response_model=None)
    app.add_api_route("/v1/sessions/{session}", _delete, methods=["DELETE"], response_model=None)
    app.add_api_route("/healthz", _healthz, methods=["GET"], response_model=None)
    app.add_api_route("/readyz", _readyz, methods=["GET"], response_model=None)
    app.add_api_route("/metrics", _metrics, methods=["GET"], response_model=None)
    return app


async def serve(settings: ShardSettings) -> None:
    """Run the shard until SIGTERM (drains) or SIGINT. Raises what the weights' loading raised, or ConfigError."""
    app = create_app(settings)
    TokenFile(settings.token_file)  # one that is wrong ends the process here, with its sentence
    listener = listen(settings.host, settings.port, USER_TIMEOUT_MS)
    server = Server(server_config(app))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, server.exit)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await _until_over(server, running, app, stop)
    finally:
        server.exit()
        await running
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)


async def _until_over(server: Server, running: asyncio.Task[None], app: FastAPI, stop: asyncio.Event) -> None:
    """The server ended, the shard failed (raised), or SIGTERM came and the sessions are through."""
    up, stopping = asyncio.create_task(server.up.wait()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, up}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return
        shard: Shard = app.state.shard
        ends: list[asyncio.Future[Any]] = [running, stopping, shard.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if shard.failed.done():
            raise shard.failed.result()
        if not running.done():
            await shard.drain()
    finally:
        up.cancel()
        stopping.cancel()


class Server(uvicorn.Server):
    """uvicorn without its signal handlers. `up` is set once it listens; `exit` ends it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def exit(self) -> None:
        """Close listeners and connections; serve() then returns."""
        self.should_exit = True


class LinkProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, which refuses messages above HELLO_LIMIT while they come in (1009), until `lift`:
    whoever has not proved the token can't make this process hold more."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn.max_message_size = HELLO_LIMIT

    def handle_connect(self, event: HandshakeRequest) -> None:
        super().handle_connect(event)
        self.scope["extensions"][_LIFT] = {"call": self.lift}

    def lift(self) -> None:
        """The hello succeeded: messages up to the shard's limit are read."""
        self.conn.max_message_size = self.config.ws_max_size


def server_config(app: FastAPI) -> uvicorn.Config:
    """No compression, no pings of its own (the heartbeat is a frame), no access log."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        http="httptools",
        ws=LinkProtocol,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        ws_ping_timeout=None,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=2,
    )


async def _refuse(_: Request, error: Exception) -> Response:
    """{"error": CODE, "message": ..., "have": ...} with the code's status."""
    if not isinstance(error, WireError):
        raise error
    body: dict[str, object] = {"error": error.code, "message": error.message}
    if error.have is not None:
        body["have"] = error.have
    return JSONResponse(body, status_code=error.status)


def _shard(request: Request) -> Shard:
    shard: Shard = request.app.state.shard
    return shard


async def _forward(request: Request) -> Response:
    body, headers = await forward(_shard(request), request.headers, request.stream())
    return Response(body, media_type="application/octet-stream", headers=headers)


async def _info(request: Request) -> Response:
    return Response(describe(_shard(request), request.headers), media_type="application/json")


async def _delete(request: Request) -> Response:
    await close_session(_shard(request), request.headers, request.path_params["session"])
    return Response(status_code=204)


async def _healthz(request: Request) -> Response:
    """200 while this process works, also while it loads; 503 when a group hangs on the model thread."""
    shard = _shard(request)
    done, total = shard.progress
    sound = not shard.hung and shard.phase != "failed"
    body = {"status": shard.phase if sound else "hung", "loaded_bytes": done, "total_bytes": total}
    return JSONResponse(body, status_code=200 if sound else 503)


async def _readyz(request: Request) -> Response:
    """200 when the weights are loaded, probed, and new sessions are taken. Says which model it serves: the operator,
    which knows no shard token, reads it here."""
    shard = _shard(request)
    done, total = shard.progress
    body: dict[str, object] = {"status": shard.phase, "loaded_bytes": done, "total_bytes": total}
    if shard.phase == "ready":
        body |= {"fingerprint": shard.loaded.info.fingerprint, "pod_uid": shard.pod_uid}
    return JSONResponse(body, status_code=200 if shard.phase == "ready" else 503)


async def _metrics(request: Request) -> Response:
    body, content_type = exposition(_shard(request).registry)
    return Response(body, headers={"Content-Type": content_type})


async def _link(websocket: WebSocket) -> None:
    shard: Shard = websocket.app.state.shard
    await websocket.accept()
    await serve_link(shard, _Socket(websocket))


class _Socket:
    """link.Socket over the framework's WebSocket."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> bytes | None:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        data: bytes | None = message.get("bytes")
        return data if data is not None else message.get("text", "").encode()

    def lift(self) -> None:
        self._websocket.scope["extensions"][_LIFT]["call"]()

    async def send(self, message: bytes) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await self._websocket.send_bytes(message)

    async def close(self, code: int, reason: str) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await self._websocket.close(code, reason)
