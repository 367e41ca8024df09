"""The operator's table drives a real head, whose streams outlive pods, tables and the operator itself.

Real: API server, controllers, operator, shards, head. The kubelet is played: it runs each shard pod as a shard at the
pod's address, with the pod's own environment. The cluster's DNS is played from the real Services and pods.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from meshnet_shard_server import ShardServer
from meshnet_testing_models import greedy, prompt, uncut
from meshnet_tiny import write_tiny
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer

from meshnet_node.head.backend import GenerationRequest
from meshnet_node.head.mesh import Mesh
from meshnet_node.head.pulse import Pulse
from meshnet_node.local.files import write_whole
from meshnet_node.local.mesh import free_port
from meshnet_node.settings import HeadSettings, ShardSettings
from meshnet_node.text.detokenizer import Detokenizer
from meshnet_node.wire.frames import Sampling
from meshnet_operator import kinds, names
from meshnet_operator.errors import ClusterError

NEW = 24
TWO = [("front", 0, 2), ("back", 3, 5)]
QUICK = {"lease_seconds": 3.0, "lease_renew_deadline": 2.0, "lease_retry_seconds": 0.3, "probe_pods": True}
OTHER = [("first", 0, 1), ("second", 2, 5)]
Do = Callable[[int], Awaitable[None] | None]
Object = dict[str, Any]


def shards(cut: Sequence[tuple[str, int, int]]) -> list[Object]:
    return [{"name": name, "startLayer": start, "endLayer": end, "replicas": 1} for name, start, end in cut]


def environment(pod: Object) -> dict[str, str]:
    """The stated variables of the pod's container, in the settings' own spelling."""
    listed = pod["spec"]["containers"][0]["env"]
    prefix = "MESHNET_"
    return {
        e["name"].removeprefix(prefix).lower(): e["value"]
        for e in listed
        if e["name"].startswith(prefix) and "value" in e
    }


class Kubelet:
    """Runs shard pods as shards, and tells the API server how they are."""

    def __init__(self, space: Any, model: Path, folder: Path) -> None:
        self.space = space
        self.running: dict[str, ShardServer] = {}
        self.model = model
        self._folder = folder
        self._seen: set[str] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with contextlib.suppress(ClusterError):
                pods = await self.space.list(kinds.POD, names.MODEL)
                alive = {pod["metadata"]["uid"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}
                await asyncio.gather(*(self._end(uid) for uid in self.running.keys() - alive))
                new = [
                    pod for pod in pods if pod["metadata"]["uid"] in alive - self._seen and pod["spec"].get("nodeName")
                ]
                await asyncio.gather(*(self._begin(pod) for pod in new))
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        await asyncio.gather(*(self._end(uid) for uid in list(self.running)))

    async def secret(self) -> Path:
        """The mounted shard token."""
        path = self._folder / "mesh-token"
        body = await self.space.get(kinds.SECRET, "demo-mesh")
        write_whole(path, base64.b64decode(body["data"]["token"]).decode())
        return path

    async def _begin(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        self._seen.add(uid)
        if pod["metadata"]["labels"][names.ROLE] == "shard":
            await self.space.nodes.ready(pod, False)
            address = (await self.space.get(kinds.POD, pod["metadata"]["name"]))["status"]["podIP"]
            here = {"model": str(self.model), "pod_uid": uid, "device": "cpu", "threads": 1, "dtype": "float32"}
            files = {"token_file": await self.secret(), "cache_dir": self._folder / "cache"}
            settings = ShardSettings(**{**environment(pod), **here, **files})
            server = ShardServer(settings, port=names.SHARD_PORT, host=address)
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(server.wait_ready)
            self.running[uid] = server
        await self.space.nodes.ready(pod, True)

    async def _end(self, uid: str) -> None:
        await asyncio.to_thread(self.running.pop(uid).crash)


class HeadPod:
    """The head, as its pod would run it. `generate` is one stream."""

    def __init__(self, mesh: Mesh, space: Any, operator: Any) -> None:
        self.mesh = mesh
        self.space = space
        self.operator = operator

    @property
    def links(self) -> dict[str, Any]:
        """Links that are up, by pod."""
        everyone = self.mesh.context.endpoints.all.values()
        return {endpoint.uid: endpoint.link for endpoint in everyone if endpoint.opens}

    @property
    def found(self) -> set[str]:
        return {one.uid for one in self.mesh.context.endpoints.find(lambda one: one.opens and one.place.found)}

    async def until(self, check: Callable[[], bool], seconds: float = 30.0) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while not check():
            assert asyncio.get_running_loop().time() < end, self.mesh.describe()
            await Pulse.wait(self.mesh.context.endpoints.changed.next(), 0.05)

    async def generate(self, ids: Sequence[int], on_token: Do = lambda _: None) -> list[int]:
        request = GenerationRequest(tuple(ids), NEW, Sampling(gen_start=len(ids)), frozenset())
        generation = await self.mesh.start(request)
        got: list[int] = []
        try:
            async for token in generation:
                got.append(token.score.id)
                if (waiting := on_token(len(got))) is not None:
                    await waiting
        finally:
            await generation.aclose(keep=False)
        return got


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def judge(llama: Path) -> Callable[[list[int]], list[int]]:
    model = uncut(llama)
    return lambda ids: greedy(model, ids, NEW)


@pytest.fixture
async def kubelet(space: Any, llama: Path, tmp_path: Path) -> AsyncIterator[Kubelet]:
    space.nodes.hold.add(space.name)
    made = Kubelet(space, llama, tmp_path)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await made.stop()


@dataclass
class HeadSetting:
    """What the head's pod has around it: the operator that made it, its variables, its account, its shard token."""

    operator: Any
    settings: dict[str, Any]


