"""The accounts of a shard: which sessions hold how many bytes, and who has to go when another needs room.

Invariants: `bytes_held` is the sum of the sessions' allocated bytes and never exceeds max_bytes (a state that grows is
counted twice while it is copied); only parked sessions that do not run are evicted, least recently used first, and none
where that would not be enough anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from meshnet_node.cache.sessions import S, Session, States
from meshnet_node.errors import IntegrityError, OverCapacity, TooLarge


@dataclass(frozen=True)
class Limits:
    """max_sessions counts active and parked; max_bytes is of allocated state; times in seconds."""

    max_sessions: int
    max_bytes: int
    ttl_seconds: float
    lease_seconds: float


class Ledger(Generic[S]):
    """`ended(reason)` is told of each session that goes away."""

    def __init__(self, states: States[S], limits: Limits, ended: Callable[[str], None]) -> None:
        self._states = states
        self._ended = ended
        self.limits = limits
        self.sessions: dict[str, Session[S]] = {}
        self.bytes_held = 0

    @property
    def bytes_free(self) -> int:
        """What a new session could get: free bytes and those of parked sessions."""
        return self.limits.max_bytes - sum(e.nbytes for e in self.sessions.values() if not e.evictable)

    def allocate(self, max_positions: int, start_layer: int, *, count: bool) -> S | None:
        """A new state, after making room for it; None where the model keeps no state. Raises TooLarge, OverCapacity."""
        need = self._need(max_positions, start_layer)
        self.make_room(need, count=count, spare=None)
        return self._new(lambda: self._states.new_state(max_positions, start_layer)) if need else None

    def duplicate(self, source: Session[S], state: S, capacity: int, *, count: bool) -> S:
        """A copy of the source's state, after making room for it beside the source. Raises TooLarge, OverCapacity."""
        capacity = max(capacity, state.filled)
        self.make_room(self._need(capacity, source.start_layer), count=count, spare=source)
        return self._new(lambda: state.copy(capacity))

    def put(self, entry: Session[S]) -> None:
        self.sessions[entry.id] = entry
        self.bytes_held += entry.nbytes

    def rename(self, entry: Session[S], name: str) -> None:
        """The same state under another id."""
        del self.sessions[entry.id]
        entry.id = name
        self.sessions[name] = entry

    def replace(self, entry: Session[S], state: S) -> None:
        """Give an entry another state; its old one is released."""
        self.bytes_held += state.nbytes - entry.nbytes
        entry.state = state

    def free(self, entry: Session[S], reason: str) -> None:
        """Forget a session and its state now."""
        if self.sessions.get(entry.id) is not entry:
            return
        del self.sessions[entry.id]
        self.bytes_held -= entry.nbytes
        entry.state = None
        entry.tape.cut(0)
        entry.active = False
        self._ended(reason)

    def make_room(self, need: int, *, count: bool, spare: Session[S] | None) -> None:
        """Evict until `need` bytes, and with `count` one more session, fit; never `spare`, which is about to be used
        (exo PR#2251). Raises OverCapacity."""
        victims = [entry for entry in self.sessions.values() if entry.evictable and entry is not spare]
        victims.sort(key=lambda entry: entry.used_at)
        freed, number = 0, 0
        while not self._fits(need - freed, number, count):
            if number == len(victims):
                active = sum(entry.active for entry in self.sessions.values())
                raise OverCapacity(f"{active} sessions are active, {self.bytes_held} bytes are held")
            freed += victims[number].nbytes
            number += 1
        for victim in victims[:number]:
            self.free(victim, "bytes" if self.bytes_held + need > self.limits.max_bytes else "lru")

    def check(self) -> None:
        """Raise IntegrityError where what is accounted is not what is held. Only meaningful while nothing runs."""
        held = sum(entry.nbytes for entry in self.sessions.values())
        if held != self.bytes_held:
            raise IntegrityError(f"{self.bytes_held} bytes accounted, {held} held")
        if held > self.limits.max_bytes:
            raise IntegrityError(f"{held} bytes held, {self.limits.max_bytes} allowed")
        for name, entry in self.sessions.items():
            if entry.running or entry.ending is not None or entry.id != name:
                raise IntegrityError(f"session {name} is marked as running or ending, or has another id")
            if len(entry.tape) != entry.filled:
                raise IntegrityError(f"session {name}: tape of {len(entry.tape)}, state of {entry.filled}")
            if entry.state is not None:
                try:
                    entry.state.check()
                except RuntimeError as error:
                    raise IntegrityError(f"session {name}: {error}") from error

    def _fits(self, need: int, fewer: int, count: bool) -> bool:
        crowded = count and len(self.sessions) - fewer >= self.limits.max_sessions
        return not crowded and self.bytes_held + need <= self.limits.max_bytes

    def _need(self, max_positions: int, start_layer: int) -> int:
        need = self._states.state_bytes(max_positions, start_layer)
        if need > self.limits.max_bytes:
            raise TooLarge(f"{max_positions} positions need {need} bytes, the limit is {self.limits.max_bytes}")
        return need

    @staticmethod
    def _new(make: Callable[[], S]) -> S:
        try:
            return make()
        except (MemoryError, RuntimeError) as error:
            raise OverCapacity(f"the device has no memory for the state: {error}") from error
