"""Shards' pods and processes die in the middle of answers: the clients read on, and get the very same text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from meshnet_site import Site

FAULTS = {
    "deleted": Site.delete,
    "deleted_at_once": Site.delete_at_once,
    "evicted": Site.evict,
    "killed": Site.kill,
    "stopped": Site.stop,
}
# The kubelet lets a shard's answers end, for as long as its grace lasts.
GENTLE = ("deleted", "evicted")
FROM_OUTSIDE = ("killed", "stopped")


@pytest.fixture(scope="module", params=[2, 1], ids=["one-of-two", "the-only-one"])
def replicas(whole_cluster: Site, request: pytest.FixtureRequest) -> Iterator[int]:
    whole_cluster.replicas(request.param)
    yield request.param
    whole_cluster.replicas(1)


@pytest.mark.parametrize("shard", ["front", "back"])
@pytest.mark.parametrize("fault", FAULTS)
def test_streams_end_as_if_nothing_had_happened(site: Site, replicas: int, fault: str, shard: str) -> None:
    if fault in FROM_OUTSIDE:
        assert site.machines
    site.until(lambda: not site.leaving(), 60, "pods of the last change are gone")
    before, began, recovered = site.epoch(), datetime.now(UTC), site.recoveries()
    with site.streams(f"{shard} {fault}, {replicas} replicas", whole=False) as readers:
        FAULTS[fault](site, site.in_use(shard))
        if fault not in GENTLE:
            site.struck(readers, recovered)
    # A stopped process is ready until its probe has failed twice: longer than the answers took.
    site.until(lambda: site.epoch() > before, 60, "the table tells the loss")
    site.until(lambda: "ShardsNotReady" in site.told_since(began), 10, "an Event tells the loss")
    site.settle()
    # On its way out, gone, and another one there: a table each, and none without a change.
    assert site.epoch() - before <= 3


def test_a_shard_beyond_its_memory_is_killed_and_named(site: Site) -> None:
    """Memory that its container must pay for, up to the limit: the kernel kills the shard, the kubelet says why."""
    assert site.machines
    began, recovered = datetime.now(UTC), site.recoveries()
    with site.streams("back OOMKilled, 1 replicas", whole=False) as readers:
        pod = site.in_use("back")
        site.fill_memory(pod)
        site.struck(readers, recovered)
    lost = site.until(lambda: site.terminated(pod), 60, "the container's last state")
    assert lost["reason"] == "OOMKilled"
    site.settle()
    assert "OOMKilled" in site.told_since(began)
