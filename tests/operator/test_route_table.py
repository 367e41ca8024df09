"""Pods to route table, as tables of values: no cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_node.head.routes import parse as node_parse
from meshnet_operator import identity, names, routes
from meshnet_operator.pods import Pod, read
from meshnet_operator.resource import Key, Range
from meshnet_operator.routes import Table, Target

FRONT, BACK = Range("front", 0, 14), Range("back", 15, 29)
TARGET = Target("demo", "ns", "uid-1", (FRONT, BACK))


def pod(uid: str, part: Range = FRONT, **more: Any) -> Pod:
    base = Pod(
        key=Key("ns", "demo"), name=uid, uid=uid, model_uid="uid-1", role="shard",
        workload=names.shard_workload("demo", part), revision="r1", image="i1", node="n1", range=part,
        address=f"10.0.0.{len(uid)}", ready=True, running=True, deleting=False, deletion=None, grace=0, drain=30,
        phase="Running", restarts=0, created="2026-01-01T00:00:00Z", trouble=None,
    )  # fmt: skip
    return replace(base, **more)


def states(table: Table, layout: int = 0) -> dict[str, list[tuple[str, str]]]:
    shards = table.layouts[layout].shards
    return {one.range.name: [(end.uid, end.state) for end in one.endpoints] for one in shards}


def table(pods: list[Pod], previous: Table | None = None, target: Target = TARGET, **more: Any) -> Table:
    return routes.next_table(previous or Table("uid-1"), target, pods, **more)


ONE = pod("a"), pod("bb", BACK)

LOSSES = {
    "not ready": ({"ready": False}, []),
    "failed": ({"phase": "Failed", "ready": False, "running": False}, []),
    "evicted": ({"phase": "Failed", "ready": False, "running": False}, []),
    "container ended": ({"ready": False, "running": False}, []),
    "no address": ({"address": "", "ready": False}, []),
    "of another MeshModel of the name": ({"model_uid": "uid-0"}, []),
    "label taken away": ({"range": None}, []),
}


@pytest.mark.parametrize(("change", "left"), LOSSES.values(), ids=LOSSES)
def test_a_pod_that_is_lost_leaves_the_table_while_another_is_ready(change: dict[str, Any], left: list[str]) -> None:
    first = table([*ONE, pod("other")])
    after = table([replace(ONE[0], **change), ONE[1], pod("other")], first)
    assert states(after)["front"] == [*left, ("other", "ready")]


def test_the_last_endpoints_of_a_range_stay_as_suspects_when_they_are_not_ready() -> None:
    first = table([*ONE, pod("a2")])
    both = [replace(ONE[0], ready=False), replace(pod("a2"), ready=False)]
    after = table([*both, ONE[1]], first)
    assert states(after)["front"] == [("a", "suspect"), ("a2", "suspect")]
    back = table([both[0], pod("a2"), ONE[1]], after)
    assert states(back)["front"] == [("a2", "ready")]


def test_a_pod_that_was_never_ready_is_no_suspect() -> None:
    after = table([replace(ONE[0], ready=False), ONE[1]])
    assert states(after)["front"] == []


def test_a_process_that_ended_is_no_suspect() -> None:
    after = table([replace(ONE[0], ready=False, running=False), ONE[1]], table(list(ONE)))
    assert states(after)["front"] == []


def test_a_deleted_pod_drains_until_its_grace_ends() -> None:
    going = replace(ONE[0], deleting=True, deletion="2026-01-01T00:00:40Z", grace=40, drain=30)
    after = table([going, ONE[1]], table(list(ONE)))
    (end,) = after.layouts[0].shards[0].endpoints
    assert (end.state, end.deadline) == ("draining", 1767225630.0)
    gone = table([replace(going, running=False, ready=False), ONE[1]], after)
    assert states(gone)["front"] == []


def test_a_deleted_pod_that_never_served_is_not_listed() -> None:
    going = replace(ONE[0], deleting=True, deletion="2026-01-01T00:00:40Z", grace=40)
    assert states(table([going, ONE[1]]))["front"] == []


NEW = replace(TARGET, cut=(Range("front", 0, 9), Range("back", 10, 29)))


def test_the_old_cut_serves_until_the_new_one_is_complete() -> None:
    old = table(list(ONE))
    assert old.serving == names.layout(TARGET.cut)
    front, back = pod("nf", Range("front", 0, 9)), pod("nb", Range("back", 10, 29))
    half = table([*ONE, front], old, NEW)
    assert [(one.id, one.state, one.complete) for one in half.layouts] == [
        (names.layout(NEW.cut), "active", False),
        (names.layout(TARGET.cut), "active", True),
    ]
    assert half.serving == names.layout(TARGET.cut)
    done = table([*ONE, front, back], half, NEW)
    assert [one.state for one in done.layouts] == ["active", "retiring"]
    assert done.serving == names.layout(NEW.cut)
    assert [one.id for one in table([front, back], done, NEW).layouts] == [names.layout(NEW.cut)]


def test_a_revert_half_way_keeps_the_path_that_serves() -> None:
    old = table(list(ONE))
    half = table([*ONE, pod("nf", Range("front", 0, 9))], old, NEW)
    back = table([*ONE, pod("nf", Range("front", 0, 9))], half, TARGET)
    assert back.serves(TARGET.cut)
    assert back.layouts[0].state == "active"


def test_a_range_that_both_cuts_share_is_in_both() -> None:
    shared = replace(TARGET, cut=(FRONT, Range("mid", 15, 20), Range("back", 21, 29)))
    made = table([*ONE], table(list(ONE)), shared)
    assert states(made, 0)["front"] == states(made, 1)["front"] == [("a", "ready")]


def test_another_uid_begins_again() -> None:
    old = replace(table(list(ONE)), epoch=9)
    fresh = table([replace(ONE[0], model_uid="uid-2")], old, replace(TARGET, uid="uid-2"))
    assert (fresh.uid, fresh.epoch, fresh.serving) == ("uid-2", 9, "")
    assert states(fresh)["front"] == [("a", "ready")]


def test_two_fingerprints_are_two_layouts_and_a_stranger_of_one_image_is_refused() -> None:
    pods = [pod("a", image="i1"), pod("b", BACK, image="i1"), pod("n", image="i2"), pod("x", image="i1", created="3")]
    seen = identity.resolve(pods, {"a": "f1", "b": "f1", "n": "f2", "x": "f9"}, "i1")
    assert seen.refused == {"x"}
    assert seen.pinned == "f1"
    made = table(pods, identity=seen)
    assert (made.layouts[0].fingerprint, made.layouts[0].id) == ("f1", names.layout(TARGET.cut))
    assert [one.fingerprint for one in made.layouts] == ["f1", "f2"]
    assert states(made)["front"] == [("a", "ready")]
    assert states(made, 1)["front"] == [("n", "ready")]


def test_a_pin_outlives_the_pods_that_made_it() -> None:
    seen = identity.resolve([pod("z")], {"z": "f2"}, "i1", pinned="f1", pinned_image="i1")
    assert seen.refused == {"z"}
    fresh = identity.resolve([pod("z", image="i2")], {"z": "f2"}, "i2", pinned="f1", pinned_image="i1")
    assert (fresh.refused, fresh.pinned) == (frozenset(), "f2")


def test_the_head_reads_what_the_operator_writes() -> None:
    going = replace(ONE[0], deleting=True, deletion="2026-01-01T00:00:40Z", grace=40, drain=30)
    made = replace(table([going, pod("a2"), ONE[1]], table(list(ONE))), epoch=3)
    read_back = node_parse(routes.to_json(made).encode())
    assert (read_back.uid, read_back.epoch) == ("uid-1", 3)
    assert [(one.name, one.start_layer, one.end_layer) for one in read_back.layouts[0].shards] == [
        ("front", 0, 14),
        ("back", 15, 29),
    ]
    assert read_back.layouts[0].shards[0].service == f"{names.shard_workload('demo', FRONT)}.ns.svc.cluster.local:8100"
    assert {one.state for one in read_back.layouts[0].shards[0].endpoints} == {"ready", "draining"}
    assert routes.from_json(routes.to_json(made), made.serving) == made


def edited(**shard: Any) -> str:
    """A table of one range into which somebody wrote."""
    made = json.loads(routes.to_json(table(list(ONE))))
    made["layouts"][0]["shards"][0] |= shard
    return json.dumps(made)


UNREADABLE = {
    "nothing": "",
    "no table": "{}",
    "a list": "[]",
    "an epoch in words": '{"uid": "a", "epoch": "x", "layouts": []}',
    "an epoch without end": '{"uid": "a", "epoch": Infinity, "layouts": []}',
    "no layouts": '{"uid":1,"epoch":1}',
    "nested too deep": "[" * 60_000,
    "a pod that is no name": edited(endpoints=[{"uid": [], "address": "a:1", "state": "ready"}]),
    "a layer in words": edited(startLayer="first"),
    "a shard without a name": edited(name=None),
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_a_table_that_cannot_be_read_is_an_empty_one(text: str) -> None:
    """The next write mends it: one that was taken as it is would keep the model's table from ever being written."""
    assert routes.from_json(text) == Table("")
    assert states(table(list(ONE), routes.from_json(text)))["front"] == [("a", "ready")]


