"""What goes wrong reaches the MeshModel: a condition with a closed reason, one Event, and both go on recovery."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

from meshnet_operator import kinds, names
from meshnet_operator.resource import Range

Make = Callable[..., Any]


async def first_front(space: Any, meshmodel: Make, **spec: Any) -> Any:
    """Creates the MeshModel with its pods left alone; returns the pod of the first shard once it is bound to a node."""
    space.nodes.hold.add(space.name)
    await space.create(meshmodel(**spec))

    async def bound() -> Any:
        return [pod for pod in await space.pods("front") if pod["spec"].get("nodeName")]

    (pod,) = await space.until(bound)
    return pod


async def events(space: Any, reason: str) -> list[Any]:
    found = await space.list(kinds.EVENT)
    return [one for one in found if one["involvedObject"]["kind"] == "MeshModel" and one["reason"] == reason]


async def test_case_48_a_container_that_always_ends_is_told_with_its_last_words(
    space: Any, start: Any, meshmodel: Make
) -> None:
    await start()
    pod = await first_front(space, meshmodel)
    words = "layers 15-29 do not fit this model of 12 layers"
    await space.nodes.crashed(pod, "Error", 1, words, restarts=5)
    found = await space.until_reason("Degraded", "CrashLoop")
    assert words in found["message"]
    assert "shard front" in found["message"]
    status = (await space.get(kinds.MESHMODEL, "demo"))["status"]["shards"][0]
    assert status["restarts"] == 5
    assert words in status["lastError"]


async def test_an_event_for_each_transition_and_none_between(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    pod = await first_front(space, meshmodel)
    for restarts in (3, 4, 5):
        await space.nodes.crashed(pod, "OOMKilled", 137, restarts=restarts)
        await space.until_reason("Degraded", "OOMKilled")
        await asyncio.sleep(0.3)
    space.nodes.hold.discard(space.name)
    for one in await space.pods():
        await space.nodes.ready(one)
    await space.until_reason("Degraded", "AsExpected")
    await space.until_ready()

    async def told() -> bool:
        return bool(await events(space, "Serving")) and bool(await events(space, "AsExpected"))

    await space.until(told)
    (oom,) = await events(space, "OOMKilled")
    assert oom["type"] == "Warning"
    assert "give it more memory" in oom["message"]
    (well,) = await events(space, "AsExpected")
    assert well["type"] == "Normal"


async def test_an_image_that_cannot_be_pulled(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    pod = await first_front(space, meshmodel)
    await space.nodes.no_image(pod)
    found = await space.until_reason("Degraded", "ImagePullFailed")
    assert "manifest unknown" in found["message"]


async def test_case_57_a_quota_that_refuses_pods_is_told(space: Any, start: Any, meshmodel: Make) -> None:
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    await space.create(quota, kinds.Kind("", "v1", "resourcequotas", "ResourceQuota"))
    await start()
    await space.create(meshmodel())
    found = await space.until_reason("Degraded", "QuotaExceeded", seconds=30)
    assert "exceeded quota" in found["message"]

    async def told() -> bool:
        return bool(await events(space, "QuotaExceeded"))

    await space.until(told)


async def test_case_58_a_claim_that_is_missing_is_told_in_the_schedulers_words(
    space: Any, start: Any, meshmodel: Make
) -> None:
    await start()
    await space.create(meshmodel(model={"source": "pvc://absent/model"}))
    found = await space.until_reason("Degraded", "Unschedulable")
    assert 'persistentvolumeclaim "absent" not found' in found["message"]


def claim(name: str, mode: str) -> Any:
    return {
        "metadata": {"name": name},
        "spec": {
            "accessModes": [mode],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "",
            "volumeName": "",
        },
    }


async def bind(space: Any, name: str, mode: str) -> None:
    """A claim bound to a volume that every node reaches."""
    volume_kind = kinds.Kind("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
    volume = {
        "metadata": {"name": f"{space.name}-{name}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": [mode],
            "hostPath": {"path": "/nowhere"},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "",
            "claimRef": {"namespace": space.name, "name": name},
        },
    }
    await space.cluster.create(volume, volume_kind, None)
    await space.create(claim(name, mode), kinds.CLAIM)


async def test_case_60_a_claim_for_one_node_is_recreated_and_told_when_several_want_it(
    space: Any, start: Any, meshmodel: Make
) -> None:
    await bind(space, "weights", "ReadWriteOnce")
    await start()
    body = meshmodel(model={"source": "pvc://weights/m"})
    for at, shard in enumerate(body["spec"]["shards"]):
        shard["nodeSelector"] = {"kubernetes.io/hostname": f"node-{at + 1}"}
    await space.create(body)

    async def recreate() -> bool:
        found = await space.list(kinds.DEPLOYMENT)
        return len(found) == 3 and all(one["spec"]["strategy"]["type"] == "Recreate" for one in found)

    await space.until(recreate)
    found = await space.until_reason("Degraded", "VolumeNotShareable")
    assert "ReadWriteMany" in found["message"]


async def test_a_claim_for_many_nodes_is_no_trouble(space: Any, start: Any, meshmodel: Make) -> None:
    await bind(space, "weights", "ReadWriteMany")
    await start()
    await space.create(meshmodel(model={"source": "pvc://weights/m"}))
    await space.until_ready()
    assert await space.reason("Degraded") == "AsExpected"


async def test_case_56_one_broken_meshmodel_does_not_delay_another(space: Any, start: Any, meshmodel: Make) -> None:
    await start(workers=1)
    for at in range(5):
        await space.create(meshmodel(f"broken-{at}", model={"source": "pvc://absent/model"}))
    await space.create({"metadata": {"name": "stolen"}, "spec": {"ports": [{"port": 1}]}}, kinds.SERVICE)
    await space.create(meshmodel("stolen"))
    await space.create(meshmodel("good"))
    await space.until_ready("good")


async def test_an_object_of_somebody_else_is_left_alone(space: Any, start: Any, meshmodel: Make) -> None:
    await space.create(
        {"metadata": {"name": "demo"}, "spec": {"ports": [{"port": 1}], "selector": {"app": "x"}}}, kinds.SERVICE
    )
    await start()
    await space.create(meshmodel())
    found = await space.until_reason("Degraded", "NameConflict")
    assert "Service demo belongs to somebody else" in found["message"]
    body = await space.get(kinds.SERVICE, "demo")
    assert body["spec"]["selector"] == {"app": "x"}
    assert "ownerReferences" not in body["metadata"]
    await space.cluster.delete(kinds.SERVICE, space.name, "demo")
    await space.until_ready(seconds=40)


async def test_a_secret_with_other_tokens_is_never_overwritten(space: Any, start: Any, meshmodel: Make) -> None:
    await start(resync_seconds=1.0)
    await space.create(meshmodel())
    await space.until_ready()
    mine = base64.b64encode(b"mine").decode()
    await space.cluster.patch(kinds.SECRET, space.name, "demo-mesh", {"data": {"token": mine}})
    await space.patch("demo", {"sessions": {"ttlSeconds": 77}})
    await asyncio.sleep(2.5)
    assert (await space.get(kinds.SECRET, "demo-mesh"))["data"]["token"] == mine
    await space.cluster.delete(kinds.SECRET, space.name, "demo-mesh")

    async def made() -> bool:
        found = await space.list(kinds.SECRET, names.SELECTOR)
        return [one["metadata"]["name"] for one in found] == ["demo-mesh"]

    await space.until(made)


async def test_children_that_somebody_changed_or_deleted_come_back(space: Any, start: Any, meshmodel: Make) -> None:
    await start(resync_seconds=1.0)
    await space.create(meshmodel())
    await space.until_ready()
    workload = names.shard_workload("demo", Range("front", 0, 14))
    await space.cluster.delete(kinds.SERVICE, space.name, "demo")
    await space.cluster.delete(kinds.BUDGET, space.name, "demo-head")
    await space.cluster.patch(kinds.ROLE, space.name, "demo-head", {"rules": []})
    change = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}}
    await space.cluster.patch(kinds.DEPLOYMENT, space.name, workload, change)

    async def back() -> bool:
        service = {one["metadata"]["name"] for one in await space.list(kinds.SERVICE)}
        budgets = {one["metadata"]["name"] for one in await space.list(kinds.BUDGET)}
        role = await space.get(kinds.ROLE, "demo-head")
        found = await space.get(kinds.DEPLOYMENT, workload)
        grace = found["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        return bool("demo" in service and "demo-head" in budgets and role["rules"] and grace == 40)

    await space.until(back, 30)


async def test_a_child_that_is_refused_is_told_and_the_others_are_made(space: Any, start: Any, meshmodel: Make) -> None:
    await start()
    role = await space.get(kinds.ROLE, "operator")
    rules = [rule for rule in role["rules"] if "poddisruptionbudgets" not in rule["resources"]]
    await space.create(meshmodel("first"))
    await space.until_ready("first")
    await space.cluster.patch(kinds.ROLE, space.name, "operator", {"rules": rules})
    await asyncio.sleep(0.5)
    await space.create(meshmodel())
    found = await space.until_reason("Degraded", "ApplyFailed")
    assert "poddisruptionbudgets" in found["message"]

    async def served() -> bool:
        return bool(await space.reason("Ready") == "Serving")

    await space.until(served)
    await space.cluster.patch(kinds.ROLE, space.name, "operator", {"rules": role["rules"]})
    await space.until_reason("Degraded", "AsExpected", seconds=40)


async def test_a_route_table_of_somebody_else_is_left_alone(space: Any, start: Any, meshmodel: Make) -> None:
    await space.create({"metadata": {"name": "demo-routes"}, "data": {"mine": "x"}}, kinds.CONFIGMAP)
    await start()
    await space.create(meshmodel())
    await space.until_reason("RoutesPublished", "PublishFailed")
    found = await space.until_reason("Degraded", "NameConflict")
    assert "ConfigMap demo-routes" in found["message"]
    assert (await space.get(kinds.CONFIGMAP, "demo-routes"))["data"] == {"mine": "x"}
    await space.cluster.delete(kinds.CONFIGMAP, space.name, "demo-routes")
    await space.until_ready(seconds=40)


async def test_a_cluster_without_image_volumes_is_told(space: Any, start: Any, proxy: Any, meshmodel: Make) -> None:
    """As an API server without the feature answers: the dropped field leaves a volume of no kind."""
    await start(proxy)
    words = "Deployment is invalid: spec.template.spec.volumes[3]: Required value: must specify a volume type"
    proxy.refuse("/deployments", 422, times=1000, method="PATCH", message=words)
    await space.create(meshmodel(model={"source": "image://registry.example/models/demo:v1/float32"}))
    await space.until_reason("Degraded", "ImageVolumesUnsupported")
