"""Status and Events as values: closed reasons, kept times, one Event a transition."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from meshnet_operator import reasons, status
from meshnet_operator.plan import Observed, Plan
from meshnet_operator.pods import Trouble
from meshnet_operator.resource import MeshModel, parse
from meshnet_operator.routes import Table
from meshnet_operator.status import Outcome

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def model(before: dict[str, Any] | None = None, **spec: Any) -> MeshModel:
    shards = [{"name": "a", "startLayer": 0, "endLayer": 9}]
    body = {
        "metadata": {"name": "m", "namespace": "n", "uid": "u", "generation": 3},
        "spec": {"model": {"source": "file:///m"}, "shards": shards} | spec,
        "status": before or {},
    }
    return parse(body)


def build(made: MeshModel, outcome: Outcome = Outcome(), at: datetime = NOW, epoch: int = 0) -> dict[str, Any]:  # noqa: B008
    seen = Observed({}, (), Table("u", epoch), "image")
    return status.build(made, seen, Plan((), ()), outcome, at, "cluster.local")


def conditions(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in found["conditions"]}


def test_every_condition_is_there_with_its_generation() -> None:
    found = build(model())
    assert set(conditions(found)) == set(reasons.ALL)
    assert {one["observedGeneration"] for one in found["conditions"]} == {3}
    for kind, (_, reason) in conditions(found).items():
        assert reason in reasons.ALL[kind]


def test_a_time_moves_only_with_its_status() -> None:
    first = build(model())
    later = build(model(first), Outcome(troubles=(Trouble("CrashLoop", "x"),)), NOW + timedelta(minutes=1))
    times = {one["type"]: one["lastTransitionTime"] for one in later["conditions"]}
    assert times["Ready"] == "2026-01-01T00:00:00Z"
    assert times["Degraded"] == "2026-01-01T00:01:00Z"
    again = build(model(later), Outcome(troubles=(Trouble("OOMKilled", "x"),)), NOW + timedelta(minutes=2))
    times = {one["type"]: one["lastTransitionTime"] for one in again["conditions"]}
    assert times["Degraded"] == "2026-01-01T00:01:00Z"


def test_the_gravest_trouble_is_the_reason_and_all_are_in_the_message() -> None:
    troubles = (
        Trouble("Unschedulable", "no room"),
        Trouble("NameConflict", "taken"),
        Trouble("Unschedulable", "no room"),
    )
    found = next(one for one in build(model(), Outcome(troubles))["conditions"] if one["type"] == "Degraded")
    assert (found["reason"], found["message"]) == ("NameConflict", "taken; Unschedulable: no room")


STATES: dict[str, tuple[dict[str, Any], Outcome, int, str, tuple[str, str]]] = {
    "suspended": ({"suspend": True}, Outcome(), 1, "Ready", ("False", "Suspended")),
    "no table": ({}, Outcome(), 0, "Ready", ("False", "RoutesNotPublished")),
    "no path": ({}, Outcome(), 1, "Ready", ("False", "NoCompletePath")),
    "paused": ({"paused": True}, Outcome(), 1, "Progressing", ("False", "Paused")),
    "leftovers": ({}, Outcome(waiting=("Service m",)), 1, "Progressing", ("True", "WaitingForOldObjects")),
    "not published": ({}, Outcome(publish_error="no"), 1, "RoutesPublished", ("False", "PublishFailed")),
}


@pytest.mark.parametrize(("spec", "outcome", "epoch", "kind", "expected"), STATES.values(), ids=STATES)
def test_states(spec: Any, outcome: Outcome, epoch: int, kind: str, expected: tuple[str, str]) -> None:
    assert conditions(build(model(**spec), outcome, epoch=epoch))[kind] == expected


def test_an_event_for_each_transition() -> None:
    first = build(model())
    assert status.transitions(first, first) == []
    worse = build(model(first), Outcome((Trouble("CrashLoop", "x"),)))
    assert [(one.type, one.reason) for one in status.transitions(first, worse)] == [("Warning", "CrashLoop")]
    again = build(model(worse), Outcome((Trouble("CrashLoop", "another message"),)))
    assert status.transitions(worse, again) == []
    better = build(model(again))
    assert [(one.type, one.reason) for one in status.transitions(again, better)] == [("Normal", "AsExpected")]


def test_only_a_condition_makes_a_status_urgent() -> None:
    first = build(model())
    counts = copy.deepcopy(first)
    counts["shards"][0]["restarts"] = 9
    assert not status.urgent(first, counts)
    assert status.urgent(first, build(model(first), Outcome((Trouble("CrashLoop", "x"),))))


def test_the_patch_takes_away_what_is_not_there_any_more() -> None:
    before = {"a": 1, "pinned": {"x": "1", "y": "2"}, "shards": [1, 2]}
    after = {"pinned": {"x": "1"}, "shards": [2], "b": 2}
    assert status.patch(before, after) == {"a": None, "pinned": {"y": None}, "shards": [2], "b": 2}
    assert status.patch(after, after) == {"pinned": {}}
