"""The operator against networks, busy servers, other operators and its own end."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster import access

from meshnet_operator import kinds, names
from meshnet_operator.errors import Conflict, LeaseLost, Stalled

Make = Callable[..., Any]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_an_api_server_that_refuses_now_and_then_is_asked_again(
    space: Any, start: Any, proxy: Any, meshmodel: Make, status: int
) -> None:
    await start(proxy)
    for part in ("/deployments", "/services", "/configmaps", "/status", "/secrets"):
        proxy.refuse(part, status, times=2, retry_after=1 if status == 429 else None)
    await space.create(meshmodel())
    await space.until_ready(seconds=40)


async def test_a_failed_list_deletes_nothing(space: Any, start: Any, proxy: Any, meshmodel: Make) -> None:
    await start(proxy, resync_seconds=1.0)
    await space.create(meshmodel())
    await space.until_ready()
    proxy.refuse("labelSelector", 500, times=60)
    await asyncio.sleep(4.0)
    assert [seen for seen in proxy.seen if seen[0] == "DELETE"] == []
    assert len((await space.table())["layouts"][0]["shards"][0]["endpoints"]) == 1
    await space.until_ready()


async def test_case_69_half_open_connections_end_in_a_timeout(
    space: Any, start: Any, proxy: Any, meshmodel: Make
) -> None:
    """The server accepts and then says nothing: each call gives up, and work goes on when it speaks again."""
    await start(proxy, request_timeout=1.0, watch_seconds=5, lease_renew_deadline=60.0, lease_seconds=90.0)
    await space.create(meshmodel())
    await space.until_ready()
    proxy.silent(True)
    await asyncio.sleep(3.0)
    (front,) = await space.pods("front")
    await space.cluster.delete(kinds.POD, space.name, front["metadata"]["name"], grace=0)
    await asyncio.sleep(1.0)
    proxy.silent(False)

    async def other() -> bool:
        found = (await space.table())["layouts"][0]["shards"][0]["endpoints"]
        return bool(found) and found[0]["uid"] != front["metadata"]["uid"]

    await space.until(other, 40)


async def test_two_operators_and_one_lease(space: Any, start: Any, meshmodel: Make) -> None:
    quick = {"lease_seconds": 1.0, "lease_renew_deadline": 0.8, "lease_retry_seconds": 0.2}
    first = await start(**quick)
    await space.create(meshmodel())
    await space.until_ready()
    second = await start(**quick)
    await asyncio.sleep(1.5)
    lease = await space.get(kinds.LEASE, "meshnet-operator")
    assert lease["spec"]["holderIdentity"] == first.settings.identity
    await first.kill()
    (front,) = await space.pods("front")
    await space.nodes.ready(front, False)

    async def taken() -> bool:
        lease = await space.get(kinds.LEASE, "meshnet-operator")
        return bool(lease["spec"]["holderIdentity"] == second.settings.identity)

    await space.until(taken)
    await space.until_reason("Ready", "NoCompletePath")


async def test_a_leader_whose_lease_is_taken_ends(space: Any, start: Any, meshmodel: Make) -> None:
    operator = await start(lease_retry_seconds=0.2)
    await space.create(meshmodel())
    await space.until_ready()

    async def taken() -> bool:
        """The leader renews five times a second: a write on top of a version that it has replaced is tried again."""
        lease = await space.get(kinds.LEASE, "meshnet-operator")
        lease["spec"]["holderIdentity"] = "somebody"
        try:
            await space.cluster.replace(lease, kinds.LEASE, space.name)
        except Conflict:
            return False
        return True

    await space.until(taken)
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(operator.task, 10)
    operator.expected = True


async def test_a_leader_that_cannot_renew_ends(space: Any, start: Any, proxy: Any) -> None:
    operator = await start(proxy, lease_retry_seconds=0.2, lease_renew_deadline=1.0, lease_seconds=2.0)

    async def held() -> bool:
        return bool(await space.list(kinds.LEASE))

    await space.until(held)
    proxy.refuse("/leases", 500, times=10_000)
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(operator.task, 15)
    operator.expected = True


async def test_a_meshmodel_that_the_watch_does_not_deliver_is_served_and_ends_the_process(
    space: Any, start: Any, proxy: Any, meshmodel: Make
) -> None:
    """kopf's watch is silent; the resync finds the MeshModel, and the leader that stays behind gives up."""
    operator = await start(proxy, resync_seconds=0.5, stall_seconds=4.0)

    async def watching() -> bool:
        return any("/meshmodels?" in path and "watch=true" in path for _, path in proxy.seen)

    await space.until(watching)
    proxy.lose("ADDED", "MeshModel")
    proxy.lose("MODIFIED", "MeshModel")
    await space.create(meshmodel())

    async def table() -> bool:
        return bool((await space.table())["epoch"] > 0)

    await space.until(table)
    with pytest.raises(Stalled):
        await asyncio.wait_for(operator.task, 20)
    operator.expected = True


