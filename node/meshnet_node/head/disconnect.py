"""Work that ends when the client goes away.

A handler is not cancelled when its client leaves, so the work is raced against the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from meshnet_node.errors import MeshnetError

T = TypeVar("T")


class ClientGone(MeshnetError):
    """The client closed the connection before it had its answer."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; when the client leaves first, work is cancelled and awaited, and ClientGone raised.

    Work may have ended in the very moment in which the client left: who owns what it made must close it either way.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
        await asyncio.wait({task, gone})
    raise ClientGone


async def until_gone(receive: Receive) -> None:
    """Returns when the client has left; call it only after the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass
