"""What pods say of themselves is anybody's word: it never ends the operator, and only a plain fingerprint is taken."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from meshnet_operator import names
from meshnet_operator.pods import Pod
from meshnet_operator.probe import Prober
from meshnet_operator.resource import Key, Range
from meshnet_operator.store import Store

KEY = Key("ns", "demo")
ADDRESSES = ("127.44.0.1", "127.44.0.2")


def pod(address: str) -> Pod:
    return Pod(
        key=KEY, name=address, uid=f"uid of {address}", model_uid="uid-1", role="shard", workload="w", revision="r1",
        image="i1", node="n1", range=Range("front", 0, 1), address=address, ready=True, running=True, deleting=False,
        deletion=None, grace=0, drain=30, phase="Running", restarts=0, created="2026-01-01T00:00:00Z", trouble=None,
    )  # fmt: skip


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[str, web.Response], Awaitable[None]]]:
    """Listens on this pod's address and gives its shard's answer."""
    runners: list[web.AppRunner] = []

    async def answer(address: str, response: web.Response) -> None:
        async def readyz(_: web.Request) -> web.Response:
            return response

        await _listen(runners, address, names.SHARD_PORT, "/readyz", readyz)

    yield answer
    for runner in runners:
        await runner.cleanup()


async def _listen(
    runners: list[web.AppRunner], address: str, port: int, path: str, handler: Callable[..., Awaitable[web.Response]]
) -> None:
    app = web.Application()
    app.router.add_get(path, handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    runners.append(runner)
    await web.TCPSite(runner, address, port).start()


HOSTILE = {
    "nested too deep": web.Response(text="[" * 60_000),
    "no object": web.Response(text="[1]"),
    "no text": web.Response(text='{"fingerprint": {}}'),
    "half a character": web.Response(text='{"fingerprint": "\\ud800"}'),
    "too long": web.Response(text=json.dumps({"fingerprint": "f" * 5000})),
    "somebody else": web.Response(text='{"fingerprint": "f", "pod_uid": "x"}'),
    "redirect": web.Response(status=302, headers={"Location": f"http://{ADDRESSES[1]}:{names.SHARD_PORT}/readyz"}),
}


@pytest.mark.parametrize("response", HOSTILE.values(), ids=HOSTILE)
async def test_a_hostile_pod_is_not_believed_and_the_next_one_is_asked(
    serve: Callable[[str, web.Response], Awaitable[None]], response: web.Response
) -> None:
    store, told = Store(), asyncio.Event()
    prober = Prober(store, lambda _: told.set())
    hostile, honest = map(pod, ADDRESSES)
    await serve(hostile.address, response)
    await serve(honest.address, web.Response(text='{"fingerprint": "d965154a8daec042", "pod_uid": ""}'))
    for one in (hostile, honest):
        store.set_pod(None, one)
    running = asyncio.create_task(prober.run())
    try:
        prober.want(hostile)
        await asyncio.sleep(0.3)
        prober.want(honest)
        async with asyncio.timeout(10):
            await told.wait()
        assert not running.done()
        assert store.reported == {honest.uid: "d965154a8daec042"}
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_head_that_was_started_again_is_asked_again() -> None:
    """It has proven nothing yet, though its pod is the same one."""
    store, runners = Store(), list[web.AppRunner]()
    answers, asked = iter((200, 503, 200)), asyncio.Queue[None]()

    async def ready(_: web.Request) -> web.Response:
        asked.put_nowait(None)
        return web.Response(status=next(answers))

    first = dataclasses.replace(pod(ADDRESSES[0]), role="head", range=None)
    second = dataclasses.replace(first, restarts=1)
    told = asyncio.Queue[Key]()
    prober = Prober(store, told.put_nowait)
    await _listen(runners, first.address, names.HEAD_PORT, "/ready", ready)
    store.set_pod(None, first)
    running = asyncio.create_task(prober.run())
    try:
        async with asyncio.timeout(10):
            prober.want(first)
            await told.get()
            prober.want(first)
            store.set_pod(first, second)
            prober.want(second)
            assert store.unproven == {first.uid}
            await told.get()
        assert store.unproven == set()
        assert asked.qsize() == 3
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for runner in runners:
            await runner.cleanup()
