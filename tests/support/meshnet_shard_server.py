"""A real shard in this process: uvicorn in a thread on a free port of 127.0.0.1, with a link client to talk to it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from fastapi import FastAPI
from websockets.asyncio.client import ClientConnection, connect

from meshnet_node.settings import ShardSettings
from meshnet_node.shard.app import Server, create_app, server_config
from meshnet_node.shard.process import Loader, Shard
from meshnet_node.shard.runner import RangeRunner
from meshnet_node.wire import handshake
from meshnet_node.wire.codec import decode, encode
from meshnet_node.wire.content import EMPTY, extend, pack_tokens
from meshnet_node.wire.frames import (
    Challenge,
    Closed,
    Error,
    Forward,
    Frame,
    Hello,
    Info,
    Open,
    Opened,
    Ping,
    Pong,
    Proof,
    Result,
    Row,
    RowResult,
    Welcome,
)

T = TypeVar("T")
LIMIT = 2**27


class ShardServer:
    """A shard and where it listens."""

    def __init__(
        self,
        settings: ShardSettings,
        load: Loader = RangeRunner.load,
        port: int = 0,
        clock: Callable[[], float] = time.monotonic,
        host: str = "127.0.0.1",
    ) -> None:
        self.app: FastAPI = create_app(settings, load, clock)
        self.server: Server | None = None
        self._listener = socket.create_server((host, port))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://{host}:{self.port}"
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def shard(self) -> Shard:
        found: Shard = self.app.state.shard
        return found

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(30)

    def stop(self) -> None:
        assert self.server is not None
        self.server.exit()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def crash(self) -> None:
        """Reset every connection and end, as a killed process does."""
        server = self.server
        assert server is not None

        async def reset() -> None:
            for listening in server.servers:
                listening.close()
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            server.force_exit = True
            server.exit()

        self.call(reset())
        self._thread.join(30)
        assert not self._thread.is_alive()

    def block(self, until: threading.Event) -> None:
        """Let the server's loop do nothing until the event is set, as a stopped process does."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(until.wait)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's own loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def look(self, what: Callable[[Shard], T]) -> T:
        """A value of the shard, read on its own loop."""

        async def read() -> T:
            return what(self.shard)

        return self.call(read())

    def check_idle(self) -> None:
        """Nothing runs, nothing is active, and the accounts are right."""

        def check(shard: Shard) -> None:
            engine = shard.loaded.engine
            assert engine.idle
            assert engine.store.active == 0
            engine.store.check()

        self.look(check)
        assert "meshnet_shard_integrity_failures_total 0.0" in httpx2.get(f"{self.url}/metrics").text

    def wait_ready(self) -> None:
        for _ in range(600):
            if httpx2.get(f"{self.url}/readyz").status_code == 200:
                return
            threading.Event().wait(0.02)
        raise AssertionError(httpx2.get(f"{self.url}/readyz").text)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.server = Server(server_config(self.app))
        running = asyncio.create_task(self.server.serve(sockets=[self._listener]))
        await self.server.up.wait()
        self._started.set()
        await running


@contextmanager
def shard_server(
    model: Path, load: Loader = RangeRunner.load, clock: Callable[[], float] = time.monotonic, **options: Any
) -> Iterator[ShardServer]:
    """A running shard; ready, unless a loader of the test's own decides when."""
    settings = ShardSettings(model=str(model), device="cpu", threads=1, cache_dir=model / "cache", **options)
    server = ShardServer(settings, load, clock=clock)
    server.start()
    try:
        if load == RangeRunner.load:
            server.wait_ready()
        yield server
    finally:
        server.stop()


class Head:
    """The head's end of one connection, frame by frame."""

    def __init__(self, socket: ClientConnection, instance: str, info: Info) -> None:
        self.socket = socket
        self.instance = instance
        self.info = info
        self.tensors: list[list[memoryview]] = []

    async def send(self, frame: Frame, *tensors: bytes) -> None:
        await self.socket.send(encode(frame, tensors))

    async def receive(self) -> Frame:
        async with asyncio.timeout(20):
            message = await self.socket.recv()
        assert isinstance(message, bytes)
        frame, self.tensors = decode(message, LIMIT)
        return frame

    async def open(self, session: str, attempt: int = 1, positions: int = 128, **fields: Any) -> Opened | Error:
        start = fields.pop("start_layer", self.info.start_layer)
        await self.send(Open(session, attempt, start, positions, **fields))
        frame = await self.receive()
        assert isinstance(frame, Opened | Error)
        return frame

    async def row(self, row: Row, *tensors: bytes) -> RowResult:
        """Send one row and wait for its answer."""
        await self.send(Forward([row]), *tensors)
        (result,) = await self.results(1)
        return result

    async def results(self, count: int) -> list[RowResult]:
        """The next `count` answers; their tensors are in `parts`, in the same order."""
        found: list[RowResult] = []
        self.parts: list[list[memoryview]] = []
        while len(found) < count:
            frame = await self.receive()
            assert isinstance(frame, Result), frame
            found += frame.rows
            self.parts += self.tensors
        return found

    async def close(self, frame: Frame) -> Closed | Error:
        await self.send(frame)
        answer = await self.receive()
        assert isinstance(answer, Closed | Error)
        return answer

    async def ping(self, seq: int = 1) -> Pong:
        await self.send(Ping(seq))
        answer = await self.receive()
        assert isinstance(answer, Pong)
        return answer


async def dial(server: ShardServer, instance: str = "head-1", token: bytes = b"") -> Head:
    """A connection whose hello is done."""
    socket = await connect(
        f"ws://127.0.0.1:{server.port}/v1/link", compression=None, max_size=None, ping_interval=None, proxy=None
    )
    hello = Hello(instance=instance, nonce=bytes(range(32)))
    await socket.send(encode(hello))
    challenge = await _frame(socket)
    assert isinstance(challenge, Challenge), challenge
    await socket.send(encode(Proof(handshake.proof(token, "head", hello, challenge))))
    welcome = await _frame(socket)
    assert isinstance(welcome, Welcome), welcome
    return Head(socket, instance, welcome.info)


async def _frame(socket: ClientConnection) -> Frame:
    message = await socket.recv()
    assert isinstance(message, bytes)
    return decode(message, LIMIT)[0]


def make_row(session: str, tokens: list[int], past: int, n: int, step: int = 0, attempt: int = 1, **fields: Any) -> Row:
    """Positions past..past+n of a session whose ids are `tokens`, with the true content hash."""
    hashes = [EMPTY, *extend(EMPTY, tokens[:past])]
    return Row(session, attempt, step, past, n, hashes[past], pack_tokens(tokens[past : past + n]), **fields)
