"""A real API server for each run, a namespace for each test, and the operator's own process code in the test's event
loop: fixtures of tests/operator and tests/chart, which share one control plane.

MESHNET_TEST_KUBECONFIG, where it is set, names a cluster to use instead of a control plane of our own. No kubelet
runs: `nodes` plays it.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cluster import access
from cluster.nodes import Nodes
from cluster.plane import Plane
from cluster.proxy import FaultProxy

from meshnet_operator import kinds
from meshnet_operator.__main__ import serve
from meshnet_operator.cluster import Cluster, load_configuration
from meshnet_operator.errors import ClusterError, NotFound
from meshnet_operator.kinds import Kind
from meshnet_operator.settings import OperatorSettings

Object = dict[str, Any]
IMAGE = "meshnet/node:test"


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """The control plane, with the CRD in it."""
    made = Plane(tmp_path_factory.mktemp("plane"))
    given = os.environ.get("MESHNET_TEST_KUBECONFIG")
    if given:
        made.external = Path(given)
    else:
        made.start()
    crd = access.ROOT / "crds" / "meshnet.dev_meshmodels.yaml"
    applied = made.kubectl("apply", "--server-side", "--force-conflicts", f"--filename={crd}")
    assert applied.returncode == 0, applied.stderr
    made.kubectl("wait", "--for=condition=Established", "crd/meshmodels.meshnet.dev", "--timeout=30s")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def nodes(plane: Plane) -> Iterator[Nodes]:
    made = Nodes(plane.kubeconfig)
    made.start()
    yield made
    made.stop()


@dataclass
class Space:
    """A namespace: `cluster` is the administrator's client. `model(...)` makes a MeshModel; `until` waits for
    something.
    """

    cluster: Cluster
    name: str
    nodes: Nodes
    plane: Plane
    uids: list[str] = field(default_factory=list)

    async def create(self, body: Object, kind: Kind = kinds.MESHMODEL) -> Object:
        return await self.cluster.create(body, kind, self.name)

    async def get(self, kind: Kind, name: str) -> Object:
        return await self.cluster.get(kind, self.name, name)

    async def list(self, kind: Kind, selector: str = "") -> list[Object]:
        return (await self.cluster.list(kind, self.name, selector)).items

    async def patch(self, name: str, spec: Object, kind: Kind = kinds.MESHMODEL) -> Object:
        return await self.cluster.patch(kind, self.name, name, {"spec": spec})

    async def pods(self, shard: str | None = None, model: str = "demo") -> list[Object]:
        """Pods that are not being deleted, oldest first; of the head where shard is "head"."""
        selector = f"meshnet.dev/model={model}"
        if shard == "head":
            selector += ",meshnet.dev/role=head"
        elif shard:
            selector += f",meshnet.dev/shard={shard}"
        found = [pod for pod in await self.list(kinds.POD, selector) if "deletionTimestamp" not in pod["metadata"]]
        return sorted(found, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))

    async def table(self, model: str = "demo") -> Object:
        try:
            body = await self.get(kinds.CONFIGMAP, f"{model}-routes")
        except NotFound:
            return {"uid": "", "epoch": 0, "layouts": []}
        found: Object = json.loads(body["data"]["routes.json"])
        return found

    async def conditions(self, model: str = "demo") -> dict[str, Object]:
        body = await self.get(kinds.MESHMODEL, model)
        return {one["type"]: one for one in body.get("status", {}).get("conditions", [])}

    async def reason(self, condition: str, model: str = "demo") -> str:
        return str((await self.conditions(model)).get(condition, {}).get("reason", ""))

    async def until(self, check: Callable[[], Awaitable[Any]], seconds: float = 20.0, what: str = "") -> Any:
        """The first true answer of `check`; fails the test with the last one after `seconds`."""
        end = asyncio.get_running_loop().time() + seconds
        while True:
            answer = await check()
            if answer:
                return answer
            if asyncio.get_running_loop().time() > end:
                described = self.plane.kubectl("get", "mm,pods,deploy", "-n", self.name, "-o", "wide").stdout
                status = self.plane.kubectl("get", "mm", "-n", self.name, "-o", "jsonpath={.items[*].status}").stdout
                pytest.fail(f"not in {seconds} s: {what or check}\n{described}\n{status[:3000]}")
            await asyncio.sleep(0.03)

    async def until_ready(self, model: str = "demo", seconds: float = 20.0) -> None:
        async def ready() -> bool:
            body = await self.get(kinds.MESHMODEL, model)
            status = body.get("status", {})
            found = {one["type"]: one for one in status.get("conditions", [])}
            if not found or status["observedGeneration"] != body["metadata"]["generation"]:
                return False
            return found["Ready"]["status"] == "True" and found["Progressing"]["reason"] == "Complete"

        await self.until(ready, seconds, f"{model} ready and complete")

    async def until_reason(self, condition: str, reason: str, model: str = "demo", seconds: float = 20.0) -> Object:
        async def there() -> Object | None:
            found = (await self.conditions(model)).get(condition, {})
            return found if found.get("reason") == reason else None

        answer: Object = await self.until(there, seconds, f"{condition}={reason}")
        return answer


@pytest.fixture
async def space(plane: Plane, nodes: Nodes) -> AsyncIterator[Space]:
    cluster = Cluster(await load_configuration(plane.kubeconfig), 30.0, 64)
    name = f"t-{uuid.uuid4().hex[:10]}"
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    await cluster.create({"metadata": {"name": name, "labels": labels}}, kinds.NAMESPACE, None)
    made = Space(cluster, name, nodes, plane)
    yield made
    nodes.hold.discard(name)
    nodes.grace[name] = 0.0
    for model in await made.list(kinds.MESHMODEL):
        await cluster.delete(kinds.MESHMODEL, name, model["metadata"]["name"])
    await cluster.delete(kinds.NAMESPACE, None, name)
    await cluster.close()
    # TLS connections are taken down in the loop's next turns.
    await asyncio.sleep(0.3)


@pytest.fixture
async def admin(plane: Plane) -> AsyncIterator[Cluster]:
    """The administrator's client, for tests that need no namespace of their own."""
    cluster = Cluster(await load_configuration(plane.kubeconfig), 30.0, 64)
    yield cluster
    await cluster.close()
    await asyncio.sleep(0.3)


