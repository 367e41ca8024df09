"""How long a group usually takes, to tell a slow batch from a hung one. Pure; times in seconds."""

from __future__ import annotations

_WEIGHT = 0.2


class Pace:
    """A moving average per kind: decode batches by the batch, chunks by the position."""

    def __init__(self) -> None:
        self._decode = 0.0
        self._position = 0.0

    def expected(self, positions: int, *, decode: bool) -> float:
        """0 before the first group of that kind."""
        return self._decode if decode else self._position * positions

    def took(self, seconds: float, positions: int, *, decode: bool) -> None:
        """Learn from a group that ended."""
        if decode:
            self._decode = _blend(self._decode, seconds)
        else:
            self._position = _blend(self._position, seconds / positions)


def _blend(old: float, new: float) -> float:
    return new if old == 0 else old + _WEIGHT * (new - old)