@pytest.mark.parametrize(
    "text", ["\u00b2", "9" * 5000, "-1", "soon", ""], ids=["a power", "too long", "negative", "words", "empty"]
)
def test_an_annotation_that_is_no_number_of_seconds_is_none(text: str) -> None:
    """Anybody who may make a pod may write it: an error here would end the watch of all pods."""
    body = {"metadata": {"namespace": "ns", "name": "a", "uid": "a", "annotations": {names.DRAIN: text}}}
    assert read(body).drain == 0


def test_an_ipv6_address_is_put_in_brackets() -> None:
    made = table([pod("a", address="fd00::1"), ONE[1]])
    assert made.layouts[0].shards[0].endpoints[0].address == "[fd00::1]:8100"


FLAGS = st.tuples(*[st.booleans()] * 4)


@given(st.lists(FLAGS, min_size=1, max_size=5), st.lists(FLAGS, min_size=1, max_size=5))
def test_whatever_happens_the_table_is_stable_and_offers_only_pods_that_run(
    before: list[tuple[bool, ...]], after: list[tuple[bool, ...]]
) -> None:
    def pods(flags: list[tuple[bool, ...]]) -> list[Pod]:
        return [
            pod(f"p{at}", FRONT if back else BACK, ready=ready and runs, running=runs, deleting=going,
                deletion="2026-01-01T00:00:40Z" if going else None)
            for at, (ready, runs, going, back) in enumerate(flags)
        ]  # fmt: skip

    first = table(pods(before))
    second = table(pods(after), first)
    assert table(pods(after), second).same_as(table(pods(after), table(pods(after), second)))
    running = {one.uid for one in pods(after) if one.running}
    listed = {end.uid for one in second.layouts for part in one.shards for end in part.endpoints}
    assert listed <= running
    json.loads(routes.to_json(second))


