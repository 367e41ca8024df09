"""The whole set of children that a MeshModel should have now, and what is too much. Pure.

    desired(model, observed) -> Plan

Idempotent: the plan depends on the MeshModel and on what is observed, never on what an earlier run of the operator
meant to do, so that a process which was killed at any moment is continued by the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshnet_operator import kinds, names, rollout
from meshnet_operator.children import access, common, head, monitoring, network, service, shard, workload
from meshnet_operator.children.workload import HISTORY, Workload
from meshnet_operator.kinds import Kind
from meshnet_operator.pods import Pod
from meshnet_operator.resource import MeshModel
from meshnet_operator.rollout import Rollout
from meshnet_operator.routes import Table
from meshnet_operator.settings import PodDefaults

Object = dict[str, Any]
Children = Mapping[Kind, Mapping[str, Object]]


@dataclass(frozen=True)
class Observed:
    """What is there. children: by kind and name, ours only; revision: the commit that model.revision stands for;
    defaults: what new pod templates get from the operator; unproven: uids of heads through which no token came yet.
    """

    children: Children
    pods: tuple[Pod, ...]
    table: Table
    image: str
    revision: str | None = None
    monitoring: bool = False
    exclusive_volume: bool = False
    defaults: PodDefaults = common.NO_DEFAULTS
    unproven: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Plan:
    """apply: in this order; delete: (kind, live object)."""

    apply: tuple[Object, ...]
    delete: tuple[tuple[Kind, Object], ...]
    rollout: Rollout = field(default_factory=lambda: Rollout((), (), ()))


def owned(model: MeshModel, body: Object) -> bool:
    """Whether an object is a child of this very MeshModel."""
    owners = body["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == model.uid for owner in owners)


def desired(model: MeshModel, seen: Observed) -> Plan:
    stored = _stored(model, seen)
    wanted = _workloads(model, seen, stored)
    live = {name: body for name, body in seen.children.get(kinds.DEPLOYMENT, {}).items() if owned(model, body)}
    roll = rollout.plan(model, wanted, live, stored, seen.pods, seen.table, seen.exclusive_volume)
    apply = [
        access.account(model),
        access.role(model),
        access.binding(model),
        service.api(model),
        *network.policies(model, seen.defaults),
        *([monitoring.monitor(model), monitoring.rule(model)] if seen.monitoring else []),
    ]
    for one in wanted:
        apply.append(workload.disruption_budget(model, one))
        if one.range is not None:
            apply.append(service.shards(model, one))
    apply += _revisions(model, seen, roll)
    apply += [workload.deployment(model, step.workload, step.strategy, step.hold_back) for step in roll.steps]
    apply.sort(key=lambda body: kinds.ORDER[kinds.of(body)])
    return Plan(tuple(apply), tuple(_surplus(model, seen, apply, roll)), roll)


def _stored(model: MeshModel, seen: Observed) -> dict[tuple[str, str], Object]:
    """Templates by workload and stamp."""
    found = {}
    for body in seen.children.get(kinds.REVISION, {}).values():
        if owned(model, body):
            labels = body["metadata"]["labels"]
            found[labels[names.WORKLOAD], labels[names.REVISION]] = body["data"]["template"]
    return found


def _workloads(model: MeshModel, seen: Observed, stored: Mapping[tuple[str, str], Object]) -> list[Workload]:
    made = []
    for part in model.shards:
        name = names.shard_workload(model.name, part.range)
        stamp = names.digest(shard.inputs(model, part, seen.image, seen.revision), 10)
        template = stored.get((name, stamp)) or shard.template(
            model, part, seen.image, seen.revision, stamp, seen.defaults
        )
        made.append(Workload(name, "shard", part.range, 0 if model.suspended else part.replicas, template, stamp))
    name = names.head_workload(model.name)
    stamp = names.digest(head.inputs(model, seen.image, seen.revision), 10)
    template = stored.get((name, stamp)) or head.template(model, seen.image, seen.revision, stamp, seen.defaults)
    replicas = 0 if model.suspended else model.number("head", "replicas")
    made.append(Workload(name, "head", None, replicas, template, stamp))
    return made


def _revisions(model: MeshModel, seen: Observed, roll: Rollout) -> list[Object]:
    """The stored templates that the Deployments have or get now; a new one counts one above its workload's newest."""
    live = seen.children.get(kinds.REVISION, {})
    made = []
    for step in roll.steps:
        one = step.workload
        numbers = {
            body["metadata"]["name"]: int(body["revision"])
            for body in live.values()
            if body["metadata"]["labels"].get(names.WORKLOAD) == one.name
        }
        own = numbers.get(f"{one.name}-{one.stamp}")
        made.append(workload.revision(model, one, own if own is not None else max(numbers.values(), default=0) + 1))
    return made


def _surplus(model: MeshModel, seen: Observed, apply: list[Object], roll: Rollout) -> list[tuple[Kind, Object]]:
    """Children that nobody wants: all of a kind that are not applied, but those of Deployments that still serve, and
    the newest stored templates.
    """
    wanted = {(kinds.of(body), body["metadata"]["name"]) for body in apply}
    wanted |= {(kind, name) for name in roll.kept for kind in (kinds.DEPLOYMENT, kinds.SERVICE, kinds.BUDGET)}
    wanted |= {(kinds.REVISION, name) for name in _history(seen, roll)}
    return [
        (kind, body)
        for kind, bodies in seen.children.items()
        for name, body in bodies.items()
        if (kind, name) not in wanted and owned(model, body) and "deletionTimestamp" not in body["metadata"]
    ]


def _history(seen: Observed, roll: Rollout) -> list[str]:
    """Names of the stored templates to keep: the newest few of each Deployment that is there."""
    kept: list[str] = []
    present = {step.workload.name for step in roll.steps} | set(roll.kept)
    for name in present:
        mine = [
            body
            for body in seen.children.get(kinds.REVISION, {}).values()
            if body["metadata"]["labels"].get(names.WORKLOAD) == name
        ]
        mine.sort(key=lambda body: int(body["revision"]), reverse=True)
        kept += [body["metadata"]["name"] for body in mine[:HISTORY]]
    return kept
