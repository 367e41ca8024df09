"""Nodes are drained, crash, lose their network, or lose the API server alone, with the answers' own pods on them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import pytest
from cluster.machines import Machine
from meshnet_site import Site

LABEL = "example.com/shards"
ON = {LABEL: "yes"}


@pytest.fixture(scope="module", autouse=True)
def two_replicas(whole_cluster: Site) -> Iterator[None]:
    """Of each shard, on the nodes that may go; the head stays on the first, by which this machine reaches Services."""
    site = whole_cluster
    first, *others = (machine.name for machine in site.machines)
    try:
        with site.as_before():
            site.cluster.kubectl("label", "node", *others, f"{LABEL}=yes")
            head = {"op": "add", "path": "/spec/head/nodeSelector", "value": {"kubernetes.io/hostname": first}}
            site.patch(
                [head, *({"op": "add", "path": f"/spec/shards/{at}/nodeSelector", "value": ON} for at in range(2))]
            )
            site.replicas(2)
            yield
    finally:
        site.cluster.kubectl("label", "node", *others, f"{LABEL}-")


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
    with contextlib.ExitStack() as after, site.streams("node drained", whole=False):
        machine = working(site)
        after.callback(site.respread)
        after.callback(site.cluster.kubectl, "uncordon", machine.name)
        site.cluster.kubectl("drain", machine.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
        assert not [pod for shard in ("front", "back") for pod in site.pods(shard) if site.machine(pod) == machine]


def test_a_node_crashes_and_comes_back(site: Site) -> None:
    before, recovered = site.epoch(), site.recoveries()
    with contextlib.ExitStack() as after:
        with site.streams("node crashed", whole=False) as readers:
            machine = working(site)
            after.callback(site.respread)
            after.callback(site.power_on, machine)
            machine.crash()
            site.struck(readers, recovered)
        site.until(lambda: site.epoch() > before, 60, "the table without the lost pods")


def test_a_node_loses_its_network_and_gets_it_back(site: Site) -> None:
    before, recovered = site.epoch(), site.recoveries()
    with contextlib.ExitStack() as after:
        with site.streams("node partitioned", whole=False) as readers:
            machine = working(site)
            after.callback(site.respread)
            after.callback(site.node_back, machine)
            after.callback(machine.heal)
            machine.partition()
            site.struck(readers, recovered)
        site.until(lambda: site.epoch() > before, 60, "the table without the lost pods")


def test_streams_go_on_while_nodes_have_lost_the_api_server(site: Site) -> None:
    """Nothing needs healing: the answers come from where nobody can see."""
    _, *machines = site.machines
    what = "API server out of the nodes' sight"
    with contextlib.ExitStack() as after, site.streams(what, tokens=600, whole=False) as readers:
        after.callback(site.settle, seconds=240)
        for machine in machines:
            after.callback(site.node_back, machine)
            after.callback(machine.reconnect)
            machine.cut_off()
        site.until(lambda: not site.ready_nodes() & {one.name for one in machines}, 60, "the nodes count as lost")
        parts = [len(reader.times) for reader in readers]
        site.until(lambda: all(len(r.times) > had for r, had in zip(readers, parts, strict=True)), 5, "they go on")
