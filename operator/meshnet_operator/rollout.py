"""How a change reaches the Deployments: which template each gets now, and which Deployments go. Pure.

Surge, same cut: every shard's Deployment gets the new template with one surge pod and `hold back` on: the Deployment
controller keeps the old pods until the new ones have been available for a day. When each range has a ready pod of its
new revision, a new path is complete, hold back goes, and the old pods drain. Names stay, so an autoscaler keeps its
aim; a revert finds the old pods all there. OneByOne: the first shard that is not done gets its template, the others
keep theirs. Recreate: all at once.

Another cut has Deployments of other names. Those of the cut that served last stay until the new one is complete
(Recreate: go at once); those of a cut that never got complete go at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshnet_operator import names
from meshnet_operator.children.workload import Workload
from meshnet_operator.pods import Pod
from meshnet_operator.resource import MeshModel, Range
from meshnet_operator.routes import Table

Object = dict[str, Any]

SURGE: Object = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
IN_PLACE: Object = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
RECREATE: Object = {"type": "Recreate"}


@dataclass(frozen=True)
class Step:
    """What a Deployment should be now. `done`: all its pods are of the newest revision and ready."""

    workload: Workload
    strategy: Object
    hold_back: bool
    done: bool


@dataclass(frozen=True)
class Rollout:
    """steps: one for each wanted Deployment; stale: names of Deployments to delete; kept: stale ones that still
    serve.
    """

    steps: tuple[Step, ...]
    stale: tuple[str, ...]
    kept: tuple[str, ...]

    @property
    def done(self) -> bool:
        return not self.kept and all(step.done for step in self.steps)


def plan(
    model: MeshModel,
    workloads: Iterable[Workload],
    live: Mapping[str, Object],
    stored: Mapping[tuple[str, str], Object],
    pods: Iterable[Pod],
    table: Table,
    exclusive_volume: bool,
) -> Rollout:
    """live: Deployments of this MeshModel by name; stored: templates by (workload, stamp); exclusive_volume: the
    weights' claim can't be mounted by an old and a new pod together.
    """
    wanted = list(workloads)
    shards = [one for one in wanted if one.range is not None]
    mine = [pod for pod in pods if pod.model_uid == model.uid and not pod.deleting]
    fresh = {one.name: _fresh(one, mine) for one in wanted}
    hold = model.strategy == "Surge" and not exclusive_volume and not all(fresh[one.name] for one in shards)
    steps = []
    waiting = False
    for one in wanted:
        done = _done(one, live.get(one.name), mine)
        if one.range is None:
            steps.append(Step(one, RECREATE if exclusive_volume else SURGE, False, done))
            continue
        now = one
        if model.strategy == "OneByOne" and waiting:
            now = _as_it_is(one, live.get(one.name), stored)
        steps.append(
            Step(now, _strategy(model, exclusive_volume), hold and _rolls(one, live.get(one.name), mine), done)
        )
        waiting = waiting or not done
    stale, kept = _stale(model, wanted, live, table)
    return Rollout(tuple(steps), stale, kept)


def stamp_of(deployment: Object) -> str:
    """The revision that a live Deployment's template has."""
    found: str = deployment["spec"]["template"]["metadata"]["labels"].get(names.REVISION, "")
    return found


def _strategy(model: MeshModel, exclusive_volume: bool) -> Object:
    if exclusive_volume:
        return RECREATE
    return {"Surge": SURGE, "OneByOne": IN_PLACE, "Recreate": RECREATE}[model.strategy]


def _fresh(workload: Workload, pods: list[Pod]) -> bool:
    """A pod of the newest revision is ready."""
    return any(pod.ready and pod.workload == workload.name and pod.revision == workload.stamp for pod in pods)


def _rolls(workload: Workload, deployment: Object | None, pods: list[Pod]) -> bool:
    """Pods of an older revision are there to be kept."""
    if deployment is None:
        return False
    return any(pod.workload == workload.name and pod.revision != workload.stamp for pod in pods)


def _done(workload: Workload, deployment: Object | None, pods: list[Pod]) -> bool:
    if deployment is None or stamp_of(deployment) != workload.stamp:
        return False
    mine = [pod for pod in pods if pod.workload == workload.name]
    old = any(pod.revision != workload.stamp for pod in mine)
    ready = sum(pod.ready and pod.revision == workload.stamp for pod in mine)
    return not old and ready >= int(deployment["spec"].get("replicas", 1))


def _as_it_is(workload: Workload, deployment: Object | None, stored: Mapping[tuple[str, str], Object]) -> Workload:
    """The workload with the template that its Deployment has now, where that is known."""
    if deployment is None:
        return workload
    stamp = stamp_of(deployment)
    template = stored.get((workload.name, stamp))
    return workload if template is None else replace(workload, stamp=stamp, template=template)


def _stale(
    model: MeshModel, wanted: list[Workload], live: Mapping[str, Object], table: Table
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of Deployments to delete, and of those that still serve.

    A cut that nobody wants and that served last stays while the wanted one has no complete path.
    """
    names_wanted = {one.name for one in wanted}
    unwanted = [name for name in live if name not in names_wanted]
    serving: set[Range] = set(table.serving_cut())
    keep = model.strategy != "Recreate" and not model.suspended and not table.serves(model.cut)
    kept = tuple(name for name in unwanted if keep and _range_of(live[name]) in serving)
    return tuple(name for name in unwanted if name not in kept), kept


def _range_of(deployment: Object) -> Range | None:
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    try:
        return Range(labels[names.SHARD], int(labels[names.START]), int(labels[names.END]))
    except (KeyError, ValueError):
        return None