def test_a_pod_is_read_from_what_the_api_server_sends() -> None:
    body = {
        "metadata": {
            "name": "p", "namespace": "ns", "uid": "u", "creationTimestamp": "t", "deletionTimestamp": "d",
            "deletionGracePeriodSeconds": 40, "annotations": {names.DRAIN: "30"},
            "labels": {names.MODEL: "demo", names.UID: "m", names.ROLE: "shard", names.SHARD: "front",
                       names.START: "0", names.END: "14", names.WORKLOAD: "w", names.REVISION: "r"},
        },
        "spec": {"nodeName": "n"},
        "status": {
            "phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "shard", "restartCount": 2, "state": {"running": {}}, "ready": True}],
        },
    }  # fmt: skip
    found = read(body)
    assert (found.range, found.ready, found.running, found.deleting) == (FRONT, True, True, True)
    assert (found.grace, found.drain, found.restarts, found.node, found.trouble) == (40, 30, 2, "n", None)
    body["metadata"]["labels"][names.START] = "x"
    assert read(body).range is None


TROUBLES: dict[str, tuple[dict[str, Any], tuple[str, str] | None]] = {
    "starting": ({"containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}]}, None),
    "evicted": ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, ("PodFailed", "Evicted: disk")),
    "unschedulable": (
        {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]},
        ("Unschedulable", "0/3 nodes"),
    ),
    "image": (
        {"containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}]},
        ("ImagePullFailed", "c: ErrImagePull: no"),
    ),
    "oom": (
        {
            "containerStatuses": [
                {
                    "name": "c",
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {
                        "terminated": {"reason": "OOMKilled", "exitCode": 137, "message": '"event": "link_up"}'}
                    },
                }
            ]
        },
        ("OOMKilled", "c: OOMKilled, exit code 137; give it more memory"),
    ),
    "crash loop": (
        {
            "containerStatuses": [
                {
                    "name": "c",
                    "restartCount": 4,
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {"terminated": {"reason": "Error", "exitCode": 1, "message": "layers 0-14\nof 12"}},
                }
            ]
        },
        ("CrashLoop", "c: CrashLoopBackOff: Error, exit code 1: layers 0-14 of 12"),
    ),
    "restarted once and running": (
        {
            "containerStatuses": [
                {
                    "name": "c",
                    "restartCount": 1,
                    "ready": True,
                    "state": {"running": {}},
                    "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
                }
            ]
        },
        None,
    ),
}


@pytest.mark.parametrize(("status", "expected"), TROUBLES.values(), ids=TROUBLES)
def test_why_a_pod_does_not_run(status: dict[str, Any], expected: tuple[str, str] | None) -> None:
    found = read({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "status": status}).trouble
    assert (found and (found.reason, found.message)) == expected
