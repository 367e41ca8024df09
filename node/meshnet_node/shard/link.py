"""The server side of a link: one WebSocket connection of a head, from its hello to its end.

It turns frames into calls of the engine and answers into frames, and knows nothing of tensors beyond their bytes. A
frame that can't be read is answered with an error and changes nothing; only a hello that fails ends the connection.
When the connection ends nothing is freed: the lease decides.

Invariants: before the hello succeeded no message above HELLO_LIMIT is read and nothing but the hello is answered; at
most `credits` rows of the connection are unanswered; one task writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Protocol, TypeVar

from typing_extensions import Buffer

from meshnet_node.errors import BadFrame, Loading, TooLarge, Unauthorized, WireError
from meshnet_node.logs import events
from meshnet_node.shard.check import check_open, check_row
from meshnet_node.shard.items import Item, Reply, refusal
from meshnet_node.shard.process import MAX_MESSAGE_BYTES, Loaded, Shard
from meshnet_node.wire import handshake
from meshnet_node.wire.codec import decode, encode
from meshnet_node.wire.frames import (
    HELLO_LIMIT,
    Close,
    Closed,
    Error,
    Forward,
    Frame,
    Hello,
    Open,
    Opened,
    Ping,
    Proof,
    Result,
    Row,
    Welcome,
)

log = events(__name__)

HELLO_SECONDS = 5.0

F = TypeVar("F", Hello, Proof)


class Socket(Protocol):
    """What a connection offers; the app module adapts the web framework's."""

    async def receive(self) -> bytes | None:
        """The next message (text comes as its bytes); None when the connection has ended."""

    async def send(self, message: bytes) -> None:
        """Send one; quietly nothing when the connection has ended."""

    async def close(self, code: int, reason: str) -> None:
        """End the connection."""


async def serve_link(shard: Shard, socket: Socket) -> None:
    """Hello, then frames until the connection ends."""
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            owner = await _hello(shard, socket)
    except TimeoutError:
        await socket.close(handshake.CLOSE_BAD_HELLO, "no hello in time")
        return
    except WireError as error:
        log.info("hello_refused", code=error.code, reason=error.message)
        await socket.send(encode(Error(code=error.code, message=error.message)))
        await socket.close(_close_code(error), error.code)
        return
    if owner is not None:
        await Connection(shard.loaded, shard, socket, owner).run()


async def _hello(shard: Shard, socket: Socket) -> str | None:
    """The head's instance id, once it proved the token; None where it went away. Raises WireError."""
    hello = await _expect(socket, Hello)
    if hello is None:
        return None
    asked = handshake.challenge(shard.tokens.tokens, hello, shard.instance)
    await socket.send(encode(asked))
    given = await _expect(socket, Proof)
    if given is None:
        return None
    try:
        handshake.admit(shard.tokens.tokens, hello, asked, given)
    except Unauthorized:
        if not shard.tokens.reload():
            raise
        handshake.admit(shard.tokens.tokens, hello, asked, given)
    await socket.send(encode(Welcome(shard.loaded.info)))
    return hello.instance


async def _expect(socket: Socket, kind: type[F]) -> F | None:
    message = await socket.receive()
    if message is None:
        return None
    frame, _ = decode(message, HELLO_LIMIT)
    if not isinstance(frame, kind):
        raise BadFrame(f"{type(frame).__name__.lower()} where {kind.__name__.lower()} was expected")
    return frame


def _close_code(error: WireError) -> int:
    codes: dict[type[WireError], int] = {
        Unauthorized: handshake.CLOSE_UNAUTHORIZED,
        TooLarge: handshake.CLOSE_TOO_LARGE,
        Loading: handshake.CLOSE_LOADING,
    }
    return codes.get(type(error), handshake.CLOSE_BAD_HELLO)