@pytest.fixture
async def setting(space: Any, start: Any, kubelet: Kubelet, meshmodel: Any, tmp_path: Path) -> HeadSetting:
    """A MeshModel of two shards, and its head's pod as far as the operator says."""
    operator = await start(**QUICK)
    await space.create(meshmodel(shards=shards(TWO)))
    pod = (await space.until(lambda: space.pods("head"), 30.0))[0]
    folder = tmp_path / "account"
    folder.mkdir()
    account = pod["spec"]["serviceAccountName"]
    kind = kinds.Kind("", "v1", f"serviceaccounts/{account}/token", "TokenRequest")
    answer = await space.cluster.create({"spec": {"expirationSeconds": 3600}}, kind, space.name)
    (folder / "token").write_text(answer["status"]["token"])
    (folder / "ca.crt").write_bytes(space.plane.authority.read_bytes())
    host, port = space.plane.server.removeprefix("https://").split(":")
    here = {"model": str(kubelet.model), "account_folder": folder, "token_file": await kubelet.secret()}
    api = {"kubernetes_service_host": host, "kubernetes_service_port": port}
    return HeadSetting(operator, {**environment(pod), **here, **api, "lookup_seconds": 0.5, "chunk": 16})


@pytest.fixture
async def head(space: Any, setting: HeadSetting) -> AsyncIterator[HeadPod]:
    """The head side in this loop, ready."""

    async def resolve(service: str) -> list[str]:
        """As the cluster's DNS answers for a headless Service: addresses of all pods that it selects."""
        name, port = service.split(".")[0], service.rpartition(":")[2]
        body = (await space.get(kinds.SERVICE, name))["spec"]
        assert (body["clusterIP"], body["publishNotReadyAddresses"]) == ("None", True)
        assert service == f"{name}.{space.name}.svc.cluster.local:8100"
        pods = await space.list(kinds.POD, ",".join(f"{key}={value}" for key, value in body["selector"].items()))
        return [f"{pod['status']['podIP']}:{port}" for pod in pods if pod.get("status", {}).get("podIP")]

    mesh = Mesh(HeadSettings(**setting.settings), 512, CollectorRegistry(), resolve)
    made = HeadPod(mesh, space, setting.operator)
    await made.until(mesh.ready)
    yield made
    await mesh.aclose()


async def replace_pod(head: HeadPod, shard: str) -> str:
    """Delete a shard's pod at once, and see its link end; the uid of its successor, which the Deployment makes."""
    space = head.space
    (old,) = await space.pods(shard)
    gone = old["metadata"]["uid"]
    await space.cluster.delete(kinds.POD, space.name, old["metadata"]["name"], grace=0)

    async def other() -> str | None:
        found = [pod["metadata"]["uid"] for pod in await space.pods(shard)]
        return next((uid for uid in found if uid != gone), None)

    successor = str(await space.until(other))
    await head.until(lambda: gone not in head.links)
    return successor


async def test_a_lost_pods_successor_comes_by_the_table(head: HeadPod, judge: Any) -> None:
    ids = prompt(30, 1)
    table = head.mesh.context.endpoints.table
    assert table is not None
    assert table.uid == (await head.space.get(kinds.MESHMODEL, "demo"))["metadata"]["uid"]
    assert await head.generate(ids) == judge(ids)
    new: list[str] = []

    async def lose() -> None:
        new.append(await replace_pod(head, "back"))

    assert await head.generate(ids, lambda seen: lose() if seen == 7 else None) == judge(ids)
    await head.until(lambda: new[0] in head.links and not head.found)
    assert head.mesh.context.endpoints.table.epoch > table.epoch  # type: ignore[union-attr]


