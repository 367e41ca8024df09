"""What is made: values.yaml and the README's table from values.schema.json, the copies from the files at the top."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
CHART = ROOT / "charts" / "meshnet"
COPIES = {
    CHART / "files" / "meshnet.dev_meshmodels.yaml": ROOT / "crds" / "meshnet.dev_meshmodels.yaml",
    CHART / "files" / "rbac.yaml": ROOT / "operator" / "rbac.yaml",
}
BEGIN, END = "<!-- values: made by `make chart` -->\n", "<!-- end of values -->\n"

Object = dict[str, Any]


def schema() -> Object:
    found: Object = json.loads((CHART / "values.schema.json").read_text())
    return found


def resolve(node: Object, root: Object) -> Object:
    """A node with its $ref followed; what stands beside the $ref goes before."""
    if "$ref" not in node:
        return node
    target: Object = root["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return resolve(target, root) | {key: part for key, part in node.items() if key != "$ref"}


def leaves(node: Object, root: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    """Every value that stands for itself, by its path; `[]` is an item of a list."""
    node = resolve(node, root)
    for name, part in node.get("properties", {}).items():
        part = resolve(part, root)
        here = f"{path}.{name}" if path else name
        items = resolve(part.get("items", {}), root)
        if "properties" in part and "default" not in part:
            yield from leaves(part, root, here)
        else:
            yield here, part
            if "properties" in items:
                yield from leaves(items, root, f"{here}[]")


def values() -> str:
    """values.yaml: each default below its description."""
    root = schema()
    head = "# Made by `make chart` from values.schema.json, where every value is described.\n"
    return head + "".join(_value(name, part, root, 0) for name, part in root["properties"].items())


def _value(name: str, node: Object, root: Object, depth: int) -> str:
    node = resolve(node, root)
    pad = "  " * depth
    lines = textwrap.wrap(node["description"], 118 - len(pad), break_on_hyphens=False, break_long_words=False)
    text = ("\n" if depth == 0 else "") + "".join(f"{pad}# {line}\n" for line in lines)
    if "default" not in node:
        return text + f"{pad}{name}:\n" + "".join(_value(key, part, root, depth + 1) for key, part in _parts(node))
    made = yaml.safe_dump({name: node["default"]}, sort_keys=False, width=110)
    return text + textwrap.indent(made, pad)


def _parts(node: Object) -> list[tuple[str, Object]]:
    return list(node["properties"].items())


def table() -> str:
    """The README's table."""
    root = schema()
    rows = ["| value | default | |", "|---|---|---|"]
    for path, node in leaves(root, root):
        choice = " " + " or ".join(node["enum"]) + "." if "enum" in node else ""
        if choice and node["description"].startswith(node["enum"][0]):
            choice = ""
        rows.append(f"| `{path}` | {_default(node)} | {node['description'].replace('|', chr(92) + '|')}{choice} |")
    return "\n".join(rows) + "\n"


def _default(node: Object) -> str:
    if "default" not in node:
        return ""
    return f"`{json.dumps(node['default'])}`" if node["default"] != "" else ""


def readme(text: str) -> str:
    """The README with a fresh table between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"
