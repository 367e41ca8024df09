"""NetworkPolicies, where something enforces them: `make e2e-policies` (kube-router takes minutes to build at first)."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator

import pytest
from cluster import firewall, network
from cluster.release import MODEL, NAMESPACE
from images import recipes
from meshnet_site import Site
from meshnet_view import Object

ELSEWHERE = "elsewhere"
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"


@pytest.fixture(scope="module")
def guarded(whole_cluster: Site) -> Iterator[Site]:
    """A firewall on each node, strangers in two namespaces; only one of those, and this machine, may ask the head."""
    if os.environ.get("MESHNET_E2E_POLICIES") != "1":
        pytest.skip("nothing enforces NetworkPolicies here: `make e2e-policies` does")
    site, kubectl = whole_cluster, whole_cluster.cluster.kubectl
    assert site.machines
    clients = [
        # A Service gives a client from outside the address of the node by which it came.
        {"ipBlock": {"cidr": network.MACHINES}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}},
    ]
    with contextlib.ExitStack() as after:
        after.enter_context(site.as_before())
        kubectl("create", "namespace", ELSEWHERE)
        after.callback(kubectl, "delete", "namespace", ELSEWHERE)
        site.patch([{"op": "add", "path": "/spec/networkPolicy", "value": {"clientsFrom": clients}}])
        stranger = ("delete", "pod", "stranger", "--grace-period=0", "--force", "--ignore-not-found")
        after.callback(kubectl, f"--namespace={NAMESPACE}", *stranger)
        for namespace in (NAMESPACE, ELSEWHERE):
            kubectl("apply", "--filename=-", stdin=json.dumps(_stranger(namespace)))
            kubectl(f"--namespace={namespace}", "wait", "--for=condition=Ready", "pod/stranger", "--timeout=60s")
        after.callback(firewall.stop, site.cluster)
        firewall.start(site.cluster)
        (shard,) = site.pods("front")
        site.until(lambda: not _reaches(site, NAMESPACE, shard["status"]["podIP"], 8100), 60, "policies are enforced")
        yield site


def _stranger(namespace: str) -> Object:
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "stranger",
        "image": recipes.NODE,
        "command": ["python3", "-c", "import time; time.sleep(3600)"],
        "securityContext": security,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger", "namespace": namespace},
        "spec": {"containers": [container], "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0},
    }


def _reaches(site: Site, namespace: str, address: str, port: int) -> bool:
    """Whether a stranger in that namespace gets a TCP connection."""
    said = site.cluster.kubectl(
        f"--namespace={namespace}", "exec", "stranger", "--", "python3", "-c", f"{CONNECT}; print('connected')",
        address, str(port), check=False,
    )  # fmt: skip
    return "connected" in said


def test_only_the_mesh_reaches_a_shard(guarded: Site) -> None:
    for shard in ("front", "back"):
        (pod,) = guarded.pods(shard)
        for namespace in (NAMESPACE, ELSEWHERE):
            assert not _reaches(guarded, namespace, pod["status"]["podIP"], 8100)


def test_clients_are_those_that_the_resource_names(guarded: Site) -> None:
    (head,) = guarded.pods("head")
    assert _reaches(guarded, NAMESPACE, head["status"]["podIP"], 8000)
    assert not _reaches(guarded, ELSEWHERE, head["status"]["podIP"], 8000)


def test_a_lost_shard_is_brought_up_again_behind_the_policies(guarded: Site) -> None:
    """The operator proves it, the head dials it, both by what their policies let through."""
    with guarded.streams("back deleted behind NetworkPolicies, 1 replicas"):
        guarded.delete_at_once(guarded.pods("back")[0])
    assert guarded.condition("Ready", MODEL)["status"] == "True"
