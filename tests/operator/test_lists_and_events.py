"""A list that is on its way while events arrive: what the events told is newer, and stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from meshnet_operator import kinds
from meshnet_operator.cluster import Listing
from meshnet_operator.controller import Controller
from meshnet_operator.kinds import Kind
from meshnet_operator.metrics import Metrics
from meshnet_operator.pods import Pod
from meshnet_operator.resource import Key, Range
from meshnet_operator.settings import OperatorSettings

KEY = Key("ns", "demo")
BODY = {
    "metadata": {"namespace": "ns", "name": "demo", "uid": "uid-1", "generation": 1, "resourceVersion": "7"},
    "spec": {"model": {"source": "file:///m"}, "shards": [{"name": "all", "startLayer": 0, "endLayer": 1}]},
}


class SlowLists:
    """Lists as an API server gives them; `meanwhile` happens after the one of MeshModels was made."""

    def __init__(self) -> None:
        self.models: list[dict[str, Any]] = []
        self.meanwhile: Callable[[], None] = lambda: None

    async def served(self, group: str) -> bool:
        return False

    async def list(self, kind: Kind, *_: object, **__: object) -> Listing:
        made = Listing(list(self.models) if kind == kinds.MESHMODEL else [], "1")
        if kind == kinds.MESHMODEL:
            self.meanwhile()
        return made


def pod(ready: bool) -> Pod:
    return Pod(
        key=KEY, name="pod", uid="pod", model_uid="uid-1", role="shard", workload="w", revision="r1", image="i1",
        node="n1", range=Range("all", 0, 1), address="", ready=ready, running=ready, deleting=False, deletion=None,
        grace=0, drain=30, phase="Running", restarts=0, created="2026-01-01T00:00:00Z", trouble=None,
    )  # fmt: skip


def exposed(controller: Controller) -> str:
    return generate_latest(controller._metrics.registry).decode()


@pytest.fixture
def lists() -> SlowLists:
    return SlowLists()


@pytest.fixture
def controller(lists: SlowLists) -> Controller:
    settings = OperatorSettings(node_image="node:1", stall_seconds=1e-9)
    return Controller(lists, settings, Metrics(CollectorRegistry()))  # type: ignore[arg-type]


async def test_a_meshmodel_that_is_made_during_a_resync_stays_known(controller: Controller, lists: SlowLists) -> None:
    lists.meanwhile = lambda: controller.deliver("ADDED", BODY)
    await controller.resync()
    assert KEY in controller.store.models
    lists.models, lists.meanwhile = [BODY], lambda: None
    await controller.resync()
    assert controller.stalled() == []


async def test_a_meshmodel_that_is_deleted_during_a_resync_stays_gone(controller: Controller, lists: SlowLists) -> None:
    """It came back as one that the watch never delivers: a minute later the operator ended."""
    controller.deliver("ADDED", BODY)
    lists.models, lists.meanwhile = [BODY], lambda: controller.deliver("DELETED", BODY)
    await controller.resync()
    assert KEY not in controller.store.models
    assert controller.stalled() == []


async def test_pods_that_go_with_their_meshmodel_are_no_losses_and_leave_no_series(controller: Controller) -> None:
    controller.deliver("ADDED", BODY)
    controller._pod_changed(None, pod(True))
    controller._pod_changed(pod(True), pod(False))
    assert 'meshnet_pod_losses_total{model="demo",namespace="ns"} 1.0' in exposed(controller)
    controller._pod_changed(pod(False), pod(True))
    controller.deliver("DELETED", BODY)
    controller._pod_changed(pod(True), None)
    assert "meshnet_pod_losses_total{" not in exposed(controller)


async def test_what_the_watch_does_not_deliver_is_still_found(controller: Controller, lists: SlowLists) -> None:
    lists.models = [BODY]
    await controller.resync()
    assert KEY in controller.store.models
    assert controller.stalled() != []
    lists.models = []
    await controller.resync()
    assert KEY not in controller.store.models
