"""Puts core types into the CRD's source: a pure function of the source and the API server's OpenAPI schemas.

Core types come without descriptions (they are a third of a megabyte with them). Volumes are cut to the kinds that Pod
Security "restricted" allows, resources lose `claims`: what the operator could not honour is not in the schema. Lists
and strings that our CEL rules walk get bounds, without which the API server refuses the rules as too costly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Schema = dict[str, Any]
HERE = Path(__file__).resolve().parent
SOURCE = HERE / "meshmodel.yaml"
RESULT = HERE.parent.parent / "crds" / "meshnet.dev_meshmodels.yaml"

VOLUMES = (
    "name",
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
)
BYTES = "^[0-9]+([.][0-9]+)?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$"
KEPT = (
    "type",
    "format",
    "enum",
    "required",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
)
BOUNDS = {"name": 253, "mountPath": 1024}
OWN: dict[str, Schema] = {
    "labels": {"type": "object", "maxProperties": 64, "additionalProperties": {"type": "string", "maxLength": 63}},
    "annotations": {
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": {"type": "string", "maxLength": 4096},
    },
    "bytes": {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": 32,
        "x-kubernetes-validations": [
            {
                "rule": f"type(self) == int ? self > 0 : (self.matches('{BYTES}')"
                " && quantity(self).isGreaterThan(quantity('0')))",
                "message": "must be a number of bytes above 0, such as 512Mi or 2Gi",
            }
        ],
    },
}


def render(core: dict[str, Schema], source: Path = SOURCE) -> str:
    """The CRD as YAML. `core` holds the OpenAPI v3 schemas by full name (io.k8s.api.core.v1.Affinity ...)."""
    document = _expand(yaml.safe_load(source.read_text()), core)
    head = "# Made by `python -m crd` from hack/crd/meshmodel.yaml: edit that file.\n"
    return head + yaml.dump(document, sort_keys=False, width=10_000, Dumper=_Dumper, default_flow_style=False)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _expand(node: Any, core: dict[str, Schema]) -> Any:
    if isinstance(node, list):
        return [_expand(item, core) for item in node]
    if not isinstance(node, dict):
        return node
    rest = {key: _expand(value, core) for key, value in node.items() if key != "$core"}
    if "$core" not in node:
        return rest
    made = _core(node["$core"], core)
    rules = [*made.get("x-kubernetes-validations", []), *rest.get("x-kubernetes-validations", [])]
    return {**made, **rest, **({"x-kubernetes-validations": rules} if rules else {})}


def _core(name: str, core: dict[str, Schema]) -> Schema:
    if name in OWN:
        return dict(OWN[name])
    if name.startswith("["):
        item = _schema(name.strip("[]"), core)
        return {"type": "array", "maxItems": 64, "x-kubernetes-list-type": "atomic", "items": item}
    return _schema(name, core)


def _schema(name: str, core: dict[str, Schema]) -> Schema:
    full = next(key for key in core if key.endswith(f".v1.{name}") and (".core." in key or ".networking." in key))
    schema = _resolve(core[full], core)
    if name == "Volume":
        schema["properties"] = {key: schema["properties"][key] for key in VOLUMES}
    if name == "ResourceRequirements":
        schema["properties"].pop("claims")
    for key, size in BOUNDS.items():
        if key in schema.get("properties", {}):
            schema["properties"][key]["maxLength"] = size
    return schema


def _resolve(schema: Schema, core: dict[str, Schema]) -> Schema:
    """The schema without references, descriptions and defaults, in the structural form that a CRD must have."""
    if "allOf" in schema:
        schema = schema["allOf"][0]
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        if name.endswith((".Quantity", ".IntOrString")):
            return {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
        return _resolve(core[name], core)
    made: Schema = {key: schema[key] for key in KEPT if key in schema}
    if schema.get("x-kubernetes-list-type") in ("map", "set"):
        # A merge key that may be absent needs a default in a CRD; the lists are replaced as a whole here anyway.
        made["x-kubernetes-list-type"] = "atomic"
        made.pop("x-kubernetes-list-map-keys", None)
    if "properties" in schema:
        made["properties"] = {key: _resolve(value, core) for key, value in schema["properties"].items()}
    if "items" in schema:
        made["items"] = _resolve(schema["items"], core)
    if "additionalProperties" in schema:
        made["additionalProperties"] = _resolve(schema["additionalProperties"], core)
    return made
