"""The cluster of these tests: the one that `make cluster` left running, else one of their own, which they take down."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from cluster.real import SAMPLE, RealCluster
from meshnet_site import MODEL, NAMESPACE, Site

sites: list[Site] = []


@pytest.fixture(scope="session")
def whole_cluster() -> Iterator[Site]:
    if os.environ.get("MESHNET_E2E") != "1":
        pytest.skip("these take a quarter of an hour and root: `make e2e` runs them")
    cluster = RealCluster()
    own = not cluster.running
    try:
        if own:
            cluster.up(print)
            cluster.install(print)
        made = Site(cluster)
        sites.append(made)
        cluster.kubectl("apply", f"--namespace={NAMESPACE}", f"--filename={SAMPLE}")
        made.settle()
        yield made
    finally:
        left = cluster.down() if own else []
    assert not left, left


@pytest.fixture
def site(whole_cluster: Site) -> Site:
    """The sample's MeshModel, whole and ready."""
    whole_cluster.settle(MODEL)
    return whole_cluster


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The pauses that the clients saw."""
    for site in sites:
        terminalreporter.section("pauses")
        terminalreporter.write_line("\n".join(site.measured))
