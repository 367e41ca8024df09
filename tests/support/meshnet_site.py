"""A real cluster with our chart and samples/smollm2.yaml on it, for tests/cluster: faults, a real client's streams, and
what they must have in common: the text of an undisturbed run, no error, and a mesh that is whole again afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from cluster.machines import Machine
from cluster.real import RealCluster
from cluster.release import MODEL, NAMESPACE, Cluster
from openai import OpenAI, Stream
from openai.types.chat import ChatCompletionChunk

Object = dict[str, Any]
TOKENS = 160
CALL_TOKENS = 6
CALL_SECONDS = 0.2
PROMPTS = ("Tell me a long story about a lighthouse keeper.", "Explain step by step how bread is made.")


class Reader(threading.Thread):
    """One streamed answer of a real client without retries. `text`, `error` and `stall` tell how it went."""

    def __init__(self, client: OpenAI, prompt: str, tokens: int, model: str) -> None:
        super().__init__(daemon=True)
        self.client, self.prompt, self.tokens, self.model = client, prompt, tokens, model
        self.times: list[float] = []
        self.text = ""
        self.finish: str | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            stream: Stream[ChatCompletionChunk] = self.client.chat.completions.create(
                model=self.model,
                messages=[{"role": "user", "content": self.prompt}],
                temperature=0,
                max_tokens=self.tokens,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            for chunk in stream:
                self._take(chunk)
        except Exception as error:  # the test's verdict, in its own thread
            self.error = error
        finally:
            self.client.close()

    def _take(self, chunk: ChatCompletionChunk) -> None:
        if chunk.choices:
            self.times.append(time.monotonic())
            self.text += chunk.choices[0].delta.content or ""
            self.finish = chunk.choices[0].finish_reason or self.finish

    @property
    def stall(self) -> float:
        """The longest pause between two parts, in seconds."""
        return max((late - early for early, late in zip(self.times, self.times[1:], strict=False)), default=0.0)


class Caller(threading.Thread):
    """Short requests, one after the other until `stop`, of a client without retries. `errors` tells what was not as in
    an undisturbed run. keeps: all by one connection, as a pool would; else each by another one.
    """

    def __init__(self, connect: Callable[[], OpenAI], expected: str, keeps: bool) -> None:
        super().__init__(daemon=True)
        self.connect, self.expected, self.keeps = connect, expected, keeps
        self.stop = threading.Event()
        self.answered = 0
        self.errors: list[str] = []

    def run(self) -> None:
        client = self.connect()
        while not self.stop.wait(CALL_SECONDS):
            try:
                text = _short_answer(client)
            except Exception as error:  # the test's verdict, in its own thread
                self.errors.append(f"{time.strftime('%X')} after {self.answered} answers: {error!r}")
            else:
                self.answered += 1
                if text != self.expected:
                    self.errors.append(f"another text: {text!r}")
            if not self.keeps:
                client.close()
                client = self.connect()
        client.close()


def _short_answer(client: OpenAI) -> str:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": PROMPTS[0]}],
        temperature=0,
        max_tokens=CALL_TOKENS,
        extra_body={"ignore_eos": True},
    )
    return answer.choices[0].message.content or ""


@dataclass
class Site:
    """The cluster, seen by a test."""

    cluster: Cluster
    expected: dict[tuple[str, int], str] = field(default_factory=dict)
    measured: list[str] = field(default_factory=list)
    shown: dict[str, str] = field(default_factory=dict)

    @classmethod
    def running(cls) -> Site:
        """That of `make cluster`. Ends the program where there is none."""
        cluster = RealCluster()
        if not cluster.running:
            sys.exit("no cluster is running: `make cluster` starts one")
        return cls(cluster)

    # What is there

    def read(self, *arguments: str, namespace: str = NAMESPACE) -> Any:
        return json.loads(self.cluster.kubectl(f"--namespace={namespace}", *arguments, "--output=json"))

    def model(self, name: str = MODEL) -> Object:
        found: Object = self.read("get", "mm", name)
        return found

    def status(self, name: str = MODEL) -> Object:
        found: Object = self.model(name).get("status", {})
        return found

    def epoch(self, name: str = MODEL) -> int:
        """Of the route table itself: the status tells it up to a second later."""
        table = json.loads(self.read("get", "configmap", f"{name}-routes")["data"]["routes.json"])
        return int(table["epoch"])

    def condition(self, kind: str, name: str = MODEL) -> Object:
        found = {one["type"]: one for one in self.status(name).get("conditions", [])}
        return found.get(kind, {"status": "", "reason": ""})

    def pods(self, shard: str, name: str = MODEL) -> list[Object]:
        """Pods that are not being deleted, oldest first; of the head where shard is "head"."""
        part = "meshnet.dev/role=head" if shard == "head" else f"meshnet.dev/shard={shard}"
        items = self.read("get", "pods", f"--selector=meshnet.dev/model={name},{part}")["items"]
        alive = [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]
        return sorted(alive, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))

    def leaving(self, name: str = MODEL) -> list[str]:
        """Names of pods that are being deleted."""
        items = self.read("get", "pods", f"--selector=meshnet.dev/model={name}")["items"]
        return [pod["metadata"]["name"] for pod in items if "deletionTimestamp" in pod["metadata"]]

    def uids(self, *shards: str) -> dict[str, set[str]]:
        return {shard: {pod["metadata"]["uid"] for pod in self.pods(shard)} for shard in shards}

    def terminated(self, pod: Object) -> Object:
        """How a pod's container ended the last time; empty where it has not."""
        (container,) = self.read("get", "pod", pod["metadata"]["name"])["status"]["containerStatuses"]
        found: Object = container["lastState"].get("terminated", {})
        return found

    def events(self, reason: str = "") -> list[str]:
        """Messages of the MeshModel's Events."""
        items = self.read("get", "events", "--field-selector=involvedObject.kind=MeshModel")["items"]
        return [f"{one['reason']}: {one['message']}" for one in items if reason in one["reason"]]

    def told_since(self, moment: datetime, name: str = MODEL) -> str:
        """The MeshModel's line and what its Events said from a moment on, as kubectl shows them."""
        items = self.read("get", "events", f"--field-selector=involvedObject.name={name}")["items"]
        # Whole seconds, as the Events have them.
        late = [one for one in items if _time(one) >= moment.replace(microsecond=0)]
        lines = [f"{one['type']:9}{one['reason']:22}{one['message']}" for one in sorted(late, key=_time)]
        return "\n".join([self.cluster.kubectl(f"--namespace={NAMESPACE}", "get", "mm", name), *lines])

    def sessions(self, pod: Object) -> float:
        """Answers that a shard's pod works on, by its own count."""
        return self.gauge(pod, "meshnet_shard_sessions_active")

    def in_use(self, shard: str) -> Object:
        """The pod that serves the running answers."""
        return max(self.pods(shard), key=self.sessions)

    def gauge(self, pod: Object, name: str) -> float:
        """The sum of a metric's values at one pod, which the API server asks for us."""
        port = 8000 if pod["metadata"]["labels"]["meshnet.dev/role"] == "head" else 8100
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}:{port}/proxy/metrics"
        lines = self.cluster.kubectl("get", f"--raw={path}").splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def ready_nodes(self) -> set[str]:
        nodes = self.read("get", "nodes")["items"]
        return {node["metadata"]["name"] for node in nodes if _ready(node)}

    def machine(self, pod: Object) -> Machine:
        return next(one for one in self.machines if one.name == pod["spec"]["nodeName"])

    @property
    def machines(self) -> list[Machine]:
        """The nodes, for tests that do to them what nobody does to a cluster of somebody else."""
        return self.cluster.machines or pytest.skip("the cluster's nodes are not ours")

    def seen(self) -> str:
        """What somebody would look at first when something went wrong."""
        ours = f"--namespace={NAMESPACE}"
        looks = (
            (ours, "get", "mm,pods", "--output=wide"),
            (ours, "get", "events", "--sort-by=.lastTimestamp"),
            (ours, "logs", f"--selector=meshnet.dev/model={MODEL}", "--prefix", "--tail=25"),
            (
                "--namespace=meshnet",
                "logs",
                "--selector=app.kubernetes.io/name=meshnet-operator",
                "--prefix",
                "--tail=40",
            ),
        )
        return "\n".join(self.cluster.kubectl("--request-timeout=5s", *look, check=False) for look in looks)

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
            self.until(lambda part=role: all(_ready(pod) for pod in self.pods(part, name)), 60, f"pods of {role} ready")

    def owned(self, name: str) -> list[str]:
        """Objects that belong to a MeshModel, whether it is there or not."""
        kinds = "deployments,replicasets,pods,services,configmaps,secrets,serviceaccounts,roles,rolebindings"
        more = "networkpolicies,poddisruptionbudgets,controllerrevisions,endpointslices"
        selector = f"--selector=meshnet.dev/model={name}"
        said = self.cluster.kubectl(f"--namespace={NAMESPACE}", "get", f"{kinds},{more}", selector, "--output=name")
        return said.split()

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
        os.kill(self.machine(pod).in_container(_container(pod))[0], number)

    def fill_memory(self, pod: Object) -> None:
        """Beyond the limit of the pod's container."""
        self.machine(pod).fill_memory(_container(pod))

    def evict(self, pod: Object) -> None:
        """What a drain, an autoscaler or a descheduler asks of the API server, which heeds the disruption budget."""
        name = pod["metadata"]["name"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
        self.cluster.kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(body))

    # Asking

    def client(self, name: str = MODEL, key: str = "none") -> OpenAI:
        return OpenAI(base_url=f"{self.cluster.url(name)}/v1", api_key=key, max_retries=0, timeout=240)

    def post(self, url: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        request = urllib.request.Request(url, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.code, str(error.read().decode())

    def start(self, prompt: str = PROMPTS[0], tokens: int = TOKENS, name: str = MODEL) -> Reader:
        reader = Reader(self.client(name), prompt, tokens, name)
        reader.start()
        return reader

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
        callers = [Caller(self.client, expected, keeps) for keeps in (True, False)]
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
            caller.join(60)
            assert not caller.errors, caller.errors
            assert caller.answered > 0
        self.measured.append(f"{what}: {sum(caller.answered for caller in callers)} requests came meanwhile")


def _time(event: Object) -> datetime:
    return datetime.fromisoformat(event["lastTimestamp"] or event["eventTime"])


def _container(pod: Object) -> str:
    """The id of a pod's only container."""
    return str(pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2])


def _ready(body: Object) -> bool:
    """Of a pod or a node."""
    conditions = body["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