Start = Callable[..., Awaitable["Running"]]


@dataclass
class Running:
    """An operator in this event loop. `stop` ends it as a signal would; `kill` at once, with nothing put in order."""

    task: asyncio.Task[None]
    settings: OperatorSettings
    ending: asyncio.Event

    async def stop(self) -> None:
        self.ending.set()
        await asyncio.gather(self.task, return_exceptions=True)

    async def kill(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def start(space: Space, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts operators in the test's namespace, with the rights of operator/rbac.yaml and no others."""
    running: list[Running] = []
    token: list[str] = []

    async def begin(proxy: FaultProxy | None = None, **settings: Any) -> Running:
        if not token:
            clusterwide = settings.get("namespace") == ""
            token.append(await access.account(space.cluster, space.name, clusterwide))
        server = proxy.address if proxy else space.plane.server
        authority = None if proxy else space.plane.authority
        path = access.kubeconfig(tmp_path / f"operator-{len(running)}.kubeconfig", server, token[0], authority)
        values = {
            "node_image": IMAGE,
            "namespace": space.name,
            "kubeconfig": path,
            "lease_namespace": space.name,
            "identity": f"operator-{len(running)}",
            "host": "127.0.0.1",
            "port": 0,
            "resync_seconds": 60.0,
            "probe_pods": False,
            "exit_seconds": 0,
        } | settings
        ending = asyncio.Event()
        made = Running(
            asyncio.create_task(serve(OperatorSettings(**values), ending)), OperatorSettings(**values), ending
        )
        running.append(made)
        return made

    yield begin
    for one in running:
        await one.stop()
        error = one.task.exception() if one.task.done() and not one.task.cancelled() else None
        if isinstance(error, Exception) and not isinstance(error, ClusterError) and not getattr(one, "expected", False):
            raise error


@pytest.fixture
async def proxy(plane: Plane) -> AsyncIterator[FaultProxy]:
    made = FaultProxy(plane.server, plane.authority)
    await made.start()
    yield made
    await made.stop()


def meshmodel(name: str = "demo", **spec: Any) -> Object:
    """Two shards, layers 0-14 and 15-29, of a model in the node image."""
    shards = [
        {"name": "front", "startLayer": 0, "endLayer": 14, "replicas": 1},
        {"name": "back", "startLayer": 15, "endLayer": 29, "replicas": 1},
    ]
    return {
        "apiVersion": "meshnet.dev/v1alpha1",
        "kind": "MeshModel",
        "metadata": {"name": name},
        "spec": {"model": {"source": "file:///models/demo"}, "shards": shards} | spec,
    }


@pytest.fixture(name="meshmodel")
def meshmodel_fixture() -> Callable[..., Object]:
    return meshmodel
