"""Arithmetic on step times: pure functions, seconds in, rounded numbers for people out."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

EDGE = 10


def rate(steps: Sequence[float]) -> float:
    """Tokens a second of one stream, from the times between its tokens."""
    return len(steps) / sum(steps)


def flatness(steps: Sequence[float]) -> float:
    """The last ten steps beside the first ten: near 1 where a step costs the same at any length. With fewer than twenty
    steps, the later half beside the earlier."""
    edge = min(EDGE, len(steps) // 2)
    return mean(steps[-edge:]) / mean(steps[:edge])


def ms(seconds: float) -> float:
    """Milliseconds, to a hundredth."""
    return round(seconds * 1000, 2)


def ratio(ours: float, theirs: float) -> float:
    """ours / theirs to three digits after the point."""
    return round(ours / theirs, 3)


def middle(values: Sequence[float], digits: int = 2) -> float:
    """The median."""
    return round(median(values), digits)
