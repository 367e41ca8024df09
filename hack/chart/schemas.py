"""Strict JSON schemas for kubeconform: of the API server's own OpenAPI, and of other projects' definitions.

Nothing is downloaded but Go modules, as for the control plane: the definitions of the Prometheus operator and of the
Gateway API are files of their modules, pinned by hack/crd-schemas.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
MODULE = Path(__file__).resolve().parent.parent / "crd-schemas"
# Module, folder of the definitions, and which of them the chart uses.
FOREIGN = (
    ("sigs.k8s.io/gateway-api", "config/crd/standard", ("gateway.networking.k8s.io_httproutes",)),
    (
        "github.com/prometheus-operator/prometheus-operator",
        "example/prometheus-operator-crd",
        ("monitoring.coreos.com_servicemonitors", "monitoring.coreos.com_prometheusrules"),
    ),
)
# How kubeconform names a file.
LOCATION = "{{.ResourceKind}}{{.KindSuffix}}.json"
TEXTS = ("default", "description", "example")
REFERENCE = "#/components/schemas/"


def write(folder: Path, read: Callable[[str], Object]) -> None:
    """read: GET of a path of the API server."""
    for name, schema in [*served(read), *foreign()]:
        (folder / name).write_text(json.dumps(schema))


def served(read: Callable[[str], Object]) -> Iterator[tuple[str, Object]]:
    """File name and schema of each kind that the API server serves."""
    for path in read("/openapi/v3")["paths"]:
        if not path.startswith(("api/", "apis/")):
            continue
        parts = read(f"/openapi/v3/{path}")["components"]["schemas"]
        closed = {name: strict(part) for name, part in parts.items()}
        for name, part in parts.items():
            for kind in part.get("x-kubernetes-group-version-kind", []):
                if path.endswith("/".join(one for one in (kind["group"], kind["version"]) if one)):
                    body = {"$ref": f"{REFERENCE}{name}", "components": {"schemas": _reachable(closed, name)}}
                    yield _file(kind["group"], kind["version"], kind["kind"]), body


def foreign() -> Iterator[tuple[str, Object]]:
    for module, place, names in FOREIGN:
        folder = _folder(module) / place
        for name in names:
            yield from of_definition(yaml.safe_load((folder / f"{name}.yaml").read_text()))


def of_definition(body: Object) -> Iterator[tuple[str, Object]]:
    """Of a CustomResourceDefinition, each version."""
    spec = body["spec"]
    for version in spec["versions"]:
        schema = strict(version["schema"]["openAPIV3Schema"])
        # The API server knows the metadata of every object; a definition only says that there is some.
        schema["properties"]["metadata"] = {"type": "object"}
        yield _file(spec["group"], version["name"], spec["names"]["kind"]), schema


def strict(node: Any) -> Any:
    """A schema under which an unknown field is a fault."""
    if isinstance(node, list):
        return [strict(one) for one in node]
    if not isinstance(node, dict):
        return node
    made = {key: strict(part) for key, part in node.items() if key not in (*TEXTS, "properties")}
    if "properties" in node:
        made["properties"] = {name: strict(part) for name, part in node["properties"].items()}
    open_on_purpose = made.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in made
    if "properties" in made and not open_on_purpose:
        made["additionalProperties"] = False
    if made.pop("x-kubernetes-int-or-string", False) or made.get("format") == "int-or-string":
        made = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    return made


def _reachable(parts: Object, name: str) -> Object:
    found: Object = {}
    wanted = [name]
    while wanted:
        here = wanted.pop()
        if here not in found:
            found[here] = parts[here]
            wanted += _references(parts[here])
    return found


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for one in node:
            yield from _references(one)
    elif isinstance(node, dict):
        if isinstance(reference := node.get("$ref"), str):
            yield reference.removeprefix(REFERENCE)
        for part in node.values():
            yield from _references(part)


def _file(group: str, version: str, kind: str) -> str:
    suffix = "-".join(one for one in (group.split(".")[0], version) if one)
    return f"{kind}-{suffix}.json".lower()


def _folder(module: str) -> Path:
    done = subprocess.run(["go", "mod", "download", "-json", module], cwd=MODULE, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{module} is not in Go's module cache and could not be downloaded: {done.stderr}")
    return Path(json.loads(done.stdout)["Dir"])
