"""Deployments, and the ControllerRevisions that keep their pod templates.

A template is made once for each set of inputs, stored, and applied as it was stored from then on: another version of
the operator, which would render another template from the same MeshModel, rolls nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshnet_operator import names
from meshnet_operator.children import common
from meshnet_operator.children.common import Object
from meshnet_operator.resource import MeshModel, Range

# Ready pods of a new revision count as available after this long: "not yet". See `rollout`.
HOLD_BACK = 86_400
HISTORY = 3


@dataclass(frozen=True)
class Workload:
    """One Deployment to be: `range` None is the head. `template` is as stored, `stamp` the digest of its inputs."""

    name: str
    role: str
    range: Range | None
    replicas: int | None
    template: Object
    stamp: str


def revision(model: MeshModel, workload: Workload, number: int) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": common.metadata(
            model,
            f"{workload.name}-{workload.stamp}",
            workload.role,
            labels={names.WORKLOAD: workload.name, names.REVISION: workload.stamp},
        ),
        "data": {"template": workload.template},
        "revision": number,
    }


def deployment(model: MeshModel, workload: Workload, strategy: Object, hold_back: bool) -> Object:
    """hold_back: pods of a new revision come up, but the old ones stay until it ends."""
    progress = model.number("weights", "loadTimeoutSeconds") + 300
    spec: dict[str, Any] = {
        "selector": {"matchLabels": common.selector(model, workload.name)},
        "strategy": strategy,
        "minReadySeconds": HOLD_BACK if hold_back else 0,
        "progressDeadlineSeconds": progress + (HOLD_BACK if hold_back else 0),
        "revisionHistoryLimit": HISTORY,
        "template": workload.template,
    }
    if workload.replicas is not None:
        spec["replicas"] = workload.replicas
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": common.metadata(model, workload.name, workload.role, labels={names.WORKLOAD: workload.name}),
        "spec": spec,
    }


def disruption_budget(model: MeshModel, workload: Workload) -> Object:
    """One pod may go at a time; one replica never blocks a drain, since maxUnavailable counts and not minAvailable."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": common.metadata(model, workload.name, workload.role),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": common.selector(model, workload.name)},
        },
    }
