"""A tap on the link: a WebSocket proxy in front of a shard that keeps every frame that passes, in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from meshnet_node.wire.codec import decode
from meshnet_node.wire.frames import Forward, Frame, Result

F = TypeVar("F")
LIMIT = 2**27


@dataclass
class Tap:
    """sizes: for each frame the bytes of its tensors, row by row."""

    port: int = 0
    asked: list[tuple[Frame, list[list[int]]]] = field(default_factory=list)
    answered: list[tuple[Frame, list[list[int]]]] = field(default_factory=list)

    def frames(self, kind: type[F]) -> list[F]:
        """All frames of that kind, the head's first."""
        return [frame for frame, _ in (*self.asked, *self.answered) if isinstance(frame, kind)]

    def rows(self) -> list[tuple[Forward, list[list[int]]]]:
        return [(frame, sizes) for frame, sizes in self.asked if isinstance(frame, Forward)]

    def results(self) -> list[tuple[Result, list[list[int]]]]:
        return [(frame, sizes) for frame, sizes in self.answered if isinstance(frame, Result)]


@asynccontextmanager
async def tapped(shard_port: int) -> AsyncIterator[Tap]:
    """A tap in front of the shard at that port of 127.0.0.1."""
    tap = Tap()

    async def handle(head: ServerConnection) -> None:
        async with connect(
            f"ws://127.0.0.1:{shard_port}/v1/link", compression=None, max_size=None, proxy=None
        ) as shard:

            async def pump(source: object, target: object, kept: list[tuple[Frame, list[list[int]]]]) -> None:
                try:
                    async for message in source:  # type: ignore[attr-defined]
                        frame, tensors = decode(message, LIMIT)
                        kept.append((frame, [[len(part) for part in row] for row in tensors]))
                        await target.send(message)  # type: ignore[attr-defined]
                except ConnectionClosed:
                    pass
                await target.close()  # type: ignore[attr-defined]

            await asyncio.gather(pump(head, shard, tap.asked), pump(shard, head, tap.answered))

    async with serve(handle, "127.0.0.1", 0, compression=None, max_size=None) as server:
        tap.port = next(iter(server.sockets)).getsockname()[1]
        yield tap
