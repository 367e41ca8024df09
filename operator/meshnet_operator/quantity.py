"""Kubernetes quantities as numbers: "1.5Gi" is 1610612736, "250m" is 0.25."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from meshnet_operator.errors import ResourceError

BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def parse(text: str | int) -> Decimal:
    """The value. Raises ResourceError."""
    raw = str(text).strip()
    try:
        if raw[-2:] in BINARY:
            return Decimal(raw[:-2]) * BINARY[raw[-2:]]
        if raw[-1:] in DECIMAL:
            return Decimal(raw[:-1]).scaleb(DECIMAL[raw[-1]])
        return Decimal(raw)
    except InvalidOperation:
        raise ResourceError(f"{raw!r} is not a quantity such as 512Mi or 2Gi") from None


def to_bytes(text: str | int) -> int:
    """Whole bytes, rounded up."""
    return int(parse(text).to_integral_value(rounding="ROUND_CEILING"))


def same(one: object, other: object) -> bool:
    """Whether two values are one quantity: "1000m" and "1"."""
    if not isinstance(one, str | int) or not isinstance(other, str | int):
        return False
    try:
        return parse(one) == parse(other)
    except ResourceError:
        return False
