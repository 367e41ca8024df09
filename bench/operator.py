"""The operator at size: `make bench-operator` prints one JSON object.

Starts a control plane of its own, so many MeshModels of four shards, and the operator as the process that it is in a
cluster, with the rights of operator/rbac.yaml. Then it measures from outside, by watches of its own:

    event_to_table_ms    a pod's status write answered by the API server, until the table without it arrives at a
    watcher storm_seconds        a hundred MeshModels lose a pod together: until the last table has arrived idle
    requests and writes of the operator in one quiet minute rss_mib              resident memory of the operator's
    process after all this

`--foreign N` puts N pods that are none of ours into the cluster first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import access
from cluster.nodes import Nodes
from cluster.plane import Plane, free_ports

from meshnet_operator import kinds, names
from meshnet_operator.cluster import Cluster, load_configuration
from meshnet_operator.errors import ClusterError

Object = dict[str, Any]
SPACES = 4
LIMIT = 1800


def meshmodel(name: str) -> Object:
    shards = [{"name": f"s{at}", "startLayer": 8 * at, "endLayer": 8 * at + 7, "replicas": 1} for at in range(4)]
    return {
        "apiVersion": "meshnet.dev/v1alpha1",
        "kind": "MeshModel",
        "metadata": {"name": name},
        "spec": {"model": {"source": "file:///models/demo"}, "shards": shards},
    }


@dataclass
class Tables:
    """Which endpoints each table lists, as a watcher learns it, and when."""

    cluster: Cluster
    listed: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self) -> None:
        while True:
            listing = await self.cluster.list(kinds.CONFIGMAP, None, names.SELECTOR)
            for body in listing.items:
                self._take(body)
            try:
                async for event in self.cluster.watch(kinds.CONFIGMAP, None, names.SELECTOR, listing.version, 3000):
                    if event.type in ("ADDED", "MODIFIED"):
                        self._take(event.object)
            except ClusterError as error:
                print(f"watch: {error}", file=sys.stderr)

    def _take(self, body: Object) -> None:
        table = json.loads(body["data"]["routes.json"])
        ends = {
            end["uid"]: end["state"]
            for layout in table["layouts"]
            for shard in layout["shards"]
            for end in shard["endpoints"]
        }
        self.listed[body["metadata"]["namespace"], body["metadata"]["labels"][names.MODEL]] = ends
        self.changed.set()

    async def until(self, model: tuple[str, str], uid: str, ready: bool) -> None:
        """Returns when that model's table shows the pod as ready, or not so."""
        while (self.listed.get(model, {}).get(uid) == "ready") is not ready:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 60)


