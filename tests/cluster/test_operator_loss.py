"""The operator is away while a shard dies: streams need it not, and it puts things right when it is back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from meshnet_site import Site


@pytest.fixture
def no_operator(whole_cluster: Site) -> Iterator[Site]:
    """Scaled to zero; back at the end."""
    try:
        _scale(whole_cluster, 0)
        yield whole_cluster
    finally:
        _scale(whole_cluster, 2)
        whole_cluster.settle()


def _scale(site: Site, count: int) -> None:
    site.cluster.kubectl("--namespace=meshnet", "scale", "deployment/meshnet", f"--replicas={count}")
    if count:
        site.cluster.kubectl("--namespace=meshnet", "rollout", "status", "deployment/meshnet", "--timeout=120s")
    else:
        site.cluster.kubectl(
            "--namespace=meshnet", "wait", "--for=delete", "pod", "--selector=app.kubernetes.io/name=meshnet-operator",
            "--timeout=60s",
        )  # fmt: skip


def test_the_only_shard_dies_without_an_operator(site: Site, no_operator: Site) -> None:
    """The new pod has another address, which no table names: the head finds it by the range's Service."""
    before, recovered = site.epoch(), site.recoveries()
    with site.streams("back deleted, no operator, 1 replica", whole=False) as readers:
        site.delete_at_once(site.in_use("back"))
        site.struck(readers, recovered)
    assert site.epoch() == before, "nobody wrote a table"
    _scale(site, 2)
    site.until(lambda: site.epoch() > before, 60, "the operator puts the table right")


def test_one_of_two_dies_without_an_operator(whole_cluster: Site, request: pytest.FixtureRequest) -> None:
    site = whole_cluster
    with site.as_before():
        site.replicas(2)
        request.getfixturevalue("no_operator")
        recovered = site.recoveries()
        with site.streams("front deleted, no operator, 2 replicas", whole=False) as readers:
            site.delete_at_once(site.in_use("front"))
            site.struck(readers, recovered)
        _scale(site, 2)


def test_another_operator_leads_when_the_leaders_pod_is_deleted(site: Site) -> None:
    leader = _leader(site)
    assert leader
    before = site.epoch()
    with site.streams("leader and back deleted"):
        site.cluster.kubectl(
            "--namespace=meshnet", "delete", "pod", leader, "--grace-period=0", "--force", "--wait=false"
        )
        site.delete_at_once(site.pods("back")[0])
    site.until(lambda: site.epoch() > before, 60, "the next leader writes a table")
    assert _leader(site) not in ("", leader)


def test_the_next_table_is_written_when_the_leaders_process_is_killed(site: Site) -> None:
    """By the standby, or by the leader's own pod where its container is back before the Lease runs out."""
    assert site.machines
    pod = site.read("get", "pod", _leader(site), namespace="meshnet")
    before = site.epoch()
    with site.streams("leader killed and back deleted"):
        site.kill(pod)
        site.delete_at_once(site.pods("back")[0])
    site.until(lambda: site.epoch() > before, 60, "the next leader writes a table")


def _leader(site: Site) -> str:
    """The name of its pod."""
    return str(site.read("get", "lease", "meshnet", namespace="meshnet")["spec"]["holderIdentity"])
