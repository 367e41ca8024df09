"""Dialling that is given up half-way leaves no connection behind, and nobody waits for who says nothing."""

from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.server import ServerConnection, serve

from meshnet_node.errors import MeshnetError
from meshnet_node.wire.dial import dial


async def test_a_dial_that_is_cancelled_closes_its_connection_at_once() -> None:
    """As when the table drops a shard that hangs: it takes connections and never answers a hello."""
    dialled, closed = asyncio.Event(), asyncio.Event()

    async def hangs(socket: ServerConnection) -> None:
        await socket.recv()  # the head's hello
        dialled.set()
        await socket.wait_closed()
        closed.set()

    async with serve(hangs, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        dialling = asyncio.create_task(dial(f"127.0.0.1:{port}", "head", [b"token"]))
        async with asyncio.timeout(5):
            await dialled.wait()
            dialling.cancel()
            await asyncio.wait({dialling})
            await closed.wait()


async def test_a_peer_that_says_no_goodbye_holds_up_nobody() -> None:
    """websockets waits for ten seconds by default, and the endpoint's next dial with it."""
    ended = asyncio.Event()

    async def mute(socket: ServerConnection) -> None:
        await socket.recv()  # the head's hello
        socket.transport.pause_reading()
        await socket.send(b"no frame")
        await ended.wait()

    async with serve(mute, "127.0.0.1", 0, close_timeout=0.1) as server:
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(5):
            with pytest.raises(MeshnetError):
                await dial(f"127.0.0.1:{port}", "head", [b"token"])
        ended.set()
