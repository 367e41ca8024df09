"""The cluster of these tests: that of MESHNET_TEST_KUBECONFIG, the one that `make cluster` left running, else one of
their own, which they take down.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator

import pytest
from cluster.given import GivenCluster
from cluster.real import RealCluster
from cluster.release import Cluster
from meshnet_site import MODEL, Site

sites: list[Site] = []


@pytest.fixture(scope="session")
def whole_cluster() -> Iterator[Site]:
    if os.environ.get("MESHNET_E2E") != "1":
        pytest.skip("these take a quarter of an hour and root: `make e2e` runs them")
    with contextlib.ExitStack() as stack:
        made = Site(_given(stack) or _real(stack))
        sites.append(made)
        made.cluster.apply_sample()
        made.settle()
        yield made


def _given(stack: contextlib.ExitStack) -> Cluster | None:
    """Somebody else's, where the environment names one; our release comes and goes with the tests."""
    given = GivenCluster.from_environment()
    if given is not None:
        stack.callback(given.close)
        given.install(print)
    return given


def _real(stack: contextlib.ExitStack) -> Cluster:
    cluster = RealCluster()
    if not cluster.running:
        stack.callback(_take_down, cluster)
        cluster.up(print)
        cluster.install(print)
    return cluster


def _take_down(cluster: RealCluster) -> None:
    left = cluster.down()
    assert not left, left


@pytest.fixture
def site(whole_cluster: Site) -> Site:
    """The sample's MeshModel, whole and ready."""
    whole_cluster.settle(MODEL)
    return whole_cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What there is to see at the moment of a failure: the cluster, and with it every log, is gone afterwards."""
    report = yield
    if report.failed and sites:
        report.sections.append(("cluster", sites[0].seen()))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What kubectl showed when the answers of each test had ended, and the pauses that the clients saw."""
    for site in sites:
        terminalreporter.section("what kubectl showed")
        for what, lines in site.shown.items():
            terminalreporter.write_line(f"\n{what}\n{lines}")
        terminalreporter.section("pauses")
        terminalreporter.write_line("\n".join(site.measured))
