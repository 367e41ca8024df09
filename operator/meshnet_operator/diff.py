"""Whether an object must be applied: pure comparison of what should be there with what is.

The object carries the digest of what was applied last, so that a field which is not wanted any more is found; and
everything that is wanted is looked for in the live object, so that somebody else's change is found. Fields that only
others set are theirs. Nothing is written when nothing differs.
"""

from __future__ import annotations

from typing import Any

from meshnet_operator import names, quantity

# Below these keys "1000m" and "1" are the same.
QUANTITIES = ("limits", "requests", "sizeLimit", "storage")


def stamped(desired: dict[str, Any]) -> dict[str, Any]:
    """The object with its own digest as an annotation: what is sent."""
    metadata = desired["metadata"]
    annotations = {**metadata.get("annotations", {}), names.APPLIED: names.digest(desired, 16)}
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


def differs(desired: dict[str, Any], live: dict[str, Any]) -> str | None:
    """The path of the first difference between a stamped object and the live one; None where there is none."""
    return _differs(
        {key: value for key, value in desired.items() if key not in ("apiVersion", "kind")}, live, "", False
    )


def _differs(wanted: Any, found: Any, path: str, quantities: bool) -> str | None:
    if isinstance(wanted, dict):
        return _dictionaries(wanted, found, path, quantities)
    if isinstance(wanted, list):
        return _lists(wanted, found, path, quantities)
    if wanted == found or (quantities and quantity.same(wanted, found)):
        return None
    # The API server leaves out what is false, zero or empty.
    return None if not wanted and found is None else path


def _dictionaries(wanted: dict[str, Any], found: Any, path: str, quantities: bool) -> str | None:
    if found is None:
        found = {}
    if not isinstance(found, dict):
        return path
    for key, value in wanted.items():
        below = quantities or key in QUANTITIES
        if (at := _differs(value, found.get(key), f"{path}.{key}", below)) is not None:
            return at
    return None


def _lists(wanted: list[Any], found: Any, path: str, quantities: bool) -> str | None:
    if found is None:
        found = []
    if not isinstance(found, list) or len(wanted) != len(found):
        return path
    pairs = zip(wanted, found, strict=True)
    for index, (one, other) in enumerate(pairs):
        if (at := _differs(one, other, f"{path}[{index}]", quantities)) is not None:
            return at
    return None
