"""What is applied and what is left alone: pure comparison, and quantities."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from meshnet_operator import diff, names, quantity
from meshnet_operator.errors import ResourceError

WANTED: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "X",
    "metadata": {"name": "x", "labels": {"a": "1"}},
    "spec": {
        "list": [{"name": "one", "env": [{"name": "A", "value": "1"}]}],
        "resources": {"limits": {"cpu": "1000m", "memory": "1Gi"}},
        "flag": False,
        "empty": {},
        "none": [],
    },
}


def live(**spec: Any) -> dict[str, Any]:
    made = diff.stamped(WANTED)
    return {"metadata": {**made["metadata"], "uid": "u"}, "spec": {**WANTED["spec"], **spec}}


def test_what_the_api_server_adds_is_no_difference() -> None:
    found = live(defaulted="x", resources={"limits": {"cpu": "1", "memory": "1024Mi"}, "requests": {"cpu": "1"}})
    for name in ("flag", "empty", "none"):
        del found["spec"][name]
    found["spec"]["list"] = [{"name": "one", "env": [{"name": "A", "value": "1"}], "more": 1}]
    assert diff.differs(diff.stamped(WANTED), found) is None


DRIFT: dict[str, tuple[dict[str, Any], str]] = {
    "a value": ({"list": [{"name": "one", "env": [{"name": "A", "value": "1000m"}]}]}, ".spec.list[0].env[0].value"),
    "one more entry": ({"list": [*WANTED["spec"]["list"], {"name": "two"}]}, ".spec.list"),
    "no entry": ({"list": []}, ".spec.list"),
    "a quantity": ({"resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}, ".spec.resources.limits.cpu"),
    "switched on": ({"flag": True}, ".spec.flag"),
    "another type": ({"list": "text"}, ".spec.list"),
}


@pytest.mark.parametrize(("spec", "at"), DRIFT.values(), ids=DRIFT)
def test_drift_is_found(spec: dict[str, Any], at: str) -> None:
    assert diff.differs(diff.stamped(WANTED), live(**spec)) == at


def test_a_field_that_is_not_wanted_any_more_is_found_by_the_digest() -> None:
    less = {**WANTED, "spec": {key: value for key, value in WANTED["spec"].items() if key != "list"}}
    where = diff.differs(diff.stamped(less), live())
    assert where == f".metadata.annotations.{names.APPLIED}"


QUANTITIES = {
    "1": "1", "250m": "0.25", "1k": "1000", "1Ki": "1024", "1.5Gi": "1610612736", "2G": "2000000000", "1e3": "1000",
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), QUANTITIES.items())
def test_quantities(text: str, value: str) -> None:
    assert quantity.parse(text) == Decimal(value)


def test_bytes_are_rounded_up() -> None:
    assert quantity.to_bytes("0.5") == 1
    assert quantity.to_bytes(7) == 7


@pytest.mark.parametrize("text", ["", "one", "1Xi", "Gi"])
def test_no_quantity(text: str) -> None:
    with pytest.raises(ResourceError, match="is not a quantity"):
        quantity.parse(text)


def test_other_things_are_no_quantities() -> None:
    assert not quantity.same({}, "1")
    assert not quantity.same("a", "b")
    assert quantity.same("1000m", 1)
