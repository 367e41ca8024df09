"""A MeshModel becomes a mesh: children, route table, status, events; and goes without a trace."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Callable
from typing import Any

import pytest
from cluster import access

from meshnet_operator import kinds, names
from meshnet_operator.errors import NotFound


async def test_an_applied_meshmodel_serves(space: Any, start: Any, meshmodel: Callable[..., Any]) -> None:
    await start()
    made = await space.create(meshmodel())
    await space.until_ready()

    table = await space.table()
    assert table["uid"] == made["metadata"]["uid"]
    (layout,) = table["layouts"]
    assert layout["state"] == "active"
    assert [(one["name"], one["startLayer"], one["endLayer"]) for one in layout["shards"]] == [
        ("front", 0, 14),
        ("back", 15, 29),
    ]
    pods = {pod["metadata"]["uid"]: pod["status"]["podIP"] for pod in await space.pods()}
    for shard in layout["shards"]:
        (endpoint,) = shard["endpoints"]
        assert endpoint == {
            "uid": endpoint["uid"],
            "address": f"{pods[endpoint['uid']]}:8100",
            "state": "ready",
            "deadline": None,
        }
    status = (await space.get(kinds.MESHMODEL, "demo"))["status"]
    assert status["readyShards"] == "2/2"
    assert status["routeEpoch"] == table["epoch"]
    assert status["observedGeneration"] == 1
    assert status["pinned"]["image"] == "meshnet/node:test"
    assert status["url"] == f"http://demo.{space.name}.svc.cluster.local:8000/v1"
    assert {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]} == {
        "Ready": ("True", "Serving"),
        "ShardsReady": ("True", "AllShardsReady"),
        "RoutesPublished": ("True", "Published"),
        "Progressing": ("False", "Complete"),
        "Degraded": ("False", "AsExpected"),
    }


async def test_an_operator_whose_user_has_no_name_serves(
    space: Any, start: Any, meshmodel: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's user is a number that no /etc/passwd knows."""

    def nameless() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr(getpass, "getuser", nameless)
    await start()
    await space.create(meshmodel())
    await space.until_ready()


async def test_the_resource_keeps_no_finalizer_and_no_annotation(
    space: Any, start: Any, meshmodel: Callable[..., Any]
) -> None:
    await start()
    await space.create(meshmodel())
    await space.until_ready()
    metadata = (await space.get(kinds.MESHMODEL, "demo"))["metadata"]
    assert "finalizers" not in metadata
    assert "annotations" not in metadata


async def test_a_deleted_meshmodel_takes_everything_along(
    space: Any, start: Any, meshmodel: Callable[..., Any]
) -> None:
    await start()
    await space.create(meshmodel())
    await space.until_ready()
    await space.cluster.delete(kinds.MESHMODEL, space.name, "demo")

    async def gone() -> bool:
        left = [await space.list(kind, "app.kubernetes.io/managed-by=meshnet-operator") for kind in kinds.CHILDREN]
        return not any(left) and not await space.pods()

    await space.until(gone, 30)
    for kind, name in ((kinds.CONFIGMAP, "demo-routes"), (kinds.SECRET, "demo-mesh")):
        try:
            await space.get(kind, name)
        except NotFound:
            continue
        raise AssertionError(f"{name} is left")


async def test_nothing_is_written_while_nothing_changes(
    space: Any, start: Any, proxy: Any, meshmodel: Callable[..., Any]
) -> None:
    await start(proxy, resync_seconds=1.0, lease_retry_seconds=60.0, lease_renew_deadline=100.0)
    await space.create(meshmodel())
    await space.until_ready()
    await asyncio.sleep(2.5)
    proxy.seen.clear()
    await asyncio.sleep(3.0)
    assert [seen for seen in proxy.seen if seen[0] != "GET"] == []


async def test_all_pods_pass_pod_security_restricted(space: Any, start: Any, meshmodel: Callable[..., Any]) -> None:
    """The namespace enforces it: a pod that did not pass would not be there."""
    await start()
    await space.create(meshmodel(security={"supplementalGroups": [44], "readOnlyRootFilesystem": True}))
    await space.until_ready()
    for pod in await space.pods():
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


async def test_a_status_that_somebody_broke_is_mended(space: Any, start: Any, meshmodel: Callable[..., Any]) -> None:
    await start()
    await space.create(meshmodel())
    await space.until_ready()
    change = {"status": {"readyShards": "9/9"}}
    await space.cluster.patch(kinds.MESHMODEL, space.name, "demo", change, "status")

    async def mended() -> bool:
        return bool((await space.get(kinds.MESHMODEL, "demo"))["status"]["readyShards"] == "2/2")

    await space.until(mended)


SOURCES = {
    "hub": ({"model": {"source": "hf://org/name"}}, "org/name", "0"),
    "hub with a filled cache on a claim": (
        {
            "model": {"source": "hf://org/name"},
            "weights": {"volume": {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}},
        },
        "org/name",
        "1",
    ),
    "claim": ({"model": {"source": "pvc://weights/a/b"}}, "/models/a/b", "1"),
    "whole claim": ({"model": {"source": "pvc://weights"}}, "/models", "1"),
    "file": ({"model": {"source": "file:///models/demo"}}, "/models/demo", "1"),
    "image": ({"model": {"source": "image://localhost:5000/m:v1/float32"}}, "/models/float32", "1"),
    "image by digest": ({"model": {"source": "image://reg.example/m@sha256:" + "a" * 64}}, "/models", "1"),
}


@pytest.mark.parametrize(("spec", "model", "offline"), SOURCES.values(), ids=SOURCES)
async def test_case_65_every_source_reaches_the_pods(
    space: Any, start: Any, meshmodel: Callable[..., Any], spec: Any, model: str, offline: str
) -> None:
    await start()
    await space.create(meshmodel(**spec))

    async def made() -> Any:
        found = await space.list(kinds.DEPLOYMENT)
        return found if len(found) == 3 and len(await space.pods()) == 3 else None

    for one in await space.until(made):
        box = one["spec"]["template"]["spec"]["containers"][0]
        env = {entry["name"]: entry.get("value") for entry in box["env"]}
        assert (env["MESHNET_MODEL"], env["HF_HUB_OFFLINE"]) == (model, offline)
        assert all(mount.get("readOnly") for mount in box["volumeMounts"] if mount["mountPath"] == "/models")


async def test_monitors_and_rules_are_made_where_their_api_is_served(
    space: Any, start: Any, meshmodel: Callable[..., Any]
) -> None:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    definitions = []
    for kind in kinds.MONITORING:
        name = f"{kind.plural}.{kind.group}"
        spec = {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"plural": kind.plural, "kind": kind.kind},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        }
        await space.cluster.create({"metadata": {"name": name}, "spec": spec}, access.CRD, None)
        definitions.append(name)
    try:
        await asyncio.sleep(1.0)
        await start(resync_seconds=1.0)
        await space.create(meshmodel())

        async def made() -> bool:
            return all([await space.list(kind) for kind in kinds.MONITORING])

        await space.until(made, 30)
        (monitor,) = await space.list(kinds.MONITORING[0])
        services = await space.list(kinds.SERVICE, names.SELECTOR)
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        assert all(wanted <= one["metadata"]["labels"].items() for one in services)
        await space.until_ready()
    finally:
        for name in definitions:
            await space.cluster.delete(access.CRD, None, name)
        await asyncio.sleep(1.0)
