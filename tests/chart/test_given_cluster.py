"""A cluster of somebody else: what `make cluster` and `make e2e` find there, and what they leave alone."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cluster.given import GivenCluster
from cluster.plane import Plane
from cluster.release import MARK, NAMESPACE, OPERATOR, ClusterError
from meshnet_chart import helm


@pytest.fixture
def given(plane: Plane) -> Iterator[GivenCluster]:
    cluster = GivenCluster(plane.kubeconfig)
    yield cluster
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")


def test_a_namespace_of_somebody_else_stops_an_install_before_anything_is_written(given: GivenCluster) -> None:
    given.kubectl("create", "namespace", NAMESPACE)
    with pytest.raises(ClusterError, match=f"namespace/{NAMESPACE}.* left alone"):
        given.install(print)
    given.uninstall()
    labels = json.loads(given.kubectl("get", "namespace", NAMESPACE, "--output=json"))["metadata"]["labels"]
    assert MARK not in labels
    assert helm("list", f"--namespace={OPERATOR}", "--short", kubeconfig=given.kubeconfig).stdout == ""


def test_what_an_install_made_is_known_again(given: GivenCluster) -> None:
    assert not given.installed
    given.kubectl("create", "namespace", NAMESPACE)
    given.kubectl("label", "namespace", NAMESPACE, f"{MARK}=yes")
    assert given.installed


def test_a_service_without_heads_is_said(given: GivenCluster) -> None:
    with pytest.raises(ClusterError, match="no head"):
        given.url()
