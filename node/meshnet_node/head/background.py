"""Work behind the requests that must never end: a head whose routes nobody follows would serve from an old table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from meshnet_node.logs import events, where

AGAIN_SECONDS = 1.0
_log = events(__name__)


async def keep_running(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Until cancelled. When `run` fails or returns it is said, and begun anew."""
    while True:
        try:
            await run()
        except Exception as error:
            _log.error("background_work_failed", work=name, error=type(error).__name__, where=where(error))
        else:
            _log.error("background_work_ended", work=name)
        await asyncio.sleep(AGAIN_SECONDS)
