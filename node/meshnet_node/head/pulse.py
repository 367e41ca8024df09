"""A wake-up call that many tasks can wait for: each waits for the next beat after it last looked."""

from __future__ import annotations

import asyncio


class Pulse:
    """Take `next()` first, look at the state, then await it: a beat in between is never missed."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def beat(self) -> None:
        """Wake all that wait now."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
        self._future = None

    def next(self) -> asyncio.Future[None]:
        """A future for the next beat, shared by all waiters: await it through `wait`, or shield it."""
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
        return self._future

    @staticmethod
    async def wait(beat: asyncio.Future[None], seconds: float | None = None) -> None:
        """Until that beat, or for so many seconds."""
        await asyncio.wait({beat}, timeout=seconds)
