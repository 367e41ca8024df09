"""An app under the real server on loopback, in the test's own event loop, and raw HTTP beside it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[int]:
    """The port on which the app is served."""
    listener = socket.socket()
    # Small, so that a client that does not read is felt soon.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", lifespan="off")
    server = uvicorn.Server(config)
    # Without the main loop, which only ticks and watches for signals, and without the pauses of its shutdown.
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup([listener])
    try:
        yield listener.getsockname()[1]
    finally:
        for connection in list(server.server_state.connections):
            connection.shutdown()
        for listening in server.servers:
            listening.close()
        listener.close()
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Reply:
    """status 0: the connection was closed without an answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def raw_request(
    port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> Reply:
    """One request written by hand, so that no client library repairs it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head(method, path, len(body), headers) + body)
        await writer.drain()
        return parse(await asyncio.wait_for(reader.read(), 20))
    finally:
        writer.close()
        await writer.wait_closed()


def head(method: str, path: str, length: int, headers: dict[str, str] | None = None) -> bytes:
    """Request line and headers."""
    lines = [f"{method} {path} HTTP/1.1", "host: mesh", "connection: close", f"content-length: {length}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def parse(raw: bytes) -> Reply:
    """Status, headers and body of a whole answer, chunks joined."""
    if not raw:
        return Reply(0, {}, b"")
    start, _, rest = raw.partition(b"\r\n\r\n")
    first, *lines = start.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        rest = _unchunked(rest)
    return Reply(int(first.split()[1]), headers, rest)


def _unchunked(raw: bytes) -> bytes:
    parts = []
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            break
        parts.append(raw[:length])
        raw = raw[length + 2 :]
    return b"".join(parts)


def sse_events(body: bytes) -> list[Any]:
    """The data of each event: parsed JSON, or the text [DONE]. Comments are left out."""
    found = []
    for block in body.decode().split("\n\n"):
        if block and not block.startswith(":"):
            assert block.startswith("data: "), block
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found
