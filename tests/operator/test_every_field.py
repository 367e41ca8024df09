"""Every field of spec changes something that a cluster sees, or is a refusal's condition: no field does nothing."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from cluster.access import ROOT

from meshnet_operator import status
from meshnet_operator.plan import Observed, desired
from meshnet_operator.pods import read
from meshnet_operator.resource import DEFAULTS, parse
from meshnet_operator.routes import Table, Target, next_table
from meshnet_operator.status import Outcome

Object = dict[str, Any]
Make = Callable[..., Any]

# Values for what a type alone does not tell.
VALUES: dict[str, Any] = {
    "model.source": "hf://other/name",
    "model.revision": "v2",
    "model.tokenSecret": {"name": "hub", "key": "token"},
    "shards.name": "first",
    "shards.startLayer": 0,
    "shards.endLayer": 20,
    "shards.gpu.resource": "example.com/gpu",
    "shards.resources": {"limits": {"memory": "1Gi"}},
    "shards.nodeSelector": {"disk": "fast"},
    "shards.tolerations": [{"key": "spot", "operator": "Exists"}],
    "shards.affinity": {"nodeAffinity": {}},
    "shards.topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}],
    "shards.env": [{"name": "A", "value": "1"}],
    "shards.envFrom": [{"secretRef": {"name": "s"}}],
    "shards.volumes": [{"name": "v", "emptyDir": {}}],
    "shards.volumeMounts": [{"name": "v", "mountPath": "/v"}],
    "shards.podAnnotations": {"a": "1"},
    "shards.podLabels": {"team": "x"},
    "head.resources": {"limits": {"memory": "1Gi"}},
    "head.nodeSelector": {"disk": "fast"},
    "head.tolerations": [{"key": "spot", "operator": "Exists"}],
    "head.service.annotations": {"lb": "internal"},
    "head.apiKeySecret": {"name": "keys"},
    "sessions.maxBytes": "3Gi",
    "recovery.replayBytes": "3Gi",
    "weights.volume.emptyDir.sizeLimit": "3Gi",
    "weights.volume.persistentVolumeClaim": {"claimName": "cache"},
    "weights.volume.image": {"reference": "registry.example/cache:1"},
    "networkPolicy.clientsFrom": [{"podSelector": {}}],
    "networkPolicy.metricsFrom": [{"podSelector": {}}],
    "networkPolicy.extraEgress": [{"ports": [{"port": 3128}]}],
    "security.supplementalGroups": [44],
    "imagePullSecrets": [{"name": "pull"}],
    "restartedAt": "2026-01-01T00:00:00Z",
}
HUB = {"model": {"source": "hf://org/name", "tokenSecret": {"name": "hub", "key": "token"}}}
# What must be there too for a field to mean anything.
WITH: dict[str, Object] = {
    "model.tokenSecret.name": HUB,
    "model.tokenSecret.key": HUB,
    "weights.volume.persistentVolumeClaim.subPath": {
        "weights": {"volume": {"persistentVolumeClaim": {"claimName": "cache"}}}
    },
    "weights.volume.persistentVolumeClaim.readOnly": {
        "weights": {"volume": {"persistentVolumeClaim": {"claimName": "cache"}}}
    },
    "weights.volume.image.pullPolicy": {"weights": {"volume": {"image": {"reference": "registry.example/c:1"}}}},
}
# The condition of a refusal by the API server; tests/operator/test_refused_resources.py has both sides.
REFUSALS_ONLY = {"head.allowUnauthenticated"}


def fields() -> Iterator[tuple[str, Object]]:
    """Path and schema of every field that stands for itself."""
    body = yaml.safe_load((ROOT / "hack" / "crd" / "meshmodel.yaml").read_text())
    spec = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]

    def walk(node: Object, path: str) -> Iterator[tuple[str, Object]]:
        below = node.get("properties") or node.get("items", {}).get("properties")
        if path in VALUES or "$core" in node or not below:
            yield path, node
            if not (node.get("properties") and path in VALUES):
                return
        for name, part in (below or {}).items():
            yield from walk(part, f"{path}.{name}" if path else name)

    yield from walk(spec, "")


FIELDS = dict(fields())


def value_of(path: str, node: Object) -> Any:
    """Another value than the default."""
    if path in VALUES:
        return VALUES[path]
    if "enum" in node:
        return next(one for one in node["enum"] if one != node.get("default"))
    if node.get("type") == "boolean":
        return not node.get("default", False)
    if node.get("type") == "integer":
        return int(node.get("default", 0)) + 7
    return "other"


def with_field(spec: Object, path: str, value: Any) -> Object:
    made = copy.deepcopy(spec)
    for name, part in WITH.get(path, {}).items():
        made[name] = copy.deepcopy(part)
    at = made
    steps = path.split(".")
    for step in steps[:-1]:
        at = at.setdefault(step, {}) if step != "shards" else at["shards"][0]
    at[steps[-1]] = value
    return made


def outcome(body: Object) -> str:
    """Everything that a cluster sees of a MeshModel: children, table, status while a pod is unscheduled for 300 s."""
    model = parse(body)
    pod = read(
        {
            "metadata": {
                "name": "p",
                "namespace": "ns",
                "uid": "p",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"meshnet.dev/model": "demo", "meshnet.dev/model-uid": "u"},
            },
            "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no room"}]},
        }
    )
    target = Target(model.name, model.namespace, model.uid, model.cut)
    table = replace(next_table(Table("u"), target, [pod]), epoch=1)
    image = str(model.spec.get("image") or "image")
    seen = Observed({}, (pod,), table, image, revision=model.spec["model"].get("revision"))
    plan = desired(model, seen)
    now = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
    told = status.build(model, seen, plan, Outcome(), now, "cluster.local")
    return json.dumps([plan.apply, repr(table), told], sort_keys=True)


def body_of(spec: Object) -> Object:
    metadata = {"name": "demo", "namespace": "ns", "uid": "u", "generation": 1}
    return {"metadata": metadata, "spec": spec}


def base(meshmodel: Make) -> Object:
    spec: Object = meshmodel()["spec"]
    spec["model"]["source"] = "hf://org/name"
    return spec


@pytest.mark.parametrize("path", sorted(set(FIELDS) - REFUSALS_ONLY))
def test_case_55_every_field_has_an_effect(meshmodel: Make, path: str) -> None:
    spec = base(meshmodel)
    if path == "rollout.surgeTimeoutSeconds":
        changed = with_field(spec, path, 60)
    elif path == "shards.startLayer":
        spec["shards"][0]["startLayer"] = 1
        changed = with_field(spec, path, 0)
    else:
        changed = with_field(spec, path, value_of(path, FIELDS[path]))
    before = copy.deepcopy(spec)
    for name, part in WITH.get(path, {}).items():
        before[name] = part
    assert outcome(body_of(changed)) != outcome(body_of(before)), f"{path} changes nothing"


def test_defaults_of_the_schema_and_of_the_operator_are_the_same() -> None:
    stated = {path: node["default"] for path, node in FIELDS.items() if "default" in node}
    sections = {"head.service": "service"}
    for path, default in stated.items():
        section, _, name = path.rpartition(".")
        if not section or section.startswith(("shards", "weights.volume")):
            continue
        assert DEFAULTS[sections.get(section, section)][name] == default, path


def test_a_default_that_is_written_out_changes_no_pod(meshmodel: Make) -> None:
    """Another default of a later version must not reach pods that are there; and a written default is no change."""
    spec = base(meshmodel)
    changed = spec
    for path, node in FIELDS.items():
        if "default" in node and not path.startswith(("shards", "weights.volume", "head.service")):
            changed = with_field(changed, path, node["default"])
    plain = desired(parse(body_of(spec)), Observed({}, (), Table("u"), "image"))
    full = desired(parse(body_of(changed)), Observed({}, (), Table("u"), "image"))

    def stamps(plan: Any) -> list[str]:
        return [step.workload.stamp for step in plan.rollout.steps]

    assert stamps(full) == stamps(plain)
