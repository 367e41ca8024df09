"""One namespace or the whole cluster; pods that are none of ours; what a probe and Prometheus see."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import aiohttp
from cluster.plane import free_ports

from meshnet_operator import kinds, names

Make = Callable[..., Any]


async def test_case_66_in_cluster_mode_every_namespace_is_served(space: Any, start: Any, meshmodel: Make) -> None:
    await start(namespace="")
    other = f"t-{uuid.uuid4().hex[:10]}"
    await space.cluster.create({"metadata": {"name": other}}, kinds.NAMESPACE, None)
    await space.create(meshmodel())
    await space.cluster.create(meshmodel("far"), kinds.MESHMODEL, other)
    await space.until_ready()

    async def served() -> bool:
        body = await space.cluster.get(kinds.MESHMODEL, other, "far")
        return bool(body.get("status", {}).get("readyShards") == "2/2")

    await space.until(served)
    await space.cluster.delete(kinds.NAMESPACE, None, other)


async def test_case_66_in_namespaced_mode_another_namespace_is_left_alone(
    space: Any, start: Any, meshmodel: Make
) -> None:
    await start()
    other = f"t-{uuid.uuid4().hex[:10]}"
    await space.cluster.create({"metadata": {"name": other}}, kinds.NAMESPACE, None)
    await space.cluster.create(meshmodel("far"), kinds.MESHMODEL, other)
    await space.create(meshmodel())
    await space.until_ready()
    assert "status" not in await space.cluster.get(kinds.MESHMODEL, other, "far")
    await space.cluster.delete(kinds.NAMESPACE, None, other)


async def test_case_68_pods_that_are_none_of_ours_are_never_asked_for(
    space: Any, start: Any, proxy: Any, meshmodel: Make
) -> None:
    """Every list and watch of pods and children carries our label; the bench has 10,000 foreign pods."""
    await start(proxy)
    await space.create(meshmodel())
    await space.until_ready()
    lists = [path for method, path in proxy.seen if method == "GET" and path.split("?")[0].endswith("/pods")]
    assert lists
    queries = [parse_qs(path.split("?")[1]) for path in lists]
    assert {query["labelSelector"][0] for query in queries} == {names.SELECTOR}


async def test_secrets_are_seen_by_their_metadata_only(space: Any, start: Any, proxy: Any, meshmodel: Make) -> None:
    await start(proxy, resync_seconds=1.0)
    await space.create(meshmodel())
    await space.until_ready()
    await asyncio.sleep(1.5)
    asked = [(method, path) for method, path in proxy.seen if "/secrets" in path]
    assert {method for method, _ in asked} == {"GET", "POST"}
    assert not [path for method, path in asked if path.split("?")[0].endswith("/demo-mesh")]
    assert proxy.accepts["/secrets"] <= {"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}


async def test_probes_and_metrics_are_answered(space: Any, start: Any, meshmodel: Make) -> None:
    (port,) = free_ports(1)
    await start(port=port)
    await space.create(meshmodel())
    await space.until_ready()
    async with aiohttp.ClientSession() as session:
        found = {}
        for path in ("healthz", "readyz", "metrics", "other"):
            async with session.get(f"http://127.0.0.1:{port}/{path}") as answer:
                found[path] = (answer.status, await answer.text())
    assert found["healthz"] == (200, "ok")
    assert found["readyz"] == (200, "ok")
    assert found["other"][0] == 404
    text = found["metrics"][1]
    assert f'meshnet_model_ready{{model="demo",namespace="{space.name}"}} 1.0' in text
    assert "meshnet_operator_leader 1.0" in text
    assert 'meshnet_shard_ready_pods{model="demo"' in text
    assert 'meshnet_watch_age_seconds{kind="Pod"}' in text
