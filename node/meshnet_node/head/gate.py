"""How many requests a head works on at once: counted in the step that checks, before any expensive work.

This bounds tokenizing and memory, not the shards: those refuse what does not fit when its sessions are opened. What
one key may have at once is a bound of the client's own, and says so: 429, not 503. Whose work began before the gate was
closed is served to its end, also what of it begins later: the next prompt of many.
"""

from __future__ import annotations

from collections import Counter

from meshnet_node.errors import ApiError, overloaded


class Gate:
    """`inside` is the number of requests that have entered and not left. per_key: None = no bound of its own.

    leaving: the head is going away; who comes now is still served, and its connection ends with the answer, so that the
    next request finds another head. closed: nobody is served any more who was not inside before.
    """

    def __init__(self, limit: int, per_key: int | None = None) -> None:
        self.inside = 0
        self.leaving = False
        self.closed = False
        self._limit = limit
        self._per_key = per_key
        self._by_key: Counter[str] = Counter()

    def enter(self, key: str = "") -> Slot:
        """key: the API key's fingerprint, "" where none is asked for. Raises ApiError: 503 when it is full, 429 when
        this key has its fill.
        """
        if self._per_key is not None and key and self._by_key[key] >= self._per_key:
            raise ApiError(
                f"this API key already has {self._per_key} requests in work on this head",
                status=429,
                type="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after=1,
            )
        if self.inside >= self._limit:
            raise overloaded(f"this head already works on {self._limit} requests")
        self.inside += 1
        self._by_key[key] += 1
        return Slot(self, key)

    def left(self, key: str) -> None:
        """For Slot.leave."""
        self.inside -= 1
        self._by_key[key] -= 1
        if not self._by_key[key]:
            del self._by_key[key]


class Slot:
    """A request's place; `leave` may be called more than once."""

    def __init__(self, gate: Gate, key: str) -> None:
        self._gate: Gate | None = gate
        self._key = key

    def begin(self) -> None:
        """The request was read, its work begins. Raises ApiError 503 when the head is going away."""
        if self._gate is not None and self._gate.closed:
            raise ApiError("this head is going away", status=503, type="server_error", code="not_ready", retry_after=1)

    def leave(self) -> None:
        if self._gate is not None:
            self._gate.left(self._key)
            self._gate = None
