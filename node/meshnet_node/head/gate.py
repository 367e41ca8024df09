"""How many requests a head works on at once: counted in the step that checks, before any expensive work.

This bounds tokenizing and memory, not the shards: those refuse what does not fit when its sessions are opened.
"""

from __future__ import annotations

from meshnet_node.errors import overloaded


class Gate:
    """`inside` is the number of requests that have entered and not left."""

    def __init__(self, limit: int) -> None:
        self.inside = 0
        self._limit = limit

    def enter(self) -> Slot:
        """Raises ApiError 503 when it is full."""
        if self.inside >= self._limit:
            raise overloaded(f"this head already works on {self._limit} requests")
        self.inside += 1
        return Slot(self)


class Slot:
    """A request's place; `leave` may be called more than once."""

    def __init__(self, gate: Gate) -> None:
        self._gate: Gate | None = gate

    def leave(self) -> None:
        if self._gate is not None:
            self._gate.inside -= 1
            self._gate = None