async def test_case_67_an_error_of_ours_on_one_meshmodel_stops_nothing(space: Any, start: Any, meshmodel: Make) -> None:
    """A stored template that no version of ours wrote makes the planner fail on one MeshModel for ever."""
    await start(resync_seconds=1.0)
    await space.create(meshmodel("odd"))
    await space.until_ready("odd")
    revision = (await space.list(kinds.REVISION, f"{names.MODEL}=odd"))[0]
    broken = {**revision, "data": {"nothing": "here"}}
    broken["metadata"] = {
        "name": "odd-broken",
        "labels": revision["metadata"]["labels"],
        "ownerReferences": revision["metadata"]["ownerReferences"],
    }
    await space.create(broken, kinds.REVISION)
    await asyncio.sleep(2.0)
    await space.create(meshmodel("good"))
    await space.until_ready("good")


async def test_killed_again_and_again_the_end_is_the_same(space: Any, start: Any, meshmodel: Make) -> None:
    """Killed at random moments of apply, rollout and loss: nothing twice, nothing lost, one path always."""
    chance = random.Random(7)
    body = meshmodel()
    running = await start(lease_seconds=1.0)
    await space.create(body)

    async def kill_a_few(times: int) -> None:
        nonlocal running
        for _ in range(times):
            await asyncio.sleep(chance.uniform(0.05, 0.6))
            await running.kill()
            lease = await space.list(kinds.LEASE)
            for one in lease:
                await space.cluster.delete(kinds.LEASE, space.name, one["metadata"]["name"])
            running = await start(lease_seconds=1.0)

    await kill_a_few(4)
    await space.until_ready(seconds=40)
    await space.patch("demo", {"image": "meshnet/node:new"})
    await kill_a_few(4)
    await space.until_ready(seconds=60)
    (front,) = await space.pods("front")
    await space.cluster.delete(kinds.POD, space.name, front["metadata"]["name"])
    await kill_a_few(2)
    await space.until_ready(seconds=60)

    found = {one["metadata"]["name"]: one for one in await space.list(kinds.DEPLOYMENT)}
    assert len(found) == 3
    for one in await space.pods():
        assert one["spec"]["containers"][0]["image"] == "meshnet/node:new"
    assert len(await space.pods()) == 3
    events = [one for one in await space.list(kinds.EVENT) if one["reason"] == "ScalingReplicaSet"]
    ups = [one["message"] for one in events if "Scaled up" in one["message"] and "from 0 to 1" in one["message"]]
    assert len(ups) == len(set(ups)) == 6


async def test_kill_9_of_the_process_in_apply_rollout_and_loss(space: Any, meshmodel: Make, tmp_path: Path) -> None:
    """The operator as it runs in a pod, ended by the kernel; its successor waits for the lease and goes on."""
    token = await access.account(space.cluster, space.name)
    config = access.kubeconfig(tmp_path / "operator.kubeconfig", space.plane.server, token, space.plane.authority)
    settings = {
        "NODE_IMAGE": "meshnet/node:test", "NAMESPACE": space.name, "KUBECONFIG": str(config), "HOST": "127.0.0.1",
        "PORT": "0", "LEASE_NAMESPACE": space.name, "LEASE_SECONDS": "2", "LEASE_RENEW_DEADLINE": "1.5",
        "LEASE_RETRY_SECONDS": "0.3", "PROBE_PODS": "false", "LOG_LEVEL": "WARNING",
    }  # fmt: skip
    environment = {**os.environ, **{f"MESHNET_OPERATOR_{name}": value for name, value in settings.items()}}
    chance = random.Random(3)

    @asynccontextmanager
    async def process(name: str) -> AsyncIterator[asyncio.subprocess.Process]:
        more = {"MESHNET_OPERATOR_IDENTITY": name}
        made = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "meshnet_operator", env=environment | more, start_new_session=True
        )
        try:

            async def leads() -> bool:
                found = await space.list(kinds.LEASE)
                return bool(found and found[0]["spec"]["holderIdentity"] == name)

            await space.until(leads, 60, f"{name} leads")
            yield made
        finally:
            if made.returncode is None:
                made.kill()
            await made.wait()

    await space.create(meshmodel())
    for at in range(2):
        async with process(f"apply-{at}") as one:
            await asyncio.sleep(chance.uniform(0.1, 0.5))
            one.kill()
    async with process("serving"):
        await space.until_ready(seconds=60)
        await space.patch("demo", {"image": "meshnet/node:new"})
        await asyncio.sleep(chance.uniform(0.2, 0.8))
    (front, *_) = await space.pods("front")
    await space.cluster.delete(kinds.POD, space.name, front["metadata"]["name"])
    async with process("last"):
        await space.until_ready(seconds=90)
    assert len(await space.list(kinds.DEPLOYMENT)) == 3
    assert {one["spec"]["containers"][0]["image"] for one in await space.pods()} == {"meshnet/node:new"}
    assert len(await space.pods()) == 3
