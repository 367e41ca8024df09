"""What each hop put out, by position: the logs from which a lost hop is brought up again.

A log is keyed by the layer that it feeds. It is write-once: rows that it holds already are never overwritten, so a
recomputed output can't change what later hops have seen. A log that was dropped (budget) still carries the rows that
the next hop has not consumed, and is not used for replay until it was rebuilt from position 0: never a suffix.

Owners: a generation owns its logs; ReplayBudget only decides which of them is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshnet_node.errors import BadFrame
from meshnet_node.wire.codec import tensor_bytes
from meshnet_node.wire.frames import TensorSpec


class BoundaryLog:
    """Rows [base, end) of one boundary; `base` 0 means complete. Tensors have the positions as their second axis.

    consumed: the position that the next hop has reached (`consumed_to`); rows from there on are never dropped.
    parked: it waits with its session for the next turn, and is dropped before those of running generations.
    """

    def __init__(self, budget: ReplayBudget) -> None:
        self.base = 0
        self.end = 0
        self.consumed = 0
        self.parked = False
        self._specs: list[TensorSpec] = []
        self._data: list[bytearray] = []
        self._budget = budget
        budget.add(self)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(map(len, self._data))

    def put(self, start: int, n: int, specs: Sequence[TensorSpec], tensors: Sequence[memoryview]) -> None:
        """Keep the rows of [start, start + n) that are new. Raises BadFrame for a gap or another schema."""
        if start > self.end:
            raise BadFrame(f"output for positions from {start} on, but the log ends at {self.end}")
        if not self._specs:
            self._specs = [TensorSpec(spec.name, spec.dtype, [1, 1, *spec.shape[2:]]) for spec in specs]
            self._data = [bytearray() for _ in specs]
        for spec, own in zip(specs, self._specs, strict=True):
            if (spec.name, spec.dtype, spec.shape) != (own.name, own.dtype, [1, n, *own.shape[2:]]):
                raise BadFrame(f"output {spec.name} {spec.dtype} {spec.shape} does not fit {own.name} {own.dtype}")
        skip = self.end - start
        if skip >= n:
            return
        for own, held, new in zip(self._specs, self._data, tensors, strict=True):
            held += new[skip * tensor_bytes(own) :]
        self.end = start + n
        self._budget.check()

    def begin_at(self, position: int) -> None:
        """The producer starts with `position` positions that it computed for an earlier generation: a dropped log."""
        self.base = self.end = position

    def rows(self, start: int, stop: int) -> tuple[list[TensorSpec], list[bytes]]:
        """Specs and bytes of the positions [start, stop), which must be held."""
        specs, parts = [], []
        for own, held in zip(self._specs, self._data, strict=True):
            row = tensor_bytes(own)
            specs.append(TensorSpec(own.name, own.dtype, [1, stop - start, *own.shape[2:]]))
            parts.append(bytes(held[(start - self.base) * row : (stop - self.base) * row]))
        return specs, parts

    def consumed_to(self, position: int) -> None:
        """The next hop is at `position` now (it may have gone back); a dropped log gives up the rows before it."""
        self.consumed = position
        if self.base:
            self.drop()

    def drop(self) -> None:
        """Give back the rows that the next hop has consumed."""
        keep = max(self.base, min(self.consumed, self.end))
        for own, held in zip(self._specs, self._data, strict=True):
            del held[: (keep - self.base) * tensor_bytes(own)]
        self.base = keep

    def restart(self) -> None:
        """Forget all rows: the producer starts again from position 0."""
        self.base = self.end = 0
        self._data = [bytearray() for _ in self._specs]

    def cut(self, end: int) -> None:
        """Forget the rows from `end` on."""
        if end >= self.end:
            return
        self.end = max(self.base, end)
        for own, held in zip(self._specs, self._data, strict=True):
            del held[(self.end - self.base) * tensor_bytes(own) :]

    def release(self) -> None:
        """The generation is over."""
        self._budget.remove(self)
        self._data = []
        self._specs = []


class ReplayBudget:
    """The bytes that all boundary logs of a head may hold; over it parked logs are dropped, then the longest."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.dropped = 0
        self._logs: set[BoundaryLog] = set()

    @property
    def nbytes(self) -> int:
        """Bytes held by all logs."""
        return sum(held.nbytes for held in self._logs)

    def add(self, log: BoundaryLog) -> None:
        """Count this log from now on."""
        self._logs.add(log)

    def remove(self, log: BoundaryLog) -> None:
        """Count this log no more."""
        self._logs.discard(log)

    def check(self) -> None:
        """Drop the longest logs until the rest fits."""
        while self.nbytes > self.limit:
            candidates = [held for held in self._logs if min(held.consumed, held.end) > held.base]
            if not candidates:
                return
            victim = max(candidates, key=lambda held: (held.parked, held.nbytes))
            victim.drop()
            self.dropped += 1
