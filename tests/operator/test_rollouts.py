"""A change reaches the pods without a moment in which nothing serves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from meshnet_operator import kinds, names
from meshnet_operator.resource import Range

Make = Callable[..., Any]


def uids(pods: list[Any]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def image_of(pod: Any) -> str:
    return str(pod["spec"]["containers"][0]["image"])


def complete(table: Any) -> bool:
    """Some layout has a ready endpoint in every range."""
    return any(
        all(any(end["state"] == "ready" for end in shard["endpoints"]) for shard in layout["shards"])
        for layout in table["layouts"]
    )


@asynccontextmanager
async def always_complete(space: Any) -> AsyncIterator[None]:
    """Follows every version of the table while the body runs; none may be without a path."""
    gaps: list[Any] = []

    async def follow() -> None:
        version = (await space.get(kinds.CONFIGMAP, "demo-routes"))["metadata"]["resourceVersion"]
        async for event in space.cluster.watch(kinds.CONFIGMAP, space.name, names.SELECTOR, version, 120):
            if event.type == "MODIFIED":
                table = json.loads(event.object["data"]["routes.json"])
                if not complete(table):
                    gaps.append(table)

    task = asyncio.create_task(follow())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert gaps == []


async def until_images(space: Any, shard: str, image: str) -> None:
    async def same() -> bool:
        found = await space.pods(shard)
        return bool(found) and {image_of(pod) for pod in found} == {image}

    await space.until(same, 40, f"{shard} has {image}")


async def test_case_49_a_change_of_one_shard_leaves_the_pods_of_the_others(
    space: Any, start: Any, meshmodel: Make
) -> None:
    await start()
    await space.create(meshmodel())
    await space.until_ready()
    back, head, front = [uids(await space.pods(name)) for name in ("back", "head", "front")]
    body = meshmodel()
    body["spec"]["shards"][0]["env"] = [{"name": "LOG", "value": "1"}]
    async with always_complete(space):
        await space.patch("demo", body["spec"])

        async def changed() -> bool:
            found = await space.pods("front")
            return len(found) == 1 and not uids(found) & front

        await space.until(changed, 30)
        await space.until_ready(seconds=40)
    assert (uids(await space.pods("back")), uids(await space.pods("head"))) == (back, head)


HEAD_ONLY = {
    "served name": {"model": {"servedName": "other"}},
    "hold": {"recovery": {"holdSeconds": 5}},
    "head memory": {"head": {"resources": {"requests": {"memory": "64Mi"}}}},
}


@pytest.mark.parametrize("spec", HEAD_ONLY.values(), ids=HEAD_ONLY)
async def test_a_change_of_the_head_leaves_the_shards_pods(space: Any, start: Any, meshmodel: Make, spec: Any) -> None:
    await start()
    await space.create(meshmodel())
    await space.until_ready()
    shards = uids(await space.pods("front")) | uids(await space.pods("back"))
    head = uids(await space.pods("head"))
    await space.patch("demo", spec)

    async def changed() -> bool:
        found = await space.pods("head")
        return len(found) == 1 and not uids(found) & head

    await space.until(changed, 30)
    assert uids(await space.pods("front")) | uids(await space.pods("back")) == shards


NO_PODS = {
    "service": {"head": {"service": {"port": 80}}},
    "network": {"networkPolicy": {"enabled": False}},
    "strategy": {"rollout": {"strategy": "OneByOne", "surgeTimeoutSeconds": 60}},
    "a default written out": {"sessions": {"ttlSeconds": 600}, "options": {"stateless": False}},
}


@pytest.mark.parametrize("spec", NO_PODS.values(), ids=NO_PODS)
async def test_a_change_that_concerns_no_pod_changes_none(space: Any, start: Any, meshmodel: Make, spec: Any) -> None:
    await start()
    await space.create(meshmodel())
    await space.until_ready()
    before = uids(await space.pods())
    await space.patch("demo", spec)

    async def seen() -> bool:
        return bool((await space.get(kinds.MESHMODEL, "demo"))["status"]["observedGeneration"] == 2)

    await space.until(seen)
    await asyncio.sleep(1.0)
    await space.until_ready()
    assert uids(await space.pods()) == before


async def test_surge_keeps_every_old_pod_until_a_new_path_is_complete(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    await space.create(meshmodel())
    await space.until_ready()
    old = uids(await space.pods("front")) | uids(await space.pods("back"))
    space.nodes.hold.add(space.name)
    async with always_complete(space):
        await space.patch("demo", {"image": "meshnet/node:new"})

        async def new_pods() -> Any:
            found = [pod for name in ("front", "back") for pod in await space.pods(name)]
            fresh = [pod for pod in found if pod["metadata"]["uid"] not in old]
            return fresh if len(fresh) == 2 else None

        fresh = await space.until(new_pods, 30)
        first = next(pod for pod in fresh if pod["metadata"]["labels"][names.SHARD] == "front")
        await space.nodes.ready(first)
        await asyncio.sleep(1.5)
        kept = uids(await space.pods("front")) | uids(await space.pods("back"))
        assert old <= kept
        assert (await space.conditions())["Progressing"]["reason"] == "RollingOut"
        for pod in [*fresh, *await space.pods("head")]:
            await space.nodes.ready(pod)
        await until_images(space, "front", "meshnet/node:new")
        await until_images(space, "back", "meshnet/node:new")
    space.nodes.hold.discard(space.name)
    for pod in await space.pods():
        await space.nodes.ready(pod)
    await space.until_ready()


async def test_case_50_a_revert_in_mid_rollout_never_leaves_a_moment_without_a_path(
    space: Any, start: Any, meshmodel: Make
) -> None:
    await start()
    await space.create(meshmodel(image="meshnet/node:a"))
    await space.until_ready()
    async with always_complete(space):
        await space.patch("demo", {"image": "meshnet/node:b"})
        await asyncio.sleep(0.6)
        await space.patch("demo", {"image": "meshnet/node:a"})
        await until_images(space, "front", "meshnet/node:a")
        await until_images(space, "back", "meshnet/node:a")
        await space.until_ready(seconds=40)
    assert len(await space.pods("front")) == len(await space.pods("back")) == 1


async def test_case_50_a_revert_of_a_rollout_that_cannot_start_keeps_the_old_pods(
    space: Any, start: Any, meshmodel: Make
) -> None:
    await start()
    await space.create(meshmodel(image="meshnet/node:a"))
    await space.until_ready()
    old = uids(await space.pods("front")) | uids(await space.pods("back"))
    space.nodes.hold.add(space.name)
    async with always_complete(space):
        await space.patch("demo", {"image": "meshnet/node:b"})

        async def stuck() -> bool:
            found = [pod for name in ("front", "back") for pod in await space.pods(name)]
            fresh = [pod for pod in found if pod["metadata"]["uid"] not in old]
            for pod in fresh:
                await space.nodes.no_image(pod)
            return len(fresh) == 2

        await space.until(stuck)
        await space.until_reason("Degraded", "ImagePullFailed")
        await space.patch("demo", {"image": "meshnet/node:a"})
        space.nodes.hold.discard(space.name)
        await space.until_ready(seconds=40)
    assert uids(await space.pods("front")) | uids(await space.pods("back")) == old
    assert await space.reason("Degraded") == "AsExpected"


async def test_case_45_a_bad_image_and_then_a_good_one(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    await space.create(meshmodel(image="meshnet/node:a"))
    await space.until_ready()
    space.nodes.hold.add(space.name)
    async with always_complete(space):
        await space.patch("demo", {"image": "meshnet/node:bad"})

        async def bad() -> bool:
            found = [pod for pod in await space.pods("front") if image_of(pod) == "meshnet/node:bad"]
            for pod in found:
                await space.nodes.no_image(pod)
            return bool(found)

        await space.until(bad)
        await space.until_reason("Degraded", "ImagePullFailed")
        await space.patch("demo", {"image": "meshnet/node:good"})
        space.nodes.hold.discard(space.name)

        async def good() -> bool:
            for pod in await space.pods():
                if image_of(pod) == "meshnet/node:good":
                    await space.nodes.ready(pod)
            found = [pod for name in ("front", "back", "head") for pod in await space.pods(name)]
            return {image_of(pod) for pod in found} == {"meshnet/node:good"}

        await space.until(good, 40)
        await space.until_ready(seconds=40)


async def test_another_cut_comes_up_beside_the_old_one(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    await space.create(meshmodel())
    await space.until_ready()
    new = [
        {"name": "front", "startLayer": 0, "endLayer": 9, "replicas": 1},
        {"name": "back", "startLayer": 10, "endLayer": 29, "replicas": 1},
    ]
    space.nodes.hold.add(space.name)
    async with always_complete(space):
        await space.patch("demo", {"shards": new})
        wanted = names.shard_workload("demo", Range("front", 0, 9))

        async def beside() -> bool:
            return len(await space.list(kinds.DEPLOYMENT)) == 5

        await space.until(beside)
        await asyncio.sleep(0.5)
        table = await space.table()
        assert [layout["state"] for layout in table["layouts"]] == ["active", "active"]
        space.nodes.hold.discard(space.name)

        async def done() -> bool:
            for pod in await space.pods():
                await space.nodes.ready(pod)
            found = {one["metadata"]["name"] for one in await space.list(kinds.DEPLOYMENT)}
            return len(found) == 3 and wanted in found

        await space.until(done, 40)
        await space.until_ready()

    async def one_layout() -> bool:
        return len((await space.table())["layouts"]) == 1

    await space.until(one_layout)
    services = {one["metadata"]["name"] for one in await space.list(kinds.SERVICE, names.SELECTOR)}
    assert services == {"demo", wanted, names.shard_workload("demo", Range("back", 10, 29))}


async def test_a_revert_of_another_cut_half_way_keeps_the_old_pods(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    await space.create(meshmodel())
    await space.until_ready()
    old = uids(await space.pods())
    new = [{"name": "all", "startLayer": 0, "endLayer": 29, "replicas": 1}]
    space.nodes.hold.add(space.name)
    async with always_complete(space):
        await space.patch("demo", {"shards": new})

        async def beside() -> bool:
            return bool(await space.pods("all"))

        await space.until(beside)
        await space.patch("demo", {"shards": meshmodel()["spec"]["shards"]})

        async def back() -> bool:
            return not await space.pods("all") and len(await space.list(kinds.DEPLOYMENT)) == 3

        await space.until(back, 30)
    assert uids(await space.pods()) == old


async def test_one_by_one_touches_a_shard_only_when_the_one_before_is_done(
    space: Any, start: Any, meshmodel: Make
) -> None:
    await start()
    await space.create(meshmodel(rollout={"strategy": "OneByOne"}))
    await space.until_ready()
    back = uids(await space.pods("back"))
    space.nodes.hold.add(space.name)
    await space.patch("demo", {"image": "meshnet/node:new"})
    await until_images(space, "front", "meshnet/node:new")
    await asyncio.sleep(1.0)
    assert uids(await space.pods("back")) == back
    for pod in await space.pods("front"):
        await space.nodes.ready(pod)
    await until_images(space, "back", "meshnet/node:new")
    assert len(await space.pods("front")) == 1


async def test_recreate_changes_all_at_once(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    await space.create(meshmodel(rollout={"strategy": "Recreate"}))
    await space.until_ready()
    await space.patch("demo", {"image": "meshnet/node:new"})
    for shard in ("front", "back"):
        await until_images(space, shard, "meshnet/node:new")
    deployment = (await space.list(kinds.DEPLOYMENT, f"{names.ROLE}=shard"))[0]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    await space.until_ready()


async def test_a_surge_without_room_is_told_and_the_old_path_serves_on(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    await space.create(meshmodel(rollout={"surgeTimeoutSeconds": 10}))
    await space.until_ready()
    shards = meshmodel()["spec"]["shards"]
    for shard in shards:
        shard["resources"] = {"requests": {"cpu": "9000"}}
    async with always_complete(space):
        await space.patch("demo", {"shards": shards})
        found = await space.until_reason("Degraded", "Unschedulable")
        assert "Insufficient cpu" in found["message"]
        await space.until_reason("Degraded", "InsufficientCapacity", seconds=30)
        assert await space.reason("Ready") == "Serving"
        await space.patch("demo", {"shards": meshmodel()["spec"]["shards"] + []})
        body = meshmodel()
        await space.patch("demo", {"shards": body["spec"]["shards"]})
        await space.until_reason("Degraded", "AsExpected", seconds=30)


async def test_restarted_at_restarts_every_pod_once(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    await space.create(meshmodel())
    await space.until_ready()
    before = uids(await space.pods())
    async with always_complete(space):
        await space.patch("demo", {"restartedAt": "2026-01-01T00:00:00Z"})

        async def all_new() -> bool:
            found = uids(await space.pods())
            return len(found) == 3 and not found & before

        await space.until(all_new, 40)
        await space.until_ready(seconds=40)


async def test_suspend_takes_the_pods_and_comes_back(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    await space.create(meshmodel())
    await space.until_ready()
    await space.patch("demo", {"suspend": True})

    async def none() -> bool:
        return not await space.pods()

    await space.until(none)
    await space.until_reason("Ready", "Suspended")
    await space.patch("demo", {"suspend": False})
    await space.until_ready(seconds=40)


async def test_paused_changes_nothing_but_the_table(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    await space.create(meshmodel())
    await space.until_ready()
    await space.patch("demo", {"paused": True})
    await space.until_reason("Progressing", "Paused")
    before = uids(await space.pods())
    await space.patch("demo", {"image": "meshnet/node:new"})
    (front,) = await space.pods("front")
    epoch = (await space.table())["epoch"]
    await space.nodes.ready(front, False)

    async def newer() -> bool:
        return bool((await space.table())["epoch"] > epoch)

    await space.until(newer)
    await asyncio.sleep(0.5)
    assert uids(await space.pods()) == before


async def test_case_52_replicas_that_an_autoscaler_owns_are_left_alone(space: Any, start: Any, meshmodel: Make) -> None:
    await start(resync_seconds=1.0)
    body = meshmodel()
    del body["spec"]["shards"][0]["replicas"]
    await space.create(body)
    await space.until_ready()
    name = names.shard_workload("demo", Range("front", 0, 14))
    await space.cluster.patch(kinds.DEPLOYMENT, space.name, name, {"spec": {"replicas": 3}}, "scale")

    async def three() -> bool:
        return len(await space.pods("front")) == 3

    await space.until(three)
    await space.patch("demo", {"sessions": {"ttlSeconds": 60}})
    await asyncio.sleep(2.5)
    await space.until_ready(seconds=40)
    assert (await space.get(kinds.DEPLOYMENT, name))["spec"]["replicas"] == 3


async def test_replicas_that_are_not_set_any_more_stay_until_somebody_scales(
    space: Any, start: Any, meshmodel: Make
) -> None:
    await start()
    body = meshmodel()
    body["spec"]["shards"][0]["replicas"] = 3
    await space.create(body)
    await space.until_ready()
    del body["spec"]["shards"][0]["replicas"]
    await space.patch("demo", body["spec"])
    await space.until_ready()
    name = names.shard_workload("demo", Range("front", 0, 14))
    assert (await space.get(kinds.DEPLOYMENT, name))["spec"]["replicas"] == 3
    await space.cluster.patch(kinds.DEPLOYMENT, space.name, name, {"spec": {"replicas": 2}}, "scale")
    await space.patch("demo", {"sessions": {"ttlSeconds": 60}})
    await space.until_ready(seconds=40)
    assert (await space.get(kinds.DEPLOYMENT, name))["spec"]["replicas"] == 2


async def test_replicas_that_are_set_are_ours(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    await space.create(meshmodel())
    await space.until_ready()
    name = names.shard_workload("demo", Range("front", 0, 14))
    await space.cluster.patch(kinds.DEPLOYMENT, space.name, name, {"spec": {"replicas": 3}}, "scale")

    async def ours() -> bool:
        return bool((await space.get(kinds.DEPLOYMENT, name))["spec"]["replicas"] == 1)

    await space.until(ours)


async def test_case_51_another_operator_version_rolls_no_pod(space: Any, start: Any, meshmodel: Make) -> None:
    """The new version renders another template and has another default image; the stored template stays."""
    first = await start()
    await space.create(meshmodel())
    await space.until_ready()
    before = uids(await space.pods())
    await first.stop()
    # What a new version would render: the stored templates are all that this one's pods were made of.
    for revision in await space.list(kinds.REVISION, names.SELECTOR):
        assert revision["data"]["template"]["spec"]["containers"][0]["image"] == "meshnet/node:test"
    await start(node_image="meshnet/node:next", resync_seconds=1.0)
    await asyncio.sleep(4.0)
    await space.until_ready()
    assert uids(await space.pods()) == before


async def test_case_53_delete_and_same_name_create_at_once(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    space.nodes.grace[space.name] = 1.0
    await space.create(meshmodel())
    await space.until_ready()
    before = uids(await space.pods())
    await space.cluster.delete(kinds.MESHMODEL, space.name, "demo")
    made = await space.create(meshmodel())

    async def fresh() -> bool:
        found = uids(await space.pods())
        return len(found) == 3 and not found & before

    await space.until(fresh, 40)
    await space.until_ready(seconds=40)
    table = await space.table()
    assert table["uid"] == made["metadata"]["uid"]
    assert not {end["uid"] for one in table["layouts"][0]["shards"] for end in one["endpoints"]} & before


async def test_case_53_scale_fast_from_four_to_suspended_to_four(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    body = meshmodel()
    body["spec"]["shards"][0]["replicas"] = 4
    await space.create(body)
    await space.until_ready()
    space.nodes.grace[space.name] = 1.0
    await space.patch("demo", {"suspend": True})
    await asyncio.sleep(0.3)
    await space.patch("demo", {"suspend": False})

    async def four() -> bool:
        return len(await space.pods("front")) == 4

    await space.until(four)
    await space.until_ready(seconds=40)
    assert len((await space.table())["layouts"][0]["shards"][0]["endpoints"]) >= 4


async def test_case_59_two_models_in_a_namespace_and_a_service_of_another_type(
    space: Any, start: Any, meshmodel: Make
) -> None:
    await start()
    await space.create(meshmodel("one"))
    await space.create(meshmodel("two"))
    await space.until_ready("one")
    await space.until_ready("two")
    change = {"head": {"service": {"type": "NodePort"}, "allowUnauthenticated": True}}
    await space.patch("one", change)

    async def changed() -> bool:
        return bool((await space.get(kinds.SERVICE, "one"))["spec"]["type"] == "NodePort")

    await space.until(changed)
    await space.patch("one", {"head": {"service": {"type": "ClusterIP"}}})

    async def back() -> bool:
        return bool((await space.get(kinds.SERVICE, "one"))["spec"]["type"] == "ClusterIP")

    await space.until(back)
