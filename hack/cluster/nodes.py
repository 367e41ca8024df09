"""Plays the kubelet: a control plane without nodes gets some, and pods bound to them get the status that a test wants.

Everything goes through the API server: nodes with capacity (GPUs as the extended resource example.com/gpu), pods'
status, the deletion that ends a grace period. Pods become ready by themselves unless the namespace is on hold. Runs
in a thread with an event loop of its own, so that a test's loop is the operator's alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from meshnet_operator import kinds
from meshnet_operator.cluster import Cluster, load_configuration
from meshnet_operator.errors import ClusterError, Gone, NotFound

Object = dict[str, Any]
T = TypeVar("T")
CAPACITY = {
    "cpu": "4000",
    "memory": "64000Gi",
    "pods": "20000",
    "example.com/gpu": "2000",
    "ephemeral-storage": "9000Gi",
}


class Nodes:
    """`grace` is how long a deleted pod goes on running, in seconds; `hold` a set of namespaces whose pods are left
    alone.
    """

    def __init__(self, kubeconfig: Path, count: int = 3) -> None:
        self._kubeconfig = kubeconfig
        self._names = [f"node-{index + 1}" for index in range(count)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nodes", daemon=True)
        self._cluster: Cluster | None = None
        self.addresses = 0
        self._given: dict[str, str] = {}
        self._ending: set[str] = set()
        self.grace: dict[str, float] = {}
        self.hold: set[str] = set()

    # Called by tests, from any thread

    def start(self) -> None:
        self._thread.start()
        self.do(self._open())
        asyncio.run_coroutine_threadsafe(self._run(), self._loop)

    def stop(self) -> None:
        self.do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def soon(self, work: Coroutine[Any, Any, T]) -> T:
        """The same from another event loop, without stopping it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def ready(self, pod: Object, holds: bool = True) -> None:
        """The Ready condition as a running kubelet would set it."""
        await self.soon(self._status(pod, _running(self.address(pod), holds)))

    async def failed(self, pod: Object, reason: str, message: str) -> None:
        """The phase Failed: Evicted, UnexpectedAdmissionError ..."""
        status = {"phase": "Failed", "reason": reason, "message": message, "conditions": [_condition("Ready", False)]}
        await self.soon(self._status(pod, status))

    async def crashed(self, pod: Object, reason: str, code: int, message: str = "", restarts: int = 3) -> None:
        """A container that ended and waits to be started again."""
        end = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
        waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}}
        await self.soon(self._status(pod, _container(pod, waiting, restarts, end)))

    async def no_image(self, pod: Object) -> None:
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "manifest unknown"}}
        await self.soon(self._status(pod, _container(pod, waiting, 0)))

    async def node_ready(self, name: str, holds: bool) -> None:
        """A node that is lost: its condition is Unknown, as after a grace period without a heartbeat."""
        status = {"conditions": [{"type": "Ready", "status": "True" if holds else "Unknown", "reason": "Test"}]}
        await self.soon(self._patch(kinds.NODE, None, name, {"status": status}))

    # The thread's own

    async def _close(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._opened().close()
        # A closed TLS connection leaves in the loop's next turns.
        await asyncio.sleep(0.3)

    async def _open(self) -> None:
        self._cluster = Cluster(await load_configuration(self._kubeconfig), 30.0, 64)
        for name in self._names:
            body = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            }
            try:
                await self._cluster.create(body, kinds.NODE, None)
            except ClusterError as error:
                if error.status != 409:
                    raise
            status = {
                "capacity": CAPACITY,
                "allocatable": CAPACITY,
                "conditions": [{"type": "Ready", "status": "True", "reason": "Test"}],
            }
            await self._patch(kinds.NODE, None, name, {"status": status})

    async def _run(self) -> None:
        cluster = self._opened()
        while True:
            try:
                listing = await cluster.list(kinds.POD, None)
                for pod in listing.items:
                    self._see(pod)
                version = listing.version
                while True:
                    async for event in cluster.watch(kinds.POD, None, "", version, 300):
                        version = event.object["metadata"]["resourceVersion"]
                        if event.type in ("ADDED", "MODIFIED"):
                            self._see(event.object)
            except (Gone, ClusterError):
                await asyncio.sleep(0.2)

    def _opened(self) -> Cluster:
        if self._cluster is None:
            raise RuntimeError("start first")
        return self._cluster

    def _see(self, pod: Object) -> None:
        metadata = pod["metadata"]
        if pod["spec"].get("nodeName") not in self._names:
            return
        if "deletionTimestamp" in metadata:
            if metadata["uid"] not in self._ending:
                self._ending.add(metadata["uid"])
                self._loop.create_task(self._end(pod))
        elif metadata["uid"] not in self._given and metadata["namespace"] not in self.hold:
            self._loop.create_task(self._status(pod, _running(self.address(pod), True)))

    def address(self, pod: Object) -> str:
        """A loopback address of its own for each pod, so that a test can listen there."""
        uid = pod["metadata"]["uid"]
        if uid not in self._given:
            self.addresses += 1
            number = self.addresses
            self._given[uid] = f"127.{10 + number // 65536}.{number // 256 % 256}.{number % 256}"
        return self._given[uid]

    async def _end(self, pod: Object) -> None:
        await asyncio.sleep(self.grace.get(pod["metadata"]["namespace"], 0.1))
        try:
            metadata = pod["metadata"]
            await self._opened().delete(kinds.POD, metadata["namespace"], metadata["name"], metadata["uid"], 0)
        except ClusterError:
            self._ending.discard(pod["metadata"]["uid"])

    async def _status(self, pod: Object, status: Object) -> None:
        self.address(pod)
        metadata = pod["metadata"]
        try:
            await self._patch(kinds.POD, metadata["namespace"], metadata["name"], {"status": status})
        except NotFound:
            return

    async def _patch(self, kind: kinds.Kind, namespace: str | None, name: str, body: Object) -> None:
        await self._opened().patch(kind, namespace, name, body, "status")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(kind: str, holds: bool) -> Object:
    return {"type": kind, "status": "True" if holds else "False", "lastTransitionTime": _now()}


def _running(address: str, ready: bool) -> Object:
    names = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    container = {
        "name": "main",
        "image": "x",
        "imageID": "x",
        "ready": ready,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": _now()}},
        "lastState": {},
    }
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [_condition(name, ready or name in names[:2]) for name in names],
        "containerStatuses": [container],
    }


def _container(pod: Object, state: Object, restarts: int, last: Object | None = None) -> Object:
    container = {
        "name": pod["spec"]["containers"][0]["name"],
        "image": "x",
        "imageID": "",
        "ready": False,
        "restartCount": restarts,
        "state": state,
        "lastState": last or {},
    }
    ready = [_condition(name, False) for name in ("ContainersReady", "Ready")]
    return {
        "phase": "Running" if restarts else "Pending",
        "conditions": [_condition("PodScheduled", True), *ready],
        "containerStatuses": [container],
    }
