"""Turns of keys: never two of one key together, coalesced, with growing delays; an error of one key stops no other."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from meshnet_operator.errors import Busy, Conflict
from meshnet_operator.queue import KeyQueue
from meshnet_operator.resource import Key

A, B = Key("n", "a"), Key("n", "b")
Work = Callable[[Key], Awaitable[float | None]]


@asynccontextmanager
async def running(work: Work, workers: int = 4) -> AsyncIterator[KeyQueue]:
    queue = KeyQueue("test", work, workers, random.Random(1))
    task = asyncio.create_task(queue.run())
    yield queue
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_key_is_worked_on_by_one_at_a_time_and_requests_meanwhile_are_one_more_turn() -> None:
    at_work: list[Key] = []
    turns: list[Key] = []

    async def work(key: Key) -> None:
        assert key not in at_work
        at_work.append(key)
        await asyncio.sleep(0.05)
        at_work.remove(key)
        turns.append(key)

    async with running(work) as queue:
        for _ in range(20):
            queue.add(A)
            queue.add(B)
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.3)
    assert sorted(turns, key=str) == [A, A, B, B]
    assert queue.waiting == 0


async def test_failures_come_back_later_and_later_and_stop_nobody() -> None:
    times: list[float] = []
    others: list[Key] = []

    async def work(key: Key) -> None:
        if key == B:
            others.append(key)
            return
        times.append(asyncio.get_running_loop().time())
        if len(times) < 4:
            raise (Conflict("x"), KeyError("y"), RuntimeError("z"))[len(times) - 1]

    async with running(work, workers=1) as queue:
        queue.add(A)
        await asyncio.sleep(0.02)
        queue.add(B)
        await asyncio.sleep(1.8)
    assert others == [B]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert len(gaps) == 3
    assert gaps[0] < gaps[2]


async def test_a_server_that_names_a_time_is_not_asked_sooner() -> None:
    times: list[float] = []

    async def work(key: Key) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            raise Busy("later", 429, "", retry_after=0.6)

    async with running(work) as queue:
        queue.add(A)
        await asyncio.sleep(0.9)
    assert times[1] - times[0] >= 0.59


async def test_a_turn_can_ask_for_the_next() -> None:
    turns: list[Key] = []

    async def work(key: Key) -> float | None:
        turns.append(key)
        return 0.05 if len(turns) < 3 else None

    async with running(work) as queue:
        queue.add(A, 10.0)
        queue.add(A, 0.0)
        await asyncio.sleep(0.4)
        assert queue.waiting == 0
    assert turns == [A, A, A]


async def test_a_key_that_is_gone_is_forgotten() -> None:
    turns: list[Key] = []

    async def work(key: Key) -> None:
        turns.append(key)

    async with running(work) as queue:
        queue.add(A, 0.1)
        queue.forget(A)
        await asyncio.sleep(0.2)
    assert turns == []
