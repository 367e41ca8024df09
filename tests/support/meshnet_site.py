"""A real cluster with our chart and samples/smollm2.yaml on it, for tests/cluster: faults, a real client's streams, and
what they must have in common: the text of an undisturbed run, no error, and a mesh that is whole again afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from cluster.given import GivenCluster
from cluster.machines import Machine
from cluster.real import RealCluster
from cluster.release import MODEL, NAMESPACE, OPERATOR
from meshnet_clients import CALL_TIMEOUT, CALL_TOKENS, Caller, Reader
from meshnet_view import Object, View, container, is_ready
from openai import OpenAI

TOKENS = 160
PROMPTS = ("Tell me a long story about a lighthouse keeper.", "Explain step by step how bread is made.")


@dataclass
class Site(View):
    """The cluster, in the hands of a test. stays: our release was there before the tests and must be afterwards."""

    stays: bool = False
    expected: dict[tuple[str, int], str] = field(default_factory=dict)
    measured: list[str] = field(default_factory=list)
    shown: dict[str, str] = field(default_factory=dict)

    @classmethod
    def named(cls) -> Site:
        """That of MESHNET_TEST_KUBECONFIG, else ours, which need not run yet."""
        return cls(GivenCluster.from_environment() or RealCluster())

    @classmethod
    def running(cls) -> Site:
        """The same with what `make cluster` put on it. Ends the program where that is not there."""
        site = cls.named()
        if isinstance(site.cluster, RealCluster) and not site.cluster.running:
            sys.exit("no cluster is running: `make cluster` starts one")
        if not site.cluster.installed:
            sys.exit("nothing of ours is on that cluster: `make cluster` installs it")
        return site

    # Waiting

    def until(self, check: Callable[[], Any], seconds: float, what: str) -> Any:
        end = time.monotonic() + seconds
        while True:
            if answer := check():
                return answer
            if time.monotonic() > end:
                conditions = json.dumps(self.status().get("conditions", []), indent=1)
                pytest.fail(f"not in {seconds:.0f} s: {what}\n{conditions}")
            time.sleep(0.2)

    def settle(self, name: str = MODEL, seconds: float = 180.0) -> None:
        """Waits until the MeshModel is as its spec wants it, whole and ready."""

        def whole() -> bool:
            body = self.model(name)
            status = body.get("status", {})
            found = {one["type"]: one["status"] for one in status.get("conditions", [])}
            fresh = status.get("observedGeneration") == body["metadata"]["generation"]
            wanted = {"Ready": "True", "ShardsReady": "True", "Progressing": "False", "Degraded": "False"}
            return fresh and all(found.get(kind) == value for kind, value in wanted.items())

        self.until(whole, seconds, f"{name} whole")
        for role in ("head", *(shard["name"] for shard in self.model(name)["spec"]["shards"])):
            self._pods_ready(role, name)

    def _pods_ready(self, role: str, name: str) -> None:
        def ready() -> bool:
            pods = self.pods(role, name)
            return bool(pods) and all(is_ready(pod) for pod in pods)

        self.until(ready, 60, f"pods of {role} ready")

    # Changing

    def apply(self, body: Object) -> None:
        self.cluster.kubectl(f"--namespace={NAMESPACE}", "apply", "--filename=-", stdin=json.dumps(body))

    def apply_model(self, name: str, spec: Object) -> None:
        body = {"apiVersion": "meshnet.dev/v1alpha1", "kind": "MeshModel", "metadata": {"name": name}, "spec": spec}
        self.apply(body)

    def patch(self, operations: list[Object], name: str = MODEL) -> None:
        """A JSON patch of the MeshModel."""
        self.cluster.kubectl(
            f"--namespace={NAMESPACE}", "patch", "mm", name, "--type=json", f"--patch={json.dumps(operations)}"
        )

    def restore(self, spec: Object, name: str = MODEL) -> None:
        """Makes the whole spec what it was."""
        self.patch([{"op": "replace", "path": "/spec", "value": spec}], name)

    @contextlib.contextmanager
    def as_before(self, name: str = MODEL) -> Iterator[None]:
        """Whatever becomes of the block: afterwards the spec is what it was, and the MeshModel whole."""
        spec = self.model(name)["spec"]
        try:
            yield
        finally:
            self.restore(spec, name)
            self.settle(name, 240)

    def replicas(self, count: int) -> None:
        """Of both shards; returns when they are there."""
        shards = self.model()["spec"]["shards"]
        self.patch(
            [{"op": "add", "path": f"/spec/shards/{at}/replicas", "value": count} for at, _ in enumerate(shards)]
        )
        self.settle()

    def roll(self, what: str, name: str = MODEL) -> None:
        """Returns when a change of the spec, just made, has come to its end."""
        self.until(lambda: self.condition("Progressing", name)["status"] == "True", 30, f"{what} begins")
        self.until(lambda: self.condition("Progressing", name)["reason"] == "Complete", 240, f"{what} ends")

    def power_on(self, machine: Machine) -> None:
        """A node that has crashed; returns when it is ready."""
        machine.start([one.number for one in self.machines if one != machine])
        self.node_back(machine)

    def node_back(self, machine: Machine) -> None:
        """Waits for a node that is on its way back."""
        self.cluster.kubectl("wait", "--for=condition=Ready", f"node/{machine.name}", "--timeout=90s")

    def use_new_images(self) -> None:
        """All pods anew, since an image changed under its name."""
        self.cluster.kubectl(f"--namespace={OPERATOR}", "rollout", "restart", "deployment/meshnet")
        self.cluster.operator_ready()
        self.restart()
        self.settle(seconds=240)

    def restart(self, name: str = MODEL) -> None:
        """Begins to make all pods anew."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.patch([{"op": "add", "path": "/spec/restartedAt", "value": now}], name)

    def respread(self) -> None:
        """All pods anew, so that each node has some again."""
        self.settle(seconds=240)
        self.restart()
        self.settle(seconds=240)

    def delete(self, pod: Object, *flags: str) -> None:
        """Does not wait for its end."""
        name = pod["metadata"]["name"]
        self.cluster.kubectl(f"--namespace={NAMESPACE}", "delete", "pod", name, "--wait=false", *flags)

    def delete_at_once(self, pod: Object) -> None:
        """Without grace."""
        self.delete(pod, "--grace-period=0", "--force")

    def kill(self, pod: Object) -> None:
        self._signal(pod, signal.SIGKILL)

    def stop(self, pod: Object) -> None:
        self._signal(pod, signal.SIGSTOP)

    def _signal(self, pod: Object, number: signal.Signals) -> None:
        """To the pod's process, from outside of its container."""
        os.kill(self.machine(pod).in_container(container(pod))[0], number)

    def fill_memory(self, pod: Object) -> None:
        """Beyond the limit of the pod's container."""
        self.machine(pod).fill_memory(container(pod))

    def evict(self, pod: Object) -> None:
        """What a drain, an autoscaler or a descheduler asks of the API server, which heeds the disruption budget."""
        name = pod["metadata"]["name"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
        self.cluster.kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(body))

    # Asking

    def client(self, name: str = MODEL, key: str = "none", seconds: float = 240.0) -> OpenAI:
        """Without retries; gives up where nothing comes for so long."""
        return OpenAI(base_url=f"{self.cluster.url(name)}/v1", api_key=key, max_retries=0, timeout=seconds)

    def start(self, prompt: str = PROMPTS[0], tokens: int = TOKENS, name: str = MODEL) -> Reader:
        reader = Reader(self.client(name), prompt, tokens, name)
        reader.start()
        return reader

    def struck(self, readers: list[Reader], recovered: float) -> None:
        """The harm that was just done hit running answers: they are not at their end, and the heads heal them.

        recovered: `recoveries` before the harm.
        """
        assert all(reader.is_alive() for reader in readers), "the answers ended too early to be harmed"
        self.until(lambda: self.recoveries() > recovered, 90, "a head brings a hop up again")

    def under_way(self, reader: Reader, parts: int = 20) -> None:
        """Waits until an answer has so many parts, and fails when it ends before."""
        self.until(lambda: len(reader.times) >= parts or not reader.is_alive(), 120, f"{parts} parts of an answer")
        assert reader.is_alive(), f"ended too early: {reader.error or reader.text}"

    def undisturbed(self, prompt: str, tokens: int) -> str:
        """The text that an answer must have: that of the first run, with nothing going on."""
        if (prompt, tokens) not in self.expected:
            reader = self.start(prompt, tokens)
            reader.join(240)
            assert reader.error is None, reader.error
            self.expected[prompt, tokens] = reader.text
        return self.expected[prompt, tokens]

    def check(self, reader: Reader, seconds: float = 240.0) -> None:
        """The stream ended as if nothing had happened."""
        reader.join(seconds)
        assert not reader.is_alive(), f"no end after {seconds} s, {len(reader.times)} parts"
        assert reader.error is None, repr(reader.error)
        assert reader.finish == "length"
        assert reader.text == self.undisturbed(reader.prompt, reader.tokens)

    @contextlib.contextmanager
    def streams(self, what: str, tokens: int = TOKENS, whole: bool = True, name: str = MODEL) -> Iterator[list[Reader]]:
        """Two answers under way while the block disturbs them; afterwards both must be as if it had not."""
        for prompt in PROMPTS:
            self.undisturbed(prompt, tokens)
        readers = [self.start(prompt, tokens, name) for prompt in PROMPTS]
        for reader in readers:
            self.under_way(reader)
        began = datetime.now(UTC)
        yield readers
        for reader in readers:
            self.check(reader)
        self.shown[what] = self.told_since(began, name)
        self.measured.append(f"{what}: longest pause {max(reader.stall for reader in readers):.1f} s")
        if whole:
            self.settle()

    @contextlib.contextmanager
    def load(self, what: str, tokens: int = TOKENS) -> Iterator[None]:
        """`streams`, and beside them requests that come all the time, before, during and after: none may fail."""
        expected = self.undisturbed(PROMPTS[0], CALL_TOKENS)
        connect = functools.partial(self.client, seconds=CALL_TIMEOUT)
        callers = [Caller(connect, MODEL, PROMPTS[0], expected, keeps) for keeps in (True, False)]
        for caller in callers:
            caller.start()
        try:
            with self.streams(what, tokens):
                yield
            time.sleep(1)
        finally:
            for caller in callers:
                caller.stop.set()
        for caller in callers:
            caller.join(CALL_TIMEOUT + 10)
            assert not caller.is_alive(), f"no end after {caller.answered} answers"
            assert not caller.errors, caller.errors
            assert caller.answered > 0
        self.measured.append(f"{what}: {sum(caller.answered for caller in callers)} requests came meanwhile")
