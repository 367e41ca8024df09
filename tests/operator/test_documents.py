"""The documents are made of the code, or compared with it."""

from __future__ import annotations

import re
from typing import Any

import yaml
from cluster.access import ROOT
from crd import reference
from prometheus_client import CollectorRegistry
from pydantic_core import PydanticUndefined

from meshnet_operator import reasons
from meshnet_operator.metrics import Metrics
from meshnet_operator.settings import OperatorSettings

OPERATIONS = ROOT / "docs" / "operations-operator.md"


def test_the_reference_is_that_of_the_schema() -> None:
    assert (ROOT / "docs" / "resource.md").read_text() == reference.render(), "run `make crd`"


def test_defaults_are_written_as_they_are() -> None:
    text = (ROOT / "docs" / "resource.md").read_text()
    found = re.findall(r"^\| `([\w.\[\]]+)` \| ([\w /]+) \| `(\w+)` \|", text, flags=re.MULTILINE)
    assert not [name for name, kind, default in found if " / " in kind and default not in kind.split(" / ")]


def test_every_field_belongs_to_a_class() -> None:
    text = (ROOT / "docs" / "resource.md").read_text()
    classes = {"fixed", "layout", "all pods", "all shards", "one shard", "head", "scale", "no pods"}
    spec = text.split("## spec")[1].split("## status")[0]
    found = {line.split(" | ")[3].strip() for line in spec.splitlines() if line.startswith("| `")}
    assert found <= classes


def test_every_reason_has_its_line_in_operations_and_no_other_has() -> None:
    parts = re.split(r"^##+ ", OPERATIONS.read_text(), flags=re.MULTILINE)
    for condition, closed in reasons.ALL.items():
        (part,) = [one for one in parts if one.startswith(f"{condition}:")]
        rows = re.findall(r"^\| ([A-Z]\w+) \|", part, flags=re.MULTILINE)
        assert sorted(rows) == sorted(closed), condition


def test_every_metric_is_listed() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    names = {metric.name + ("_total" if metric.type == "counter" else "") for metric in registry.collect()}
    listed = set(re.findall(r"^\| (meshnet_\w+) \|", OPERATIONS.read_text(), flags=re.MULTILINE))
    assert names == listed


def test_every_setting_is_listed_with_its_default() -> None:
    rows = re.findall(r"^\| (MESHNET_OPERATOR_\w+) \| (.*) \| (.+) \|$", OPERATIONS.read_text(), flags=re.MULTILINE)
    listed = {name: (default, text) for name, default, text in rows}

    def told(field: Any) -> str:
        if field.is_required():
            return "required"
        if field.default is PydanticUndefined:
            return "the host's name"
        if isinstance(field.default, bool):
            return str(field.default).lower()
        return "" if field.default in ("", None, ()) else str(field.default)

    fields = OperatorSettings.model_fields
    assert listed == {f"MESHNET_OPERATOR_{name.upper()}": (told(one), one.description) for name, one in fields.items()}


def test_the_operators_folder_is_no_package() -> None:
    """With an __init__.py it would take the place of the standard library's `operator`."""
    assert [path.name for path in (ROOT / "operator").glob("*.py")] == []


def test_the_definition_is_that_of_its_source() -> None:
    """Our own part of the CRD; the core types come from the API server (`make crd`)."""
    source = yaml.safe_load((ROOT / "hack" / "crd" / "meshmodel.yaml").read_text())
    made = yaml.safe_load((ROOT / "crds" / "meshnet.dev_meshmodels.yaml").read_text())

    def same(one: object, other: object) -> None:
        if isinstance(one, dict):
            assert isinstance(other, dict)
            for key, value in one.items():
                if key not in ("$core", "x-kubernetes-validations"):
                    same(value, other[key])
            return
        if isinstance(one, list) and isinstance(other, list):
            assert len(one) == len(other)
            for pair in zip(one, other, strict=True):
                same(*pair)
            return
        assert one == other

    same(source, made)
