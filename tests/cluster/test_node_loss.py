"""Nodes are drained, crash, lose their network, or lose the API server alone, with the answers' own pods on them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from cluster.machines import Machine
from meshnet_site import Site

LABEL = "example.com/shards"


@pytest.fixture(scope="module", autouse=True)
def two_replicas(whole_cluster: Site) -> Iterator[None]:
    """Of each shard, on the nodes that may go; the head stays on the first, by which this machine reaches Services."""
    site = whole_cluster
    site.cluster.kubectl("label", "node", "n2", "n3", f"{LABEL}=yes")
    shards = site.model()["spec"]["shards"]
    site.patch(
        [
            {"op": "add", "path": "/spec/head/nodeSelector", "value": {"kubernetes.io/hostname": "n1"}},
            *({"op": "add", "path": f"/spec/shards/{at}/nodeSelector", "value": {LABEL: "yes"}} for at in range(2)),
        ]
    )
    site.replicas(2)
    yield
    site.patch(
        [
            {"op": "remove", "path": "/spec/head/nodeSelector"},
            {"op": "replace", "path": "/spec/shards", "value": shards},
        ]
    )
    site.cluster.kubectl("label", "node", "n2", "n3", f"{LABEL}-")
    site.settle()


def working(site: Site) -> Machine:
    """The node on which most of the running answers are."""
    sessions: Counter[str] = Counter()
    for shard in ("front", "back"):
        for pod in site.pods(shard):
            sessions[pod["spec"]["nodeName"]] += int(site.sessions(pod))
    (name, count), *_ = sessions.most_common()
    assert count > 0
    return next(machine for machine in site.machines if machine.name == name)


def test_a_drain_moves_the_shards_and_no_stream_notices(site: Site) -> None:
    with site.streams("node drained", whole=False):
        machine = working(site)
        site.cluster.kubectl("drain", machine.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
    assert not [pod for shard in ("front", "back") for pod in site.pods(shard) if site.machine(pod) == machine]
    site.cluster.kubectl("uncordon", machine.name)
    site.respread()


def test_a_node_crashes_and_comes_back(site: Site) -> None:
    before = site.epoch()
    with site.streams("node crashed", whole=False):
        machine = working(site)
        machine.crash()
    site.until(lambda: site.epoch() > before, 60, "the table without the lost pods")
    site.power_on(machine)
    site.respread()


def test_a_node_loses_its_network_and_gets_it_back(site: Site) -> None:
    before = site.epoch()
    with site.streams("node partitioned", whole=False):
        machine = working(site)
        machine.partition()
    site.until(lambda: site.epoch() > before, 60, "the table without the lost pods")
    machine.heal()
    site.node_back(machine)
    site.respread()


def test_streams_go_on_while_nodes_have_lost_the_api_server(site: Site) -> None:
    machines = site.machines[1:]
    with site.streams("API server out of the nodes' sight", tokens=320, whole=False):
        for machine in machines:
            machine.cut_off()
        site.until(lambda: not site.ready_nodes() & {"n2", "n3"}, 60, "the nodes count as lost")
        time.sleep(2)
    for machine in machines:
        machine.reconnect()
        site.node_back(machine)
    site.settle(seconds=240)
