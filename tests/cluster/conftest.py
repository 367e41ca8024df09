"""The cluster of these tests: that of MESHNET_TEST_KUBECONFIG, the one that `make cluster` left running, else one of
their own, which they take down. What was there before is there afterwards, as it is after `make cluster`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator

import pytest
from cluster.given import GivenCluster
from cluster.real import RealCluster
from cluster.release import MODEL
from meshnet_site import Site

sites: list[Site] = []


@pytest.fixture(scope="session")
def whole_cluster() -> Iterator[Site]:
    if os.environ.get("MESHNET_E2E") != "1":
        pytest.skip("these take a quarter of an hour and root: `make e2e` runs them")
    with contextlib.ExitStack() as stack:
        site = Site.named()
        sites.append(site)
        if isinstance(site.cluster, GivenCluster):
            newer = _prepare_given(site, site.cluster, stack)
        else:
            newer = _prepare_own(site, site.cluster, stack)
        site.cluster.install(print)
        if newer:
            site.use_new_images()
        site.settle()
        yield site


def _prepare_given(site: Site, cluster: GivenCluster, stack: contextlib.ExitStack) -> bool:
    """Our release is there from `make cluster`, or comes and goes with the tests."""
    site.stays = cluster.installed
    if not site.stays:
        stack.callback(cluster.uninstall)
    stack.callback(cluster.close)
    return False


def _prepare_own(site: Site, cluster: RealCluster, stack: contextlib.ExitStack) -> bool:
    """Returns whether a running cluster got newer images than its pods have."""
    site.stays = cluster.running
    if site.stays:
        return cluster.renew()
    cluster.check()
    stack.callback(_take_down, cluster)
    cluster.up(print)
    return False


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