class Connection:
    """A Sink for the answers to its rows."""

    def __init__(self, loaded: Loaded, shard: Shard, socket: Socket, owner: str) -> None:
        self._engine = loaded.engine
        self._facts = loaded.facts
        self._meters = shard.meters
        self._credits = loaded.info.credits
        self._socket = socket
        self._owner = owner
        self._unanswered = 0
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._asks: set[asyncio.Task[None]] = set()
        self.alive = True

    async def run(self) -> None:
        """Until the connection ends."""
        log.info("link_up", head=self._owner)
        self._meters.links.inc()
        writer = asyncio.create_task(self._write())
        try:
            while (message := await self._socket.receive()) is not None:
                self._take(message)
        finally:
            self.alive = False
            writer.cancel()
            self._meters.links.dec()
            log.info("link_down", head=self._owner, unanswered=self._unanswered)

    def deliver(self, replies: list[Reply]) -> None:
        """Answers to rows of this connection, as one frame."""
        self._unanswered -= len(replies)
        if self.alive:
            tensors = [tensor for reply in replies for tensor in reply.tensors]
            self._send(Result([reply.result for reply in replies]), tensors)

    def _send(self, frame: Frame, tensors: Sequence[Buffer] = ()) -> None:
        self._outbox.put_nowait(encode(frame, tensors))

    async def _write(self) -> None:
        while True:
            await self._socket.send(await self._outbox.get())

    def _take(self, message: bytes) -> None:
        try:
            frame, buffers = decode(message, MAX_MESSAGE_BYTES)
            self._dispatch(frame, buffers)
        except WireError as error:
            self._meters.frames.inc()
            self._send(Error(code=error.code, message=error.message))

    def _dispatch(self, frame: Frame, buffers: list[list[memoryview]]) -> None:
        if isinstance(frame, Forward):
            self._forward(frame, buffers)
        elif isinstance(frame, Ping):
            self._send(self._engine.pong(frame.seq, self._owner))
        elif isinstance(frame, Open):
            self._ask(self._open(frame))
        elif isinstance(frame, Close):
            self._ask(self._close(frame))
        else:
            raise BadFrame(f"{type(frame).__name__.lower()} is not what a head sends here")

    def _forward(self, frame: Forward, buffers: list[list[memoryview]]) -> None:
        """Queue the rows that are in order, and answer the others, each for itself."""
        items, refused = [], []
        for row, parts in zip(frame.rows, buffers, strict=True):
            self._unanswered += 1
            try:
                items.append(self._item(row, parts))
            except WireError as error:
                refused.append(refusal(row, error))
        if refused:
            self._meters.rows.labels("bad_frame").inc(len(refused))
            self.deliver(refused)
        self._engine.submit(items)

    def _item(self, row: Row, parts: list[memoryview]) -> Item:
        if self._unanswered > self._credits:
            raise BadFrame(f"more than {self._credits} rows of this connection are unanswered")
        tokens, targets = check_row(row, self._facts)
        hidden = parts[0] if parts else None
        return Item(row, self._owner, self, tokens, hidden, targets, start_layer=self._facts.start_layer)

    def _ask(self, work: Awaitable[None]) -> None:
        """Opens and closes may wait for a running piece; the connection reads on meanwhile."""
        task = asyncio.ensure_future(work)
        self._asks.add(task)
        task.add_done_callback(self._asks.discard)

    async def _open(self, frame: Open) -> None:
        try:
            check_open(frame, self._facts)
            have = await self._engine.desk.open(frame, self._owner)
        except WireError as error:
            self._meters.opens.labels(error.code).inc()
            self._refuse(frame, error)
            return
        self._meters.opens.labels("ok").inc()
        self._send(Opened(frame.session, frame.attempt, have))

    async def _close(self, frame: Close) -> None:
        try:
            await self._engine.desk.close(frame, self._owner)
        except WireError as error:
            self._refuse(frame, error)
            return
        self._send(Closed(frame.session))

    def _refuse(self, frame: Open | Close, error: WireError) -> None:
        self._send(Error(error.code, error.message, frame.session, frame.attempt, error.have))
