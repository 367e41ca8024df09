"""Several generators read side by side, each item with the index of its source."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

T = TypeVar("T")


async def merge(sources: Sequence[AsyncGenerator[T]], at_once: int) -> AsyncGenerator[tuple[int, T]]:
    """Items as they come, at most `at_once` sources being read at a time, in their order.

    Nothing is read ahead beyond one item a source. The first error ends all; so does closing.
    """
    waiting = list(enumerate(sources))[::-1]
    pending: dict[asyncio.Task[T | None], int] = {}

    def pull(index: int) -> None:
        pending[asyncio.ensure_future(anext(sources[index], None))] = index

    try:
        while waiting or pending:
            while waiting and len(pending) < at_once:
                pull(waiting.pop()[0])
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: pending[task]):
                index = pending.pop(task)
                item = task.result()
                if item is not None:
                    yield index, item
                    pull(index)
    finally:
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
        for source in sources:
            await source.aclose()
