"""Which template each Deployment gets now, and which Deployments go: tables of values, and invariants over random
states.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_operator import names, rollout
from meshnet_operator.children.workload import Workload
from meshnet_operator.pods import Pod
from meshnet_operator.resource import Key, MeshModel, Range, parse
from meshnet_operator.rollout import IN_PLACE, RECREATE, SURGE, Rollout
from meshnet_operator.routes import Table, Target, next_table

CUT = (Range("a", 0, 9), Range("b", 10, 19))


def model(strategy: str = "Surge", cut: tuple[Range, ...] = CUT, **spec: Any) -> MeshModel:
    shards = [{"name": one.name, "startLayer": one.start, "endLayer": one.end} for one in cut]
    body = {
        "metadata": {"name": "m", "namespace": "n", "uid": "u"},
        "spec": {"model": {"source": "file:///m"}, "shards": shards, "rollout": {"strategy": strategy}} | spec,
    }
    return parse(body)


def workloads(stamp: str, cut: tuple[Range, ...] = CUT) -> list[Workload]:
    made = [Workload(names.shard_workload("m", part), "shard", part, 1, {"of": stamp}, stamp) for part in cut]
    return [*made, Workload("m-head", "head", None, 1, {"of": stamp}, stamp)]


def deployment(one: Workload) -> dict[str, Any]:
    labels = {names.REVISION: one.stamp}
    if one.range is not None:
        labels |= {names.SHARD: one.range.name, names.START: str(one.range.start), names.END: str(one.range.end)}
    return {"metadata": {"name": one.name}, "spec": {"replicas": 1, "template": {"metadata": {"labels": labels}}}}


def pod(one: Workload, ready: bool = True, at: int = 0) -> Pod:
    uid = f"{one.name}-{one.stamp}-{at}"
    return Pod(
        key=Key("n", "m"), name=uid, uid=uid, model_uid="u", role=one.role, workload=one.name, revision=one.stamp,
        image="i", node="n1", range=one.range, address="10.0.0.1", ready=ready, running=True, deleting=False,
        deletion=None, grace=0, drain=0, phase="Running", restarts=0, created="", trouble=None,
    )  # fmt: skip


OLD, NEW = workloads("old"), workloads("new")
STORED = {(one.name, one.stamp): one.template for one in [*OLD, *NEW]}


def plan(made: MeshModel, live: list[Workload], pods: list[Pod], **more: Any) -> Rollout:
    wanted = more.pop("wanted", NEW)
    table = more.pop("table", Table("u"))
    found = {one.name: deployment(one) for one in live}
    return rollout.plan(made, wanted, found, STORED, pods, table, more.pop("exclusive", False))


def held(found: Rollout) -> list[bool]:
    return [step.hold_back for step in found.steps]


def test_nothing_is_held_back_at_creation() -> None:
    found = plan(model(), [], [])
    assert held(found) == [False, False, False]
    assert [step.strategy for step in found.steps] == [SURGE, SURGE, SURGE]
    assert not found.done


def test_surge_holds_back_until_every_range_has_a_new_ready_pod() -> None:
    old = [pod(one) for one in OLD]
    assert held(plan(model(), OLD, old)) == [True, True, False]
    assert held(plan(model(), NEW, [*old, pod(NEW[0])])) == [True, True, False]
    assert held(plan(model(), NEW, [*old, pod(NEW[0]), pod(NEW[1], ready=False)])) == [True, True, False]
    assert held(plan(model(), NEW, [*old, pod(NEW[0]), pod(NEW[1])])) == [False, False, False]


def test_a_shard_that_does_not_change_is_not_held_back() -> None:
    live = [NEW[0], OLD[1], NEW[2]]
    found = plan(model(), live, [pod(one) for one in live])
    assert held(found) == [False, True, False]


def test_a_loss_is_no_rollout() -> None:
    found = plan(model(), NEW, [pod(NEW[0]), pod(NEW[2])])
    assert held(found) == [False, False, False]


def test_a_rollout_is_done_when_all_wanted_pods_are_new_and_ready() -> None:
    assert plan(model(), NEW, [pod(one) for one in NEW]).done
    assert not plan(model(), NEW, [*(pod(one) for one in NEW), pod(OLD[0])]).done
    assert not plan(model(), OLD, [pod(one) for one in OLD]).done


ORDER = {
    "first": ([OLD[0], OLD[1]], [True, False]),
    "first is rolled, its pod loads": ([NEW[0], OLD[1]], [True, False]),
}


@pytest.mark.parametrize(("live", "new"), ORDER.values(), ids=ORDER)
def test_one_by_one_gives_the_template_to_one_shard_at_a_time(live: list[Workload], new: list[bool]) -> None:
    pods = [pod(one, ready=one.stamp == "old") for one in live]
    found = plan(model("OneByOne"), [*live, OLD[2]], pods)
    assert [step.workload.stamp == "new" for step in found.steps[:2]] == new
    assert [step.strategy for step in found.steps[:2]] == [IN_PLACE, IN_PLACE]


def test_one_by_one_goes_on_when_the_first_is_done() -> None:
    live = [NEW[0], OLD[1], OLD[2]]
    found = plan(model("OneByOne"), live, [pod(one) for one in live])
    assert [step.workload.stamp for step in found.steps] == ["new", "new", "new"]


def test_recreate_and_a_volume_for_one_node_replace_in_place() -> None:
    live = [*OLD]
    pods = [pod(one) for one in OLD]
    assert [step.strategy for step in plan(model("Recreate"), live, pods).steps] == [RECREATE, RECREATE, SURGE]
    found = plan(model(), live, pods, exclusive=True)
    assert [step.strategy for step in found.steps] == [RECREATE, RECREATE, RECREATE]
    assert held(found) == [False, False, False]


OTHER = (Range("a", 0, 4), Range("b", 5, 19))


def serving(*layers: Workload) -> Table:
    return next_table(Table("u"), Target("m", "n", "u", CUT), [pod(one) for one in layers])


def test_the_cut_that_served_last_stays_until_the_new_one_is_complete() -> None:
    wanted = workloads("new", OTHER)
    before = serving(OLD[0], OLD[1])
    found = plan(model(cut=OTHER), OLD, [pod(one) for one in OLD], wanted=wanted, table=before)
    assert set(found.kept) == {OLD[0].name, OLD[1].name}
    assert found.stale == ()
    assert not found.done
    both = [*OLD[:2], *wanted]
    target = Target("m", "n", "u", OTHER)
    complete = next_table(before, target, [pod(one) for one in both])
    after = plan(model(cut=OTHER), both, [pod(one) for one in both], wanted=wanted, table=complete)
    assert set(after.stale) == {OLD[0].name, OLD[1].name}


def test_a_cut_that_never_got_complete_goes_at_once_and_the_serving_one_stays() -> None:
    half = workloads("half", OTHER)
    third = (Range("all", 0, 19),)
    wanted = workloads("new", third)
    live = [*OLD[:2], *half[:2]]
    table = next_table(serving(*OLD[:2]), Target("m", "n", "u", third), [pod(one) for one in OLD[:2]])
    found = plan(model(cut=third), live, [pod(one) for one in OLD[:2]], wanted=wanted, table=table)
    assert set(found.kept) == {one.name for one in OLD[:2]}
    assert set(found.stale) == {one.name for one in half[:2]}


@pytest.mark.parametrize("spec", [{"strategy": "Recreate"}, {"suspend": True}], ids=["Recreate", "suspended"])
def test_nothing_is_kept_for_recreate_or_while_suspended(spec: Any) -> None:
    found = plan(model(cut=OTHER, **spec), OLD, [], wanted=workloads("new", OTHER), table=serving(*OLD[:2]))
    assert found.kept == ()


@given(
    st.lists(st.sampled_from(["old", "new"]), min_size=2, max_size=2),
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=2),
    st.sampled_from(["Surge", "OneByOne", "Recreate"]),
)
def test_the_old_pods_of_a_surge_may_go_only_when_a_new_path_is_complete(
    live: list[str], ready: list[tuple[bool, bool]], strategy: str
) -> None:
    now = [NEW[at] if stamp == "new" else OLD[at] for at, stamp in enumerate(live)]
    pods = [pod(one, old) for one, (old, _) in zip(OLD[:2], ready, strict=True)]
    pods += [pod(one, new) for one, (_, new) in zip(NEW[:2], ready, strict=True)]
    found = plan(model(strategy), [*now, OLD[2]], pods)
    complete = all(new for _, new in ready)
    if strategy == "Surge":
        assert all(step.hold_back for step in found.steps[:2]) is not complete
    if strategy == "OneByOne":
        rolled = [step.workload.stamp == "new" and not step.done for step in found.steps[:2]]
        assert sum(rolled) <= 2
    assert replace(found) == plan(model(strategy), [*now, OLD[2]], pods)
