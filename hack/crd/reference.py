"""docs/resource.md from the CRD's source: every field with its type, default and text, and what a change of it
touches.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from crd.build import SOURCE

Schema = dict[str, Any]
TARGET = SOURCE.parent.parent.parent / "docs" / "resource.md"

# What a change of a field does to pods; a test looks at pods' uids for one field of each class.
CLASSES: dict[str, str] = {
    "model.servedName": "head",
    "model.maxContext": "all pods",
    "model": "fixed",
    "shards.name": "layout",
    "shards.startLayer": "layout",
    "shards.endLayer": "layout",
    "shards.replicas": "no pods",
    "shards": "one shard",
    "sessions": "all shards",
    "head.replicas": "no pods",
    "head.service": "no pods",
    "head.allowUnauthenticated": "no pods",
    "head": "head",
    "recovery": "head",
    "rollout.drainSeconds": "all shards",
    "rollout": "no pods",
    "weights": "all pods",
    "networkPolicy": "no pods",
    "security": "all pods",
    "image": "layout",
    "imagePullPolicy": "all pods",
    "imagePullSecrets": "all pods",
    "suspend": "scale",
    "paused": "no pods",
    "restartedAt": "all pods",
    "options": "all pods",
}
HEAD = """# The MeshModel, field by field

Made by `make crd` from the CRD's own texts; a test keeps it true. `kubectl explain mm.spec` shows the same.

The column *change* tells what a change of the field does: **fixed** (refused: make another MeshModel), **layout** (a
new revision of all shards comes up by spec.rollout), **all pods**, **all shards**, **one shard**, **head** (these
pods are replaced by spec.rollout), **scale** (pods come or go), **no pods**.

## Weights: source and volume

| model.source | weights.volume | what pods mount |
|---|---|---|
| hf:// | none, emptyDir | a cache that lives as long as the pod |
| hf:// | persistentVolumeClaim | a cache that stays; `readOnly: true`: it is filled already, the hub is never asked |
| hf:// | image | a filled hub cache in an OCI image, read-only, the hub is never asked |
| pvc:// | not allowed | the claim itself, read-only |
| image:// | not allowed | the image itself, read-only |
| file:// | not allowed | nothing: the model is in the node image |

## spec
"""


def render(source: Path = SOURCE) -> str:
    """The whole page."""
    schema = yaml.safe_load(source.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    lines = [HEAD, "| field | type | default | change | |", "|---|---|---|---|---|"]
    for path, node, required in _walk(schema["spec"], ""):
        default = f"`{_written(node['default'])}`" if "default" in node else ("required" if required else "")
        cells = [f"`{path}`", _type(node), default, change(path), _text(node)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## status", "", "| field | type | |", "|---|---|---|"]
    for path, node, _ in _walk(schema["status"], ""):
        lines.append(f"| `{path}` | {_type(node)} | {_text(node)} |")
    return "\n".join(lines) + "\n"


def _written(default: Any) -> str:
    """As it is written in YAML."""
    return str(default).lower() if isinstance(default, bool) else str(default)


def change(path: str) -> str:
    """The class of a field: its own entry, or that of the nearest part above it."""
    steps = path.replace("[]", "").split(".")
    for length in range(len(steps), 0, -1):
        if (found := CLASSES.get(".".join(steps[:length]))) is not None:
            return found
    raise KeyError(f"{path} belongs to no class")


def _walk(node: Schema, path: str) -> Iterator[tuple[str, Schema, bool]]:
    required = set(node.get("required", []))
    for name, below in node.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield here, below, name in required
        yield from _walk(below, here)
        if below.get("items", {}).get("properties"):
            yield from _walk(below["items"], f"{here}[]")


def _type(node: Schema) -> str:
    if "enum" in node:
        return " / ".join(str(one) for one in node["enum"])
    core = node.get("$core")
    if core:
        return {"bytes": "bytes", "labels": "map", "annotations": "map"}.get(core, f"core {core.strip('[]')}")
    return str(node.get("format") if node.get("format") == "date-time" else node.get("type", ""))


def _text(node: Schema) -> str:
    limits = [f"{word} {node[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in node]
    text = str(node.get("description", "")).replace("|", "/")
    return f"{text} ({' '.join(limits)})" if limits else text
