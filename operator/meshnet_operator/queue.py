"""A queue of keys: a key is worked on by one worker at a time, and any number of requests for it meanwhile is one
more turn.

Failures come back with growing delay and jitter, so that a thousand keys that failed together do not return together.
One of the two places that catch every Exception: whatever a MeshModel provokes must not stop the work on the others.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from meshnet_operator.errors import ClusterError
from meshnet_operator.resource import Key

log = logging.getLogger(__name__)

FIRST_DELAY = 0.2
LONGEST_DELAY = 60.0


class KeyQueue:
    """`work(key)` is called by up to `workers` tasks. It returns after how many seconds it wants to be called again,
    or None.
    """

    def __init__(
        self, name: str, work: Callable[[Key], Awaitable[float | None]], workers: int, jitter: random.Random
    ) -> None:
        self._name = name
        self._work = work
        self._workers = workers
        self._jitter = jitter
        self._due: dict[Key, float] = {}
        self._running: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Event()
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self.last_finished = time.monotonic()

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Asks for a turn after `delay` seconds, or sooner if one is due sooner."""
        due = time.monotonic() + delay
        if key not in self._due or due < self._due[key]:
            self._due[key] = due
            self._wake.set()

    def forget(self, key: Key) -> None:
        self._due.pop(key, None)
        self._failures.pop(key, None)

    @property
    def waiting(self) -> int:
        return len(self._due) + self._ready.qsize()

    @property
    def busy(self) -> bool:
        """Whether keys are being worked on, or due now."""
        return bool(self._running)

    async def run(self) -> None:
        """Until cancelled. An error that `work` should not have raised ends it, and with it the process."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._dispatch())
            for _ in range(self._workers):
                group.create_task(self._worker())

    async def _dispatch(self) -> None:
        """Hands out keys that are due and not being worked on."""
        while True:
            now = time.monotonic()
            for key in [key for key, due in self._due.items() if due <= now and key not in self._running]:
                del self._due[key]
                self._running.add(key)
                self._ready.put_nowait(key)
            later = [due for key, due in self._due.items() if key not in self._running]
            self._wake.clear()
            wait = max(0.0, min(later) - time.monotonic()) if later else None
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _worker(self) -> None:
        while True:
            key = await self._ready.get()
            try:
                again = await self._work(key)
                self._failures.pop(key, None)
            except ClusterError as error:
                again = self._delay(key, error.retry_after)
                fields = {
                    "queue": self._name,
                    "model": str(key),
                    "reason": str(error),
                    "again_seconds": round(again, 2),
                }
                log.warning("work failed", extra=fields)
            except Exception:
                again = self._delay(key, None)
                log.exception("work failed by an error of ours", extra={"queue": self._name, "model": str(key)})
            self._running.discard(key)
            self.last_finished = time.monotonic()
            if again is not None:
                self.add(key, again)
            self._wake.set()

    def _delay(self, key: Key, asked: float | None) -> float:
        """Doubles with each failure in a row; never shorter than the server asked for."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        grown = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(count, 20))
        return max(asked or 0.0, grown * self._jitter.uniform(0.5, 1.0))
