"""Who serves what: fingerprints that shards report, and commits that tags stand for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from meshnet_operator import kinds

Make = Callable[..., Any]


@pytest.fixture
async def shards() -> AsyncIterator[Any]:
    """Listens on a pod's own loopback address and answers /readyz as its shard."""
    runners: list[web.AppRunner] = []

    async def answer(pod: Any, fingerprint: str) -> None:
        async def info(request: web.Request) -> web.Response:
            return web.json_response({"fingerprint": fingerprint, "pod_uid": pod["metadata"]["uid"]})

        app = web.Application()
        app.router.add_get("/readyz", info)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, space_address(pod), 8100).start()

    yield answer
    for runner in runners:
        await runner.cleanup()


def space_address(pod: Any) -> str:
    return str(pod["status"]["podIP"])


async def test_a_pod_that_serves_another_model_is_refused_and_named(
    space: Any, start: Any, shards: Any, meshmodel: Make
) -> None:
    await start(probe_pods=True, resync_seconds=1.0)
    body = meshmodel()
    body["spec"]["shards"][0]["replicas"] = 2
    await space.create(body)
    await space.until_ready()
    one, other = await space.pods("front")
    (back,) = await space.pods("back")
    for pod in (one, back):
        await shards(pod, "same")
    for pod in (one, back, other):
        await space.nodes.ready(pod, False)
        await space.nodes.ready(pod)

    async def pinned() -> bool:
        found = (await space.get(kinds.MESHMODEL, "demo"))["status"]["pinned"]
        return bool(found.get("fingerprint") == "same")

    await space.until(pinned)
    await shards(other, "another")
    await space.nodes.ready(other, False)
    await space.nodes.ready(other)
    found = await space.until_reason("Degraded", "FingerprintMismatch")
    assert other["metadata"]["name"] in found["message"]
    table = await space.table()
    ends = table["layouts"][0]["shards"][0]["endpoints"]
    assert [end["uid"] for end in ends] == [one["metadata"]["uid"]]
    assert table["layouts"][0]["fingerprint"] == "same"
    assert len(table["layouts"]) == 1


async def test_case_44_a_meshmodel_is_ready_only_when_a_token_came_through(
    space: Any, start: Any, meshmodel: Make
) -> None:
    """Every pod is ready, and the head says that nothing has come through its path yet."""
    proven = asyncio.Event()

    async def ready(request: web.Request) -> web.Response:
        return web.Response(status=200 if proven.is_set() else 503)

    app = web.Application()
    app.router.add_get("/ready", ready)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    space.nodes.hold.add(space.name)
    try:
        operator = await start(probe_pods=True, resync_seconds=1.0)
        await space.create(meshmodel())

        async def made() -> bool:
            return len([pod for pod in await space.pods() if pod["spec"].get("nodeName")]) == 3

        await space.until(made)
        (head,) = await space.pods("head")
        await web.TCPSite(runner, space.nodes.address(head), 8000).start()
        for pod in await space.pods():
            await space.nodes.ready(pod)
        await space.until_reason("Ready", "PathNotProven")
        await asyncio.sleep(2.0)
        assert (await space.conditions())["Ready"]["reason"] == "PathNotProven"
        proven.set()
        since = (await space.until_reason("Ready", "Serving"))["lastTransitionTime"]
        # The next operator has asked nobody yet, and the head is between two paths: no reason to take Ready back.
        proven.clear()
        await operator.kill()
        await start(probe_pods=True, resync_seconds=1.0)
        await space.patch("demo", {"head": {"drainSeconds": 30}})

        async def looked() -> bool:
            status = (await space.get(kinds.MESHMODEL, "demo"))["status"]
            return bool(status["observedGeneration"] == 2)

        await space.until(looked)
        found = (await space.conditions())["Ready"]
        assert (found["reason"], found["lastTransitionTime"]) == ("Serving", since)
    finally:
        await runner.cleanup()


@pytest.fixture
async def hub() -> AsyncIterator[Any]:
    """A hub that knows one commit; `hub.status` is what it answers."""
    state: dict[str, Any] = {"status": 200, "asked": []}

    async def revision(request: web.Request) -> web.Response:
        state["asked"].append(request.path)
        return web.json_response({"sha": "c0" * 20}, status=state["status"])

    app = web.Application()
    app.router.add_get("/api/models/{org}/{name}/revision/{revision}", revision)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    state["address"] = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield state
    await runner.cleanup()


def revisions(pods: list[Any]) -> set[str]:
    return {
        env["value"] for pod in pods for env in pod["spec"]["containers"][0]["env"] if env["name"] == "MESHNET_REVISION"
    }


async def test_a_tag_becomes_a_commit_once(space: Any, start: Any, hub: Any, meshmodel: Make) -> None:
    await start(hub_endpoint=hub["address"])
    await space.create(meshmodel(model={"source": "hf://org/name", "revision": "main"}))
    await space.until_ready()
    assert (await space.get(kinds.MESHMODEL, "demo"))["status"]["pinned"]["revision"] == "c0" * 20
    assert revisions(await space.pods()) == {"c0" * 20}
    assert hub["asked"] == ["/api/models/org/name/revision/main"]


async def test_no_pod_is_made_before_the_commit_is_known(space: Any, start: Any, hub: Any, meshmodel: Make) -> None:
    hub["status"] = 503
    await start(hub_endpoint=hub["address"])
    await space.create(meshmodel(model={"source": "hf://org/name"}))
    await space.until_reason("Degraded", "RevisionUnresolved")
    assert await space.pods() == []
    hub["status"] = 200
    await space.until_ready(seconds=30)
    assert revisions(await space.pods()) == {"c0" * 20}


async def test_a_private_model_keeps_its_tag(space: Any, start: Any, hub: Any, meshmodel: Make) -> None:
    hub["status"] = 401
    await start(hub_endpoint=hub["address"])
    await space.create(meshmodel(model={"source": "hf://org/name", "revision": "v1"}))
    await space.until_ready()
    assert revisions(await space.pods()) == {"v1"}
