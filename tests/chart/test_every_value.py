"""Every value of the chart changes what it renders, and no value is taken that is not in its schema."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml
from chart.made import BEGIN, CHART, COPIES, leaves, readme, resolve, schema, values
from meshnet_chart import render, template
from meshnet_values import ITEMS, VALUES, WITH

Object = dict[str, Any]
ROOT = schema()
LEAVES = dict(leaves(ROOT, ROOT))


def value_of(path: str) -> Any:
    """Another value than the default."""
    node = LEAVES[path]
    if path in VALUES:
        return VALUES[path]
    if "enum" in node:
        return next(one for one in node["enum"] if one not in (node.get("default"), _item(path)))
    if node["type"] == "boolean":
        return not node["default"]
    if node["type"] == "integer":
        return int(node["default"]) + 1
    if node["type"] == "string":
        return "other"
    raise LookupError(f"{path} has no value in VALUES that proves it")


def _item(path: str) -> Any:
    """What the field of a list's item is before."""
    where, _, name = path.partition("[].")
    return ITEMS.get(where, {}).get(name)


def base_of(path: str) -> Object:
    """Values under which the one at `path` means something."""
    made: Object = {}
    for name, part in WITH.items():
        if path == name or (path.startswith(f"{name}.") and path != f"{name}.enabled"):
            made |= copy.deepcopy(part)
    if "[]" in path:
        place(made, path.partition("[]")[0], [copy.deepcopy(ITEMS[path.partition("[]")[0]])])
    return made


def place(made: Object, path: str, value: Any) -> Object:
    at: Any = made
    steps = path.replace("[]", ".0").split(".")
    for step in steps[:-1]:
        at = at[0] if step == "0" else at.setdefault(step, {})
    at[steps[-1]] = value
    return made


@pytest.mark.parametrize("path", LEAVES)
def test_every_value_changes_the_rendering(path: str) -> None:
    base = base_of(path)
    changed = place(copy.deepcopy(base), path, value_of(path))
    before, after = template(base), template(changed)
    assert before.returncode == 0, before.stderr
    assert after.returncode == 0, after.stderr
    assert before.stdout != after.stdout


def test_no_proving_value_is_left_over() -> None:
    assert VALUES.keys() <= LEAVES.keys()


def test_a_leaf_without_a_proving_value_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LEAVES, "free", {"type": "object"})
    with pytest.raises(LookupError, match="free"):
        value_of("free")


def test_the_schema_is_closed_at_every_level() -> None:
    free = {"strings", "core", "quantities"}

    def walk(node: Object, where: str) -> None:
        if node.get("type") == "object":
            assert node.get("additionalProperties") is False or where in free, where
        for name, part in (node.get("properties", {}) | node.get("$defs", {})).items():
            walk(part, name)
        if "items" in node:
            walk(node["items"], f"{where}[]")

    walk(ROOT, "")


def test_every_value_is_described_and_has_a_default() -> None:
    for path, node in LEAVES.items():
        assert node["description"].endswith("."), path
        assert "default" in node or "[]" in path, path


REFUSED: list[tuple[Object, str]] = [
    ({"replica": 3}, "additional properties 'replica' not allowed|Additional property replica is not allowed"),
    ({"image": {"name": "x"}}, "'name' not allowed|Additional property name"),
    ({"replicas": 0}, "replicas.*(minimum|greater than or equal to 1)"),
    ({"replicas": "two"}, "replicas.*(want integer|integer)"),
    ({"scope": "All"}, "scope.*(Cluster|one of)"),
    ({"logLevel": "debug"}, "logLevel.*(DEBUG|one of)"),
    ({"image": {"digest": "latest"}}, "digest.*pattern"),
    ({"hub": {"endpoint": "mirror.example"}}, "endpoint.*pattern"),
    ({"proxy": {"http": "proxy:3128"}}, "http.*pattern"),
    ({"global": {"registry": "registry.example/"}}, "registry.*pattern"),
    ({"global": {"imagePullSecrets": ["pull"]}}, "imagePullSecrets.*object"),
    ({"labels": {"a": 1}}, "labels.*string"),
    ({"networkPolicy": {"apiServerPorts": []}}, "apiServerPorts.*(minItems|at least)"),
    ({"tolerations": [{"effect": "Never"}]}, "effect.*(NoSchedule|one of)"),
    ({"ingresses": [{"model": "demo"}]}, "host"),
    ({"routes": [{"model": "demo", "parentRefs": []}]}, "parentRefs.*(minItems|at least)"),
    ({"routes": [{"model": "demo", "parentRefs": [{"name": "g"}], "timeout": "1 hour"}]}, "timeout.*pattern"),
    ({"test": {"keySecret": {"name": 1}}}, "name.*string"),
]


@pytest.mark.parametrize(("wrong", "message"), REFUSED, ids=[str(wrong) for wrong, _ in REFUSED])
def test_a_wrong_value_is_refused_by_its_name(wrong: Object, message: str) -> None:
    done = template(wrong)
    assert done.returncode != 0
    text = " ".join(done.stderr.split())
    assert re.search(message, text), text


def test_the_defaults_are_those_of_the_schema() -> None:
    assert (CHART / "values.yaml").read_text() == values(), "run `make chart`"

    def defaults(node: Object) -> Any:
        node = resolve(node, ROOT)
        if "default" in node:
            return node["default"]
        return {name: defaults(part) for name, part in node["properties"].items()}

    assert yaml.safe_load((CHART / "values.yaml").read_text()) == defaults(ROOT)


def test_the_readme_has_the_table_of_the_schema() -> None:
    text = (CHART / "README.md").read_text()
    assert BEGIN in text
    assert text == readme(text), "run `make chart`"


@pytest.mark.parametrize("copied", COPIES, ids=lambda path: path.name)
def test_the_copies_are_equal_to_their_sources(copied: Any) -> None:
    assert copied.read_bytes() == COPIES[copied].read_bytes(), "run `make chart`"


def test_the_defaults_render_the_same_each_time() -> None:
    """Case 63: a continuous deployment that compares must not see a difference each time."""
    assert render() == render()
