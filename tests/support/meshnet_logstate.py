"""A session state whose content can be read: it remembers the ids it took in. Stands beside the real states, whose
tensors can't be told right from wrong without a model; kinds differ in where they can be cut back to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["plain", "window", "snapshots"]

BYTES_PER_POSITION = 10
WINDOW, SNAPSHOT_EVERY = 4, 8


@dataclass(eq=False)
class LogState:
    """plain: any position; window: at most WINDOW back; snapshots: multiples of SNAPSHOT_EVERY. 0 is always there."""

    capacity: int
    kind: Kind
    tokens: list[int] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return self.capacity * BYTES_PER_POSITION

    @property
    def filled(self) -> int:
        return len(self.tokens)

    def resumable(self, position: int) -> int:
        position = min(position, self.filled)
        if position == self.filled or self.kind == "plain":
            return position
        if self.kind == "window":
            return position if self.filled - position <= WINDOW else 0
        return position - position % SNAPSHOT_EVERY

    def rewind(self, position: int) -> None:
        if self.resumable(position) != position:
            raise RuntimeError(f"can't stand at {position}")
        del self.tokens[position:]

    def copy(self, capacity: int) -> LogState:
        if capacity < self.filled:
            raise RuntimeError("too small")
        return LogState(capacity, self.kind, list(self.tokens))

    def check(self) -> None:
        if self.filled > self.capacity:
            raise RuntimeError("overfull")


@dataclass
class LogStates:
    """The factory. `made`: how many states it gave out."""

    kind: Kind = "plain"
    made: int = 0
    fails: bool = False

    def state_bytes(self, max_positions: int, start_layer: int | None = None) -> int:
        return max_positions * BYTES_PER_POSITION

    def new_state(self, max_positions: int, start_layer: int | None = None) -> LogState:
        if self.fails:
            raise MemoryError("no memory on the device")
        self.made += 1
        return LogState(max_positions, self.kind)


class FakeClock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
