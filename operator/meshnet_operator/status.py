"""The status of a MeshModel: a pure function of what was seen and done.

Lists are whole, since a merge patch replaces them; lastTransitionTime moves only with a condition's status. Events
are made of the same comparison: one for each condition whose status or reason changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from meshnet_operator import kinds, names, reasons, rollout
from meshnet_operator.plan import Observed, Plan
from meshnet_operator.pods import Pod, Trouble
from meshnet_operator.resource import MeshModel, Shard
from meshnet_operator.routes import Table

Object = dict[str, Any]
MESSAGE = 1000
# Before the first table is known.
NO_TABLE = Table("")


@dataclass(frozen=True)
class Outcome:
    """What the lanes report beside the plan. troubles: failures of this run and what the probe found; waiting: names
    of objects of an earlier MeshModel of the same name that must go first; published: error of the route table's last
    write or None."""

    troubles: tuple[Trouble, ...] = ()
    waiting: tuple[str, ...] = ()
    publish_error: str | None = None
    fingerprint: str = ""


def build(model: MeshModel, seen: Observed, plan: Plan, outcome: Outcome, now: datetime, cluster_domain: str) -> Object:
    """The status to be. `now` in UTC. Conditions that did not change keep their time."""
    pods = [pod for pod in seen.pods if pod.model_uid == model.uid]
    shards = [_shard(model, shard, seen, pods) for shard in model.shards]
    ready = sum(shard["ready"] > 0 for shard in shards)
    pinned = {"image": model.status.get("pinned", {}).get("image"), "revision": seen.revision}
    if outcome.fingerprint:
        pinned |= {"fingerprint": outcome.fingerprint, "nodeImage": seen.image}
    troubles = [*outcome.troubles, *_pod_troubles(model, pods, now), *_quota(seen)]
    conditions = [
        _ready(model, seen, pods, outcome),
        _shards_ready(model, shards),
        _published(outcome),
        _progressing(model, seen, plan, outcome),
        _degraded(troubles),
    ]
    return {
        "observedGeneration": model.generation,
        "routeEpoch": seen.table.epoch,
        "readyShards": f"{ready}/{len(shards)}",
        "url": f"http://{model.name}.{model.namespace}.svc.{cluster_domain}:{model.service['port']}/v1",
        "pinned": {key: value for key, value in pinned.items() if value},
        "shards": shards,
        "conditions": [_timed(one, model, now) for one in conditions],
    }


def _condition(kind: str, holds: bool, reason: str, message: str) -> Object:
    return {"type": kind, "status": str(holds), "reason": reason, "message": message[:MESSAGE]}


def _timed(condition: Object, model: MeshModel, now: datetime) -> Object:
    before = previous(model.status).get(condition["type"])
    same = before is not None and before["status"] == condition["status"]
    time = before["lastTransitionTime"] if before is not None and same else now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**condition, "observedGeneration": model.generation, "lastTransitionTime": time}


def previous(status: Mapping[str, Any]) -> dict[str, Object]:
    return {one["type"]: one for one in status.get("conditions") or []}


def _was_ready(model: MeshModel) -> bool:
    return previous(model.status).get("Ready", {}).get("status") == "True"


def _ready(model: MeshModel, seen: Observed, pods: list[Pod], outcome: Outcome) -> Object:
    if model.suspended:
        return _condition("Ready", False, "Suspended", "spec.suspend is true")
    if seen.table.epoch == 0:
        why = outcome.publish_error or "no route table yet"
        return _condition("Ready", False, "RoutesNotPublished", why)
    if not seen.table.complete:
        missing = ", ".join(_missing(model, seen))
        return _condition("Ready", False, "NoCompletePath", f"no ready pod for {missing}")
    heads = [pod for pod in pods if pod.ready and pod.role == "head" and not pod.deleting]
    if not heads:
        return _condition("Ready", False, "HeadNotReady", "no head pod is ready")
    # An operator that starts anew asks all heads again: what was Ready stays so meanwhile.
    if all(pod.uid in seen.unproven for pod in heads) and not _was_ready(model):
        return _condition("Ready", False, "PathNotProven", "no token has come through all shards to a head yet")
    return _condition("Ready", True, "Serving", "every range has a ready pod, and a token came through them to a head")


def _missing(model: MeshModel, seen: Observed) -> list[str]:
    layout = next((one for one in seen.table.layouts if names.layout(one.cut) == names.layout(model.cut)), None)
    if layout is None:
        return [shard.name for shard in model.shards]
    return [shard.range.name for shard in layout.shards if not shard.served]


def _shards_ready(model: MeshModel, shards: list[Object]) -> Object:
    if model.suspended:
        return _condition("ShardsReady", False, "Suspended", "spec.suspend is true")
    short = [f"{one['name']} {one['ready']}/{one['replicas']}" for one in shards if one["ready"] < one["replicas"]]
    if short:
        return _condition("ShardsReady", False, "ShardsNotReady", "ready pods: " + ", ".join(short))
    return _condition("ShardsReady", True, "AllShardsReady", "all pods of all shards are ready")


def _published(outcome: Outcome) -> Object:
    if outcome.publish_error:
        return _condition("RoutesPublished", False, "PublishFailed", outcome.publish_error)
    return _condition("RoutesPublished", True, "Published", "the ConfigMap has the newest route table")


def _progressing(model: MeshModel, seen: Observed, plan: Plan, outcome: Outcome) -> Object:
    if model.paused:
        return _condition("Progressing", False, "Paused", "spec.paused is true: only the route table follows the pods")
    if outcome.waiting:
        objects = ", ".join(outcome.waiting)
        return _condition(
            "Progressing", True, "WaitingForOldObjects", f"an earlier MeshModel's objects must go first: {objects}"
        )
    waiting = [step.workload.name for step in plan.rollout.steps if not step.done]
    if plan.rollout.done or (model.suspended and not plan.rollout.kept) or _settled(model, seen, plan):
        return _condition("Progressing", False, "Complete", "all Deployments are as the spec wants them")
    reason = "RollingOut" if _was_ready(model) or plan.rollout.kept else "Creating"
    kept = f"; kept until then: {', '.join(plan.rollout.kept)}" if plan.rollout.kept else ""
    return _condition("Progressing", True, reason, f"waiting for {', '.join(waiting)}{kept}")


def _settled(model: MeshModel, seen: Observed, plan: Plan) -> bool:
    """Whether this very spec was rolled out before and its Deployments are as they were: a pod that is missing now was
    lost or is being scaled, which Ready and ShardsReady tell."""
    before = previous(model.status).get("Progressing")
    if before is None or (before["reason"], before["observedGeneration"]) != ("Complete", model.generation):
        return False
    live = {name: rollout.stamp_of(body) for name, body in seen.children.get(kinds.DEPLOYMENT, {}).items()}
    return not plan.rollout.kept and all(
        live.get(step.workload.name) == step.workload.stamp for step in plan.rollout.steps
    )


def _degraded(troubles: Iterable[Trouble]) -> Object:
    order = {reason: index for index, reason in enumerate(reasons.DEGRADED)}
    found = sorted(set(troubles), key=lambda one: (order[one.reason], one.message))
    if not found:
        return _condition("Degraded", False, reasons.AS_EXPECTED, "nothing is wrong")
    message = "; ".join(one.message if i == 0 else f"{one.reason}: {one.message}" for i, one in enumerate(found))
    return _condition("Degraded", True, found[0].reason, message)


def _pod_troubles(model: MeshModel, pods: list[Pod], now: datetime) -> list[Trouble]:
    """Each workload's troubles, named by shard. A pod that failed counts while no newer one of its workload is
    ready.
    """
    made = []
    for pod in pods:
        if pod.trouble is None or pod.deleting or _replaced(pod, pods):
            continue
        reason = pod.trouble.reason
        if reason == "Unschedulable" and _age(pod, now) > model.number("rollout", "surgeTimeoutSeconds"):
            reason = "InsufficientCapacity"
        where = f"shard {pod.range.name}" if pod.range else "head"
        made.append(Trouble(reason, f"{where}: {pod.trouble.message}"))
    return made


def _replaced(pod: Pod, pods: list[Pod]) -> bool:
    """A Failed pod is history once another pod of its workload is ready."""
    return pod.phase == "Failed" and any(one.ready and one.workload == pod.workload for one in pods)


def _age(pod: Pod, now: datetime) -> float:
    if not pod.created:
        return 0.0
    return (now - datetime.fromisoformat(pod.created.replace("Z", "+00:00"))).total_seconds()


def _quota(seen: Observed) -> list[Trouble]:
    """What the Deployment controller could not create: quota, LimitRange, admission."""
    made = []
    for name, body in seen.children.get(kinds.DEPLOYMENT, {}).items():
        for one in body.get("status", {}).get("conditions") or []:
            if one["type"] == "ReplicaFailure" and one["status"] == "True":
                made.append(Trouble("QuotaExceeded", f"{name}: {one.get('message', '')}"))
    return made


def _shard(model: MeshModel, shard: Shard, seen: Observed, pods: list[Pod]) -> Object:
    name = names.shard_workload(model.name, shard.range)
    mine = [pod for pod in pods if pod.workload == name]
    live = seen.children.get(kinds.DEPLOYMENT, {}).get(name)
    stamp = live["spec"]["template"]["metadata"]["labels"].get(names.REVISION) if live else None
    made = {
        "name": shard.name,
        "layers": f"{shard.range.start}-{shard.range.end}",
        "deployment": name,
        "replicas": int(live["spec"].get("replicas", 1)) if live else shard.replicas or 1,
        "ready": sum(pod.ready and not pod.deleting for pod in mine),
        "updated": sum(pod.revision == stamp and not pod.deleting for pod in mine),
        "restarts": sum(pod.restarts for pod in mine),
    }
    if trouble := next((pod.trouble for pod in mine if pod.trouble and not _replaced(pod, mine)), None):
        made["lastError"] = f"{trouble.reason}: {trouble.message}"[:MESSAGE]
    return made


@dataclass(frozen=True)
class Note:
    """An Event to be. type: Normal or Warning."""

    type: str
    reason: str
    message: str


def transitions(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Note]:
    """Events for what changed between two statuses: one for each condition whose status or reason is another."""
    old = previous(before)
    notes = []
    for kind, condition in previous(after).items():
        was = old.get(kind)
        if was is not None and (was["status"], was["reason"]) == (condition["status"], condition["reason"]):
            continue
        if was is None and condition["reason"] in ("Complete", reasons.AS_EXPECTED):
            continue
        bad = (
            kind == "Degraded" if condition["status"] == "True" else kind in ("Ready", "ShardsReady", "RoutesPublished")
        )
        first = was is None or condition["reason"] in ("Suspended", "Paused")
        notes.append(
            Note(
                "Warning" if bad and not (first and kind != "Degraded") else "Normal",
                condition["reason"],
                condition["message"],
            )
        )
    return notes


def urgent(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a status must be written at once: a condition changed."""
    old = {kind: (one["status"], one["reason"]) for kind, one in previous(before).items()}
    return old != {kind: (one["status"], one["reason"]) for kind, one in previous(after).items()}


def patch(before: Mapping[str, Any], after: Object) -> Object:
    """The merge patch that turns one status into the other: null for what is not there any more."""
    made: Object = {}
    for key in {*before, *after}:
        if key not in after:
            made[key] = None
        elif isinstance(after[key], dict) and isinstance(before.get(key), dict):
            made[key] = patch(before[key], after[key])
        elif before.get(key) != after[key]:
            made[key] = after[key]
    return made


def next_look(model: MeshModel, pods: Iterable[Pod], now: datetime) -> float | None:
    """Seconds until time alone changes the status: a pod that stays unscheduled becomes InsufficientCapacity."""
    limit = model.number("rollout", "surgeTimeoutSeconds")
    left = [
        limit - _age(pod, now)
        for pod in pods
        if pod.trouble and pod.trouble.reason == "Unschedulable" and not pod.deleting
    ]
    return min((one + 0.5 for one in left if one > 0), default=None)
