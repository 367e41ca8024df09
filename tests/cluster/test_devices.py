"""Nodes with one device each, and a MeshModel that takes them all: a change has none to spare."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cluster.release import NAMESPACE
from meshnet_site import Site
from meshnet_view import Object

DEVICE = "example.com/gpu"
NAME = "devices"
# Shorter than what is left of the answers: they lose their shard, and wait for the next one.
DRAIN_SECONDS = 2


@pytest.fixture(scope="module")
def devices(whole_cluster: Site) -> Iterator[Site]:
    """The sample once more, a device for each shard; the nodes have as many, as a device plugin would say."""
    site = whole_cluster
    nodes = [machine.name for machine in site.machines[1:]]
    spec: Object = site.model()["spec"]
    assert len(nodes) == len(spec["shards"])
    for shard in spec["shards"]:
        shard["resources"]["limits"] |= {DEVICE: "1"}
    spec["rollout"] = {"strategy": "Surge", "surgeTimeoutSeconds": 10, "drainSeconds": DRAIN_SECONDS}
    try:
        for node in nodes:
            _advertise(site, node, "add")
        site.apply_model(NAME, spec)
        yield site
    finally:
        site.cluster.kubectl(f"--namespace={NAMESPACE}", "delete", "mm", NAME, "--ignore-not-found")
        for node in nodes:
            _advertise(site, node, "remove")


def _advertise(site: Site, node: str, operation: str) -> None:
    path = f"/status/capacity/{DEVICE.replace('/', '~1')}"
    patch = json.dumps([{"op": operation, "path": path, "value": "1"}])
    arguments = ("patch", "node", node, "--subresource=status", "--type=json", f"--patch={patch}")
    # What is not there can't be removed.
    site.cluster.kubectl(*arguments, check=operation == "add")


def test_a_surge_without_spare_devices_says_so_and_serves_on(devices: Site) -> None:
    site = devices
    site.settle(NAME)
    before = {shard: {pod["metadata"]["uid"] for pod in site.pods(shard, NAME)} for shard in ("front", "back")}
    assert all(before.values())
    with site.streams("surge without spare devices", whole=False, name=NAME):
        site.restart(NAME)
        site.until(
            lambda: site.condition("Degraded", NAME)["reason"] == "InsufficientCapacity", 60, "no device is said"
        )
    assert DEVICE in site.condition("Degraded", NAME)["message"]
    assert site.condition("Ready", NAME)["status"] == "True"
    for shard, uids in before.items():
        assert uids <= {pod["metadata"]["uid"] for pod in site.pods(shard, NAME)}


def test_one_by_one_needs_none_and_holds_the_streams(devices: Site) -> None:
    site = devices
    with site.streams("one by one without spare devices", tokens=320, whole=False, name=NAME) as readers:
        site.patch([{"op": "replace", "path": "/spec/rollout/strategy", "value": "OneByOne"}], NAME)
        site.restart(NAME)
        site.roll("the rollout", NAME)
    assert max(reader.stall for reader in readers) > 1, "no answer was held"
    site.settle(NAME)