async def test_the_operator_learns_what_shards_serve_without_their_token(head: HeadPod) -> None:
    (served,) = {link.info.fingerprint for link in head.links.values()}

    async def told() -> bool:
        pinned = (await head.space.get(kinds.MESHMODEL, "demo"))["status"]["pinned"]
        layouts = (await head.space.table())["layouts"]
        return (pinned.get("fingerprint"), [one["fingerprint"] for one in layouts]) == (served, [served])

    await head.space.until(told)


async def test_a_stream_outlives_pod_and_operator_by_the_service_and_the_next_operator_takes_over(
    head: HeadPod, judge: Any, start: Any
) -> None:
    ids = prompt(30, 2)
    table = head.mesh.context.endpoints.table
    assert table is not None
    new: list[str] = []

    async def lose() -> None:
        await head.operator.kill()
        new.append(await replace_pod(head, "back"))

    assert await head.generate(ids, lambda seen: lose() if seen == 7 else None) == judge(ids)
    assert head.found == set(new)
    assert head.mesh.context.endpoints.table is table, "nobody wrote a newer one"
    link = head.links[new[0]]
    await start(**QUICK)
    await head.until(lambda: new[0] in head.links and not head.found)
    assert head.links[new[0]] is link, "the table took over what was found"
    assert await head.generate(ids) == judge(ids)


async def test_a_stream_goes_over_to_another_cut(head: HeadPod, judge: Any) -> None:
    ids = prompt(30, 3)

    async def recut() -> None:
        await head.space.patch("demo", {"shards": shards(OTHER)})

        def moved() -> bool:
            table = head.mesh.context.endpoints.table
            names_ = [shard.name for layout in table.layouts for shard in layout.shards] if table else []
            return names_ == ["first", "second"]

        await head.until(moved, 60)

    assert await head.generate(ids, lambda seen: recut() if seen == 7 else None) == judge(ids)
    assert any(entry["kind"] == "repath" for entry in head.mesh.context.telemetry.recent)
    assert not head.found


async def test_a_heads_process_serves_by_the_operators_table(
    space: Any, setting: HeadSetting, judge: Any, llama: Path, tmp_path: Path
) -> None:
    ids = prompt(30, 4)
    port = free_port()
    variables = {
        name.upper() if name.startswith("kubernetes") else f"MESHNET_{name.upper()}": str(value)
        for name, value in {**setting.settings, "port": port, "host": "127.0.0.1"}.items()
    }
    log = (tmp_path / "head.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "meshnet_node", "head", env={**os.environ, **variables}, stderr=log
    )
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:

            async def answers(path: str) -> bool:
                with contextlib.suppress(httpx2.TransportError):
                    return (await client.get(path)).status_code == 200
                return False

            await space.until(lambda: answers("/readyz"), 60, "the head's pod to be ready")
            await space.until(lambda: answers("/ready"), 60, "a path")
            body = {"model": "demo", "prompt": ids, "max_tokens": NEW, "temperature": 0, "ignore_eos": True}
            answer = (await client.post("/v1/completions", json=body)).json()
            told = (await client.get("/mesh")).json()
            metrics = (await client.get("/metrics")).text
    finally:
        process.terminate()
        code = await process.wait()
        log.close()
    detokenizer = Detokenizer(Tokenizer.from_file(str(llama / "tokenizer.json")), ids)
    expected = "".join(detokenizer.decode(token) for token in judge(ids)) + detokenizer.flush()
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == (expected, NEW)
    assert told["table"]["uid"] == (await space.get(kinds.MESHMODEL, "demo"))["metadata"]["uid"]
    assert told["table"]["age_seconds"] > 0
    assert told["routes"]["from"] == f"configmap://{space.name}/demo-routes"
    assert (told["routes"]["state"], told["routes"]["fault"], told["lookups"]) == ("connected", "", {})
    assert [shard["from"] for shard in told["shards"]] == ["table", "table"]
    assert f"meshnet_routes_epoch {told['table']['epoch']}.0" in metrics
    assert "meshnet_routes_followed 1.0" in metrics
    assert "meshnet_endpoints_found 0.0" in metrics
    assert code == 0, (tmp_path / "head.log").read_text()[-2000:]
