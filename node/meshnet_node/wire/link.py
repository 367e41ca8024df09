"""The client side of a link: two kept-open WebSockets to one shard process, one for decode and one for bulk.

A link belongs to one instance of a shard. It ends when either connection ends, and everything asked on it then fails
with LinkLost; whoever owns it dials again. Rows asked for in the same turn of the event loop share a frame. The link
knows nothing of generations: it matches answers to questions by (session, attempt, step).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import Buffer
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from meshnet_node.errors import BadFrame, LinkLost, MeshnetError, WireError, wire_error
from meshnet_node.wire.codec import decode, encode
from meshnet_node.wire.frames import (
    Close,
    Closed,
    Error,
    Forward,
    Frame,
    Info,
    Open,
    Opened,
    Ping,
    Pong,
    Result,
    Row,
    RowResult,
)

Key = tuple[str | int, ...]
Answer = tuple[RowResult, list[memoryview]]


@dataclass
class _Channel:
    """One connection: what waits to be sent and how many rows are unanswered."""

    socket: ClientConnection
    credits: int
    outbox: deque[tuple[Row, Sequence[Buffer]]] = field(default_factory=deque)
    frames: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    unanswered: set[Key] = field(default_factory=set)
    flushing: bool = False


class ShardLink:
    """dial.py makes one. `lost` is done (never with an exception) as soon as the link is over."""

    def __init__(self, info: Info, decode_socket: ClientConnection, bulk_socket: ClientConnection) -> None:
        self.info = info
        self.pong = Pong(seq=0)
        self.pong_at = time.monotonic()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._channels = [_Channel(decode_socket, info.credits), _Channel(bulk_socket, info.credits)]
        self._pending: dict[Key, asyncio.Future[Any]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        for channel in self._channels:
            self._tasks.append(asyncio.create_task(self._read(channel)))
            self._tasks.append(asyncio.create_task(self._write(channel)))
        self._seq = 0
        self._traffic = [0, 0]

    async def open(self, frame: Open) -> Opened:
        """Reserve a session's state. Raises OverCapacity, NotOwner, NotReady ... or LinkLost."""
        answer: Opened = await self._ask(("open", frame.session, frame.attempt), frame)
        return answer

    async def close_session(self, frame: Close) -> None:
        """End a session; returns when the shard has acknowledged it. Raises LinkLost."""
        await self._ask(("close", frame.session), frame)

    async def forward(self, row: Row, tensors: Sequence[Buffer]) -> Answer:
        """Run one row. Raises the row's typed refusal (CacheMiss ...) or LinkLost."""
        key = (row.session, row.attempt, row.step)
        channel = self._channels[row.n > 1]
        future = self._expect(key)
        channel.outbox.append((row, tensors))
        self._schedule(channel)
        try:
            answer: Answer = await future
        finally:
            self._pending.pop(key, None)
        error = answer[0].error
        if error is not None:
            raise wire_error(error.code, error.message, error.have)
        return answer

    def take_traffic(self) -> tuple[int, int]:
        """Bytes of messages sent and received since the last call."""
        traffic, self._traffic = self._traffic, [0, 0]
        return traffic[0], traffic[1]

    def ping(self) -> None:
        """Send a heartbeat; the answer lands in `pong` and `pong_at` (monotonic seconds)."""
        self._seq += 1
        self._channels[0].frames.put_nowait(encode(Ping(self._seq)))

    def abandon(self, reason: str, session: str | None = None) -> None:
        """Fail what waits for an answer (of that session), and leave the connection as it is: it may come back."""
        for key, future in self._pending.items():
            if not future.done() and (session is None or session in key):
                future.set_exception(LinkLost(reason))

    async def aclose(self) -> None:
        """End both connections. Idempotent."""
        self._end("closed here")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            with contextlib.suppress(WebSocketException, OSError):
                await channel.socket.close()

    def _expect(self, key: Key) -> asyncio.Future[Any]:
        """What will be answered; a close that is asked again waits for the same answer as before."""
        if self.lost.done():
            raise LinkLost(self.lost.result())
        return self._pending.setdefault(key, asyncio.get_running_loop().create_future())

    async def _ask(self, key: Key, frame: Frame) -> Any:
        future = self._expect(key)
        self._channels[0].frames.put_nowait(encode(frame))
        try:
            return await future
        finally:
            self._pending.pop(key, None)

    def _schedule(self, channel: _Channel) -> None:
        if not channel.flushing:
            channel.flushing = True
            asyncio.get_running_loop().call_soon(self._flush, channel)

    def _flush(self, channel: _Channel) -> None:
        """One frame from all rows that wait, as far as the credits and the shard's message limit go."""
        channel.flushing = False
        while channel.outbox and len(channel.unanswered) < channel.credits:
            rows: list[Row] = []
            parts: list[Buffer] = []
            size = 0
            while channel.outbox and len(channel.unanswered) < channel.credits:
                row, tensors = channel.outbox[0]
                row_size = len(row.tokens) + sum(memoryview(part).nbytes for part in tensors)
                if rows and size + row_size > self.info.max_message_bytes // 2:
                    break
                channel.outbox.popleft()
                key = (row.session, row.attempt, row.step)
                if key not in self._pending:
                    continue
                channel.unanswered.add(key)
                rows.append(row)
                parts.extend(tensors)
                size += row_size
            if rows:
                channel.frames.put_nowait(encode(Forward(rows), parts))

    async def _write(self, channel: _Channel) -> None:
        try:
            while True:
                message = await channel.frames.get()
                self._traffic[0] += len(message)
                await channel.socket.send(message)
        except (WebSocketException, OSError) as error:
            self._end(f"{type(error).__name__}: {error}")

    async def _read(self, channel: _Channel) -> None:
        reason = "connection closed by the shard"
        try:
            async for message in channel.socket:
                if isinstance(message, bytes):
                    self._traffic[1] += len(message)
                    self._take(channel, message)
        except (WebSocketException, OSError, MeshnetError) as error:
            reason = f"{type(error).__name__}: {error}"
        self._end(reason)

    def _take(self, channel: _Channel, message: bytes) -> None:
        frame, tensors = decode(message, 2 * self.info.max_message_bytes)
        if isinstance(frame, Result):
            for row, parts in zip(frame.rows, tensors, strict=True):
                key = (row.session, row.attempt, row.step)
                channel.unanswered.discard(key)
                self._settle(key, (row, parts))
            self._schedule(channel)
        elif isinstance(frame, Pong):
            self.pong, self.pong_at = frame, time.monotonic()
        elif isinstance(frame, Opened):
            self._settle(("open", frame.session, frame.attempt), frame)
        elif isinstance(frame, Closed):
            self._settle(("close", frame.session), frame)
        elif isinstance(frame, Error) and frame.session:
            error = wire_error(frame.code, frame.message, frame.have)
            self._settle(("open", frame.session, frame.attempt), error)
        else:
            raise BadFrame(f"unexpected {type(frame).__name__} from a shard: {getattr(frame, 'message', '')}")

    def _settle(self, key: Key, answer: object) -> None:
        future = self._pending.get(key)
        if future is None or future.done():
            return
        if isinstance(answer, WireError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _end(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)
        self.abandon(reason)
