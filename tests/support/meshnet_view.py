"""What a cluster shows of our product, read through its API server."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from cluster.given import GivenCluster
from cluster.machines import Machine
from cluster.real import RealCluster
from cluster.release import MODEL, NAMESPACE, OPERATOR

Object = dict[str, Any]
OPERATORS = "--selector=app.kubernetes.io/name=meshnet-operator"


@dataclass
class View:
    """Reads, and changes nothing."""

    cluster: RealCluster | GivenCluster

    @property
    def machines(self) -> list[Machine]:
        """The nodes, for tests that do to them what nobody does to a cluster of somebody else."""
        return self.cluster.machines or pytest.skip("the cluster's nodes are not ours")

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

    def pod_uids(self, name: str = MODEL) -> list[str]:
        """Of all pods of a MeshModel, those on their way out too."""
        items = self.read("get", "pods", f"--selector=meshnet.dev/model={name}")["items"]
        return [pod["metadata"]["uid"] for pod in items]

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
        busy = max(self.pods(shard), key=self.sessions)
        assert self.sessions(busy) > 0, f"no pod of {shard} works on an answer"
        return busy

    def recoveries(self) -> float:
        """How often the heads brought a hop up again since they began."""
        return sum(self.gauge(pod, "meshnet_recoveries_total") for pod in self.pods("head"))

    def gauge(self, pod: Object, name: str) -> float:
        """The sum of a metric's values at one pod, which the API server asks for us. Raises KeyError for no metric."""
        text = self._get(pod, "metrics")
        if f"# TYPE {name} " not in text:
            raise KeyError(name)
        return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(rf"{name}[ {{]", line))

    def mesh(self, head: Object) -> Object:
        """What a head tells of its shards and recoveries."""
        found: Object = json.loads(self._get(head, "mesh"))
        return found

    def _get(self, pod: Object, path: str) -> str:
        port = 8000 if pod["metadata"]["labels"]["meshnet.dev/role"] == "head" else 8100
        place = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}:{port}/proxy/{path}"
        return self.cluster.kubectl("get", f"--raw={place}")

    def ready_nodes(self) -> set[str]:
        nodes = self.read("get", "nodes")["items"]
        return {node["metadata"]["name"] for node in nodes if is_ready(node)}

    def machine(self, pod: Object) -> Machine:
        return next(one for one in self.machines if one.name == pod["spec"]["nodeName"])

    def seen(self) -> str:
        """What somebody would look at first when something went wrong."""
        ours = f"--namespace={NAMESPACE}"
        looks = (
            (ours, "get", "mm,pods", "--output=wide"),
            (ours, "get", "events", "--sort-by=.lastTimestamp"),
            (ours, "logs", f"--selector=meshnet.dev/model={MODEL}", "--prefix", "--tail=25"),
            (f"--namespace={OPERATOR}", "logs", OPERATORS, "--prefix", "--tail=40"),
        )
        return "\n".join(self.cluster.kubectl("--request-timeout=5s", *look, check=False) for look in looks)

    def owned(self, name: str) -> list[str]:
        """Objects that belong to a MeshModel, whether it is there or not."""
        kinds = "deployments,replicasets,pods,services,configmaps,secrets,serviceaccounts,roles,rolebindings"
        more = "networkpolicies,poddisruptionbudgets,controllerrevisions,endpointslices"
        selector = f"--selector=meshnet.dev/model={name}"
        said = self.cluster.kubectl(f"--namespace={NAMESPACE}", "get", f"{kinds},{more}", selector, "--output=name")
        return said.split()

    def run_in(self, pod: Object, *command: str) -> str:
        """Both outputs of a command in a pod, which may fail."""
        words = " ".join(shlex.quote(word) for word in command)
        shell = ("sh", "-c", f"({words}) 2>&1 || true")
        return self.cluster.kubectl(f"--namespace={NAMESPACE}", "exec", pod["metadata"]["name"], "--", *shell)

    def logs(self, pod: Object, *flags: str) -> str:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        return self.cluster.kubectl(f"--namespace={namespace}", "logs", name, *flags)


def _time(event: Object) -> datetime:
    return datetime.fromisoformat(event["lastTimestamp"] or event["eventTime"])


def container(pod: Object) -> str:
    """The id of a pod's only container."""
    return str(pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2])


def is_ready(body: Object) -> bool:
    """Of a pod or a node."""
    conditions = body["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
