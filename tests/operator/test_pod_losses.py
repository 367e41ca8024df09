"""Every change of a pod's state is in the published table, and in nothing but the table's own time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshnet_operator import kinds

Make = Callable[..., Any]


def ends(table: Any, shard: str) -> dict[str, str]:
    """Endpoints of a shard, uid -> state, over all layouts."""
    return {
        end["uid"]: end["state"]
        for layout in table.get("layouts", [])
        for one in layout["shards"]
        if one["name"] == shard
        for end in one["endpoints"]
    }


async def serving(space: Any, meshmodel: Make, front: int = 2) -> list[Any]:
    """A ready MeshModel with so many pods of its first shard; returns those pods."""
    body = meshmodel()
    body["spec"]["shards"][0]["replicas"] = front
    await space.create(body)
    await space.until_ready()
    found: list[Any] = await space.pods("front")
    return found


async def until_states(space: Any, shard: str, wanted: dict[str, str]) -> None:
    async def same() -> bool:
        return bool(ends(await space.table(), shard) == wanted)

    await space.until(same, what=f"{shard}: {wanted}")


def uid(pod: Any) -> str:
    return str(pod["metadata"]["uid"])


async def test_case_41_no_new_hop_goes_to_a_pod_that_is_not_ready(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    one, two = await serving(space, meshmodel)
    await space.nodes.ready(one, False)
    await until_states(space, "front", {uid(two): "ready"})
    await space.nodes.ready(one)
    await until_states(space, "front", {uid(one): "ready", uid(two): "ready"})


async def test_case_41_no_new_hop_goes_to_a_pod_whose_label_was_changed(
    space: Any, start: Any, meshmodel: Make
) -> None:
    await start()
    one, two = await serving(space, meshmodel)
    change = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "somebody"}}}
    await space.cluster.patch(kinds.POD, space.name, one["metadata"]["name"], change)

    async def out() -> bool:
        found = ends(await space.table(), "front")
        return uid(one) not in found and found.get(uid(two)) == "ready"

    await space.until(out)


FAILURES = {
    "evicted": ("Evicted", "The node was low on resource: memory."),
    "refused by the node": ("UnexpectedAdmissionError", "Allocate failed: no healthy devices"),
    "node shut down": ("NodeShutdown", "Pod was terminated in response to imminent node shutdown."),
}


@pytest.mark.parametrize(("reason", "message"), FAILURES.values(), ids=FAILURES)
async def test_case_47_a_failed_pod_leaves_the_table_and_is_replaced_once(
    space: Any, start: Any, meshmodel: Make, reason: str, message: str
) -> None:
    await start()
    (one,) = await serving(space, meshmodel, front=1)
    await space.nodes.failed(one, reason, message)

    async def replaced() -> bool:
        found = ends(await space.table(), "front")
        return len(found) == 1 and uid(one) not in found

    await space.until(replaced)
    await space.until_ready()
    assert len([pod for pod in await space.pods("front") if pod["status"]["phase"] != "Failed"]) == 1


async def test_the_last_pod_of_a_range_stays_as_a_suspect(space: Any, start: Any, meshmodel: Make) -> None:
    """A partitioned node: every pod on it is marked NotReady, and may be well."""
    await start()
    (one,) = await serving(space, meshmodel, front=1)
    await space.nodes.ready(one, False)
    await until_states(space, "front", {uid(one): "suspect"})
    await space.until_reason("Ready", "NoCompletePath")
    # What was rolled out stays so: a loss is told by Ready and ShardsReady, not as a rollout that nobody began.
    assert (await space.conditions())["Progressing"]["reason"] == "Complete"
    await space.nodes.ready(one)
    await until_states(space, "front", {uid(one): "ready"})


async def test_a_deleted_pod_drains_with_a_deadline(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    one, two = await serving(space, meshmodel)
    space.nodes.grace[space.name] = 2.0
    await space.cluster.delete(kinds.POD, space.name, one["metadata"]["name"])

    async def draining() -> Any:
        table = await space.table()
        found = [end for end in table["layouts"][0]["shards"][0]["endpoints"] if end["state"] == "draining"]
        return found

    (end,) = await space.until(draining)
    assert end["uid"] == uid(one)
    deleted = await space.get(kinds.POD, one["metadata"]["name"])
    assert deleted["metadata"]["deletionGracePeriodSeconds"] == 40
    assert isinstance(end["deadline"], float)

    async def gone() -> bool:
        return uid(one) not in ends(await space.table(), "front")

    await space.until(gone)
    assert ends(await space.table(), "front")[uid(two)] == "ready"


@pytest.mark.parametrize("state", ["pending", "loading", "ready"])
async def test_case_54_a_pod_deleted_in_any_state_is_made_again(
    space: Any, start: Any, meshmodel: Make, state: str
) -> None:
    await start()
    space.nodes.hold.add(space.name)
    await space.create(meshmodel())

    async def one_front() -> Any:
        return await space.pods("front")

    (pod,) = await space.until(one_front)
    if state != "pending":
        await space.nodes.ready(pod, state == "ready")
    await space.cluster.delete(kinds.POD, space.name, pod["metadata"]["name"])
    space.nodes.hold.discard(space.name)
    for waiting in await space.pods():
        await space.nodes.ready(waiting)

    async def another() -> bool:
        found = await space.pods("front")
        for waiting in await space.pods():
            await space.nodes.ready(waiting)
        return len(found) == 1 and uid(found[0]) != uid(pod)

    await space.until(another)
    await space.until_ready()


async def test_case_46_one_loss_makes_one_pod(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    (one,) = await serving(space, meshmodel, front=1)
    before = {uid(pod) for pod in await space.pods()}
    await space.cluster.delete(kinds.POD, space.name, one["metadata"]["name"])

    async def back() -> bool:
        found = await space.pods("front")
        return len(found) == 1 and uid(found[0]) != uid(one)

    await space.until(back)
    await space.until_ready()
    made = {uid(pod) for pod in await space.pods()} - before
    assert len(made) == 1


async def test_case_39_a_lost_deletion_event_is_made_good_by_the_next_list(
    space: Any, start: Any, proxy: Any, meshmodel: Make
) -> None:
    await start(proxy, resync_seconds=2.0)
    one, two = await serving(space, meshmodel)
    proxy.lose("DELETED", "Pod")
    await space.cluster.delete(kinds.POD, space.name, one["metadata"]["name"], grace=0)

    async def out() -> bool:
        found = ends(await space.table(), "front")
        return uid(one) not in found and found.get(uid(two)) == "ready"

    await space.until(out, 10)


async def test_case_39_a_deletion_while_the_watch_was_down_is_seen_after_it(
    space: Any, start: Any, proxy: Any, meshmodel: Make
) -> None:
    await start(proxy)
    one, two = await serving(space, meshmodel)
    proxy.refuse("/pods?", 500, times=3)
    proxy.cut()
    await space.cluster.delete(kinds.POD, space.name, one["metadata"]["name"], grace=0)

    async def out() -> bool:
        found = ends(await space.table(), "front")
        return uid(one) not in found and found.get(uid(two)) == "ready"

    await space.until(out, 15)


@pytest.mark.parametrize("fault", ["410 in the stream", "410 at the start", "504 at the start", "cut"])
async def test_case_40_a_watch_that_fails_is_listed_anew(
    space: Any, start: Any, proxy: Any, meshmodel: Make, fault: str
) -> None:
    await start(proxy)
    one, two = await serving(space, meshmodel)
    if fault == "410 in the stream":
        await proxy.stream_error("/pods", 410)
    else:
        if fault != "cut":
            proxy.refuse("watch=true", int(fault[:3]), times=2)
        proxy.cut()
    await space.nodes.ready(one, False)
    await until_states(space, "front", {uid(two): "ready"})
    lists = [path for method, path in proxy.seen if "/pods?" in path and "watch" not in path]
    assert 2 <= len(lists) <= 8


async def test_routes_go_on_while_the_slow_lane_cannot(space: Any, start: Any, proxy: Any, meshmodel: Make) -> None:
    """Neither status nor children can be written; the table is."""
    await start(proxy)
    one, two = await serving(space, meshmodel)
    proxy.refuse("/status", 500, times=1000)
    proxy.refuse("/deployments", 500, times=1000, method="PATCH")
    await space.nodes.ready(one, False)
    await until_states(space, "front", {uid(two): "ready"})


async def test_a_table_that_somebody_deleted_or_changed_is_written_again(
    space: Any, start: Any, meshmodel: Make
) -> None:
    await start(resync_seconds=1.0)
    one, two = await serving(space, meshmodel)
    before = (await space.table())["epoch"]
    await space.cluster.patch(kinds.CONFIGMAP, space.name, "demo-routes", {"data": {"routes.json": "{}"}})
    await until_states(space, "front", {uid(one): "ready", uid(two): "ready"})
    await space.cluster.delete(kinds.CONFIGMAP, space.name, "demo-routes")
    await until_states(space, "front", {uid(one): "ready", uid(two): "ready"})
    assert (await space.table())["epoch"] > before
