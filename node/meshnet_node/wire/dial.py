"""Making a link: two connections to one shard process, each with the mutual challenge of handshake.py."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket as tcp
from collections.abc import Sequence

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from meshnet_node.errors import BadFrame, LinkLost, MeshnetError, Unauthorized, WrongShard, wire_error
from meshnet_node.wire import handshake
from meshnet_node.wire.codec import decode, encode
from meshnet_node.wire.frames import WIRE_VERSION, Challenge, Error, Frame, Hello, Info, Proof, Welcome
from meshnet_node.wire.link import ShardLink

DIAL_SECONDS = 5.0
# A connection that ends here is of no more use: a shard that hangs must not hold up the next dial.
GOODBYE_SECONDS = 0.5
USER_TIMEOUT_MS = 20_000
DIAL_MESSAGE_BYTES = 1024 * 1024


async def dial(address: str, instance: str, tokens: Sequence[bytes]) -> ShardLink:
    """Both connections to the shard at host:port, their hellos done.

    `instance` names this head; `tokens` are the shard tokens it accepts. Raises LinkLost when it can't be reached,
    Unauthorized when a proof fails, WrongShard when the two connections reach two instances or another wire version,
    NotReady while it loads.
    """
    sockets: list[ClientConnection] = []
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            infos = []
            for _ in range(2):
                socket = await connect(
                    f"ws://{address}/v1/link",
                    compression=None,
                    max_size=None,
                    ping_interval=None,
                    proxy=None,
                    close_timeout=GOODBYE_SECONDS,
                )
                sockets.append(socket)
                _bound_silence(socket)
                infos.append(await _hello(socket, instance, tokens))
        if infos[0].instance != infos[1].instance:
            raise WrongShard(f"two instances answer at {address}")
        return ShardLink(infos[1], sockets[0], sockets[1])
    except (WebSocketException, OSError, ValueError, TimeoutError) as error:  # ValueError: no address at all
        await _close_all(sockets)
        raise LinkLost(f"{address}: {type(error).__name__}: {error}") from error
    except MeshnetError:
        await _close_all(sockets)
        raise
    except asyncio.CancelledError:
        for socket in sockets:  # nobody waits for a shard's goodbye any more
            socket.transport.abort()
        raise


def _bound_silence(socket: ClientConnection) -> None:
    """Let the kernel give up a peer that acknowledges nothing for so long (a machine that vanished)."""
    raw = socket.transport.get_extra_info("socket")
    if raw is not None and hasattr(tcp, "TCP_USER_TIMEOUT"):
        raw.setsockopt(tcp.IPPROTO_TCP, tcp.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


async def _close_all(sockets: list[ClientConnection]) -> None:
    for socket in sockets:
        with contextlib.suppress(WebSocketException, OSError):
            await socket.close()


async def _hello(socket: ClientConnection, instance: str, tokens: Sequence[bytes]) -> Info:
    """The mutual challenge; see handshake.py. The head proves with the token that the shard proved with."""
    hello = Hello(instance=instance, nonce=secrets.token_bytes(handshake.NONCE_BYTES))
    await socket.send(encode(hello))
    challenge = await _receive(socket)
    if not isinstance(challenge, Challenge):
        raise BadFrame(f"the shard answered hello with {type(challenge).__name__}")
    if challenge.wire != WIRE_VERSION:
        raise WrongShard(f"the shard speaks wire version {challenge.wire}, this head {WIRE_VERSION}")
    shared = next(
        (token for token in tokens if handshake.verify(challenge.proof, token, "shard", hello, challenge)), None
    )
    if shared is None:
        raise Unauthorized("the shard does not hold this head's shard token")
    await socket.send(encode(Proof(handshake.proof(shared, "head", hello, challenge))))
    welcome = await _receive(socket)
    if not isinstance(welcome, Welcome):
        raise BadFrame(f"the shard answered the proof with {type(welcome).__name__}")
    return welcome.info


async def _receive(socket: ClientConnection) -> Frame:
    message = await socket.recv()
    if not isinstance(message, bytes):
        raise BadFrame("a text message where a frame was expected")
    frame, _ = decode(message, DIAL_MESSAGE_BYTES)
    if isinstance(frame, Error):
        raise wire_error(frame.code, frame.message, frame.have)
    return frame