class Bench:
    def __init__(self, plane: Plane, nodes: Nodes, cluster: Cluster, args: argparse.Namespace) -> None:
        self.plane = plane
        self.nodes = nodes
        self.cluster = cluster
        self.args = args
        self.tables = Tables(cluster)
        self.process: subprocess.Popen[bytes] | None = None
        self.port = free_ports(1)[0]
        self.spaces = [f"bench-{at}" for at in range(SPACES)]

    async def run(self) -> Object:
        for space in [*self.spaces, "foreign", "operator"]:
            await self.cluster.create({"metadata": {"name": space}}, kinds.NAMESPACE, None)
        await self._foreign()
        self._start_operator(await access.account(self.cluster, "operator", clusterwide=True))
        follower = asyncio.create_task(self.tables.follow())
        created = time.monotonic()
        await self._create()
        await self._until_ready()
        up = time.monotonic() - created
        first_rss = self._rss()
        latency = await self._losses()
        storm = await self._storm()
        idle = await self._idle()
        follower.cancel()
        return {
            "models": self.args.models,
            "shards_each": 4,
            "foreign_pods": self.args.foreign,
            "seconds_until_all_ready": round(up, 1),
            "event_to_table_ms": latency,
            "storm": storm,
            "idle": idle,
            "rss_mib": {"after_start": first_rss, "at_the_end": self._rss()},
            "cores": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 1),
        }

    async def _foreign(self) -> None:
        gate = asyncio.Semaphore(48)
        pod = {"containers": [{"name": "c", "image": "x"}], "schedulerName": "nobody"}

        async def one(at: int) -> None:
            async with gate:
                metadata = {"name": f"foreign-{at}", "labels": {"app": "foreign"}, "annotations": {"text": "x" * 2000}}
                await self.cluster.create({"metadata": metadata, "spec": pod}, kinds.POD, "foreign")

        async with asyncio.TaskGroup() as group:
            for at in range(self.args.foreign):
                group.create_task(one(at))

    def _start_operator(self, token: str) -> None:
        path = access.kubeconfig(
            self.plane.folder / "operator.kubeconfig", self.plane.server, token, self.plane.authority
        )
        settings = {
            "NODE_IMAGE": "meshnet/node:bench", "KUBECONFIG": str(path), "LEASE_NAMESPACE": "operator",
            "HOST": "127.0.0.1", "PORT": str(self.port), "PROBE_PODS": "false", "LOG_LEVEL": "WARNING",
        }  # fmt: skip
        environment = {**os.environ, **{f"MESHNET_OPERATOR_{key}": value for key, value in settings.items()}}
        self.process = subprocess.Popen([sys.executable, "-m", "meshnet_operator"], env=environment)

    async def _create(self) -> None:
        async with asyncio.TaskGroup() as group:
            for at in range(self.args.models):
                body = meshmodel(f"model-{at}")
                group.create_task(self.cluster.create(body, kinds.MESHMODEL, self.spaces[at % SPACES]))

    async def _until_ready(self) -> None:
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            listing = await self.cluster.list(kinds.MESHMODEL, None)
            ready = sum(_holds(body, "Ready") and not _holds(body, "Progressing") for body in listing.items)
            if ready == self.args.models:
                return
            print(f"{ready} of {self.args.models} ready", file=sys.stderr)
            await asyncio.sleep(5)
        raise SystemExit(f"not all MeshModels became ready in {LIMIT} s")

    async def _pods(self) -> list[Object]:
        """One shard pod of each MeshModel, of another shard from model to model."""
        listing = await self.cluster.list(kinds.POD, None, f"{names.ROLE}=shard")
        found: dict[tuple[str, str], list[Object]] = {}
        for pod in listing.items:
            found.setdefault((pod["metadata"]["namespace"], pod["metadata"]["labels"][names.MODEL]), []).append(pod)
        return [pods[at % len(pods)] for at, pods in enumerate(found.values())]

    async def _lose(self, pod: Object) -> float:
        """Milliseconds until the table shows the loss; the pod is ready again afterwards."""
        model = (pod["metadata"]["namespace"], pod["metadata"]["labels"][names.MODEL])
        uid = pod["metadata"]["uid"]
        await self.nodes.ready(pod, False)
        begun = time.monotonic()
        await self.tables.until(model, uid, False)
        taken = (time.monotonic() - begun) * 1000
        await self.nodes.ready(pod)
        await self.tables.until(model, uid, True)
        return taken

    async def _losses(self) -> Object:
        pods = await self._pods()
        taken = [await self._lose(pods[at % len(pods)]) for at in range(self.args.losses)]
        taken.sort()
        cuts = statistics.quantiles(taken, n=100)
        return {
            "losses": len(taken),
            "p50": round(cuts[49], 1),
            "p99": round(cuts[98], 1),
            "max": round(taken[-1], 1),
        }

    async def _storm(self) -> Object:
        pods = (await self._pods())[: self.args.storm]
        begun = time.monotonic()
        await asyncio.gather(*(self.nodes.ready(pod, False) for pod in pods))
        told = time.monotonic() - begun
        for pod in pods:
            model = (pod["metadata"]["namespace"], pod["metadata"]["labels"][names.MODEL])
            await self.tables.until(model, pod["metadata"]["uid"], False)
        taken = time.monotonic() - begun
        await asyncio.gather(*(self.nodes.ready(pod) for pod in pods))
        await asyncio.sleep(5)
        return {"models": len(pods), "status_writes_seconds": round(told, 2), "all_tables_seconds": round(taken, 2)}

    async def _idle(self) -> Object:
        await asyncio.sleep(10)
        before = self._counters()
        await asyncio.sleep(60)
        after = self._counters()
        requests = sum(value - before.get(key, 0) for key, value in after.items() if "requests" in key)
        writes = sum(value - before.get(key, 0) for key, value in after.items() if "writes" in key)
        return {"requests_per_minute": requests, "writes_per_minute": writes}

    def _counters(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        found = re.findall(r"^(meshnet_(?:api_requests|writes)_total\{[^}]*\}) (\S+)$", text, re.MULTILINE)
        # The lease is renewed all the time, and is not a matter of MeshModels.
        return {key: float(value) for key, value in found}

    def _rss(self) -> float:
        if self.process is None:
            return 0.0
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        kib = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))
        return round(kib / 1024, 1)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def _holds(body: Object, kind: str) -> bool:
    conditions = body.get("status", {}).get("conditions") or []
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


async def measure(plane: Plane, nodes: Nodes, args: argparse.Namespace) -> Object:
    cluster = Cluster(await load_configuration(plane.kubeconfig), 60.0, 64)
    await access.install_crd(cluster)
    await asyncio.sleep(2)
    bench = Bench(plane, nodes, cluster, args)
    try:
        return await bench.run()
    finally:
        bench.stop()
        await cluster.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--losses", type=int, default=300)
    parser.add_argument("--storm", type=int, default=100)
    parser.add_argument("--foreign", type=int, default=0)
    args = parser.parse_args()
    # The processes below are ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as folder:
        plane = Plane(Path(folder), controller_qps=1000)
        plane.start()
        nodes = Nodes(plane.kubeconfig)
        try:
            nodes.start()
            print(json.dumps(asyncio.run(measure(plane, nodes, args)), indent=1))
        finally:
            nodes.stop()
            plane.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
