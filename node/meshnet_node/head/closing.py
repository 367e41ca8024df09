"""Ends generations for good: awaited, shielded from the cancellation that usually is the reason, and once.

A handler whose client left is being cancelled; what it awaits in `finally` would be cancelled too, and a shard would
keep the session until its lease ends. So the closing runs in a task of its own, which is kept until it is done.
"""

from __future__ import annotations

import asyncio

from meshnet_node.head.backend import Generation


class Closer:
    """One per app. `pending` is the number of closings that are under way."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pending(self) -> int:
        return len(self._tasks)

    async def close(self, generation: Generation, *, keep: bool) -> None:
        """End it at all shards; returns when that is done, and goes on when the caller is cancelled."""
        task = asyncio.ensure_future(generation.aclose(keep=keep))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)
