"""Which sessions hold state here: opening, adopting, parking, leases, closing; docs/architecture.md, Sessions.

The event loop owns the store, so nothing here locks or waits; the clock is handed in. It knows neither the bytes of a
frame nor the model: states come from a `States`, room from the ledger.

Invariants: one entry per id; an active session is never evicted; a session whose chunk runs (`running`) changes only
when that chunk has ended (`settle`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic

from meshnet_node.cache.ledger import Ledger, Limits
from meshnet_node.cache.sessions import Ending, S, Session, States
from meshnet_node.errors import NotOwner, OverCapacity, SessionClosed, Stale, TooLarge
from meshnet_node.wire.frames import Close, Open

TOMBSTONE_SECONDS = 60.0
HTTP_OWNER = ""
"""Owner of sessions made by plain HTTP; no head's instance id is empty."""


class Store(Generic[S]):
    """`ended(reason)` is told of each session that goes away, or is parked without being asked to (metrics)."""

    def __init__(
        self, states: States[S], limits: Limits, clock: Callable[[], float], ended: Callable[[str], None]
    ) -> None:
        self._clock = clock
        self._ended = ended
        self._ledger = Ledger(states, limits, ended)
        self._tombstones: dict[str, tuple[int, float]] = {}
        self.limits = limits

    def __len__(self) -> int:
        return len(self._ledger.sessions)

    def sessions(self) -> Iterable[Session[S]]:
        return self._ledger.sessions.values()

    def find(self, session: str) -> Session[S] | None:
        return self._ledger.sessions.get(session)

    def is_closed(self, session: str, attempt: int) -> bool:
        """True where a close of this attempt or a later one came within the last minute (also of an unknown id)."""
        closed, until = self._tombstones.get(session, (-1, 0.0))
        return attempt <= closed and self._clock() < until

    @property
    def active(self) -> int:
        return sum(entry.active for entry in self.sessions())

    @property
    def bytes_held(self) -> int:
        return self._ledger.bytes_held

    @property
    def bytes_free(self) -> int:
        """What a new session could get: free bytes and those of parked sessions."""
        return self._ledger.bytes_free

    def open(self, request: Open, owner: str) -> Session[S]:
        """Create, or find again, a session for its owner; `Session.have` is what it may count on.

        Raises SessionClosed (a close came first), NotOwner, Stale, TooLarge (never fits) or OverCapacity. The session
        must not be running.
        """
        if self.is_closed(request.session, request.attempt):
            raise SessionClosed("the session was closed before this open")
        entry = self._ledger.sessions.get(request.session)
        entry = self._create(request, owner) if entry is None else self._reopen(entry, request, owner)
        entry.recovery = request.recovery
        entry.hops = max(1, request.hops)
        self._activate(entry)
        return entry

    def create_plain(self, session: str, start_layer: int, max_positions: int) -> Session[S]:
        """A session of the HTTP contract: no owner, no lease, replacing what its id held. Errors as for `open`."""
        old = self._ledger.sessions.get(session)
        if old is not None:
            self._check_owner(old, HTTP_OWNER)
            self.free(old, "replaced")
        self._tombstones.pop(session, None)
        entry = self._allocate(Open(session, 0, start_layer, max_positions), HTTP_OWNER)
        entry.leased = False
        return entry

    def enter_plain(self, entry: Session[S], max_positions: int) -> None:
        """A request of an HTTP session begins: room for max_positions, and until `park` it can't be evicted."""
        self._grow(entry, max_positions)
        entry.active = True

    def renew(self, owner: str) -> None:
        """A heartbeat of this owner: its active sessions live for another lease."""
        until = self._clock() + self.limits.lease_seconds
        for entry in self.sessions():
            if entry.active and entry.owner == owner:
                entry.lease_until = until

    def revive(self, entry: Session[S]) -> None:
        """A row of the owner came for a session that was parked when its lease lapsed: it is active again."""
        self._activate(entry)

    def close(self, request: Close, owner: str | None) -> None:
        """End the attempts of a session up to the close's; a running chunk is let end first. Idempotent.

        `owner` None = whoever it belongs to. keep parks it, cut to the largest position <= `at` at which it can stand
        (freed where that is 0). A kept session that adopted its state and never ran gives the state back to the id
        that it came from. Raises NotOwner.
        """
        entry = self.find(request.session)
        if entry is not None and owner is not None:
            self._check_owner(entry, owner)
        closed, _ = self._tombstones.get(request.session, (-1, 0.0))
        until = self._clock() + TOMBSTONE_SECONDS
        self._tombstones[request.session] = (max(closed, request.attempt), until)
        if entry is not None and entry.attempt <= request.attempt:
            self._end(entry, Ending("park" if request.keep else "free", "closed", request.at))

    def settle(self, entry: Session[S]) -> bool:
        """The running chunk ended: apply what was asked meanwhile. True when its result is not wanted any more."""
        entry.running = False
        entry.used_at = self._clock()
        ending, entry.ending = entry.ending, None
        if ending is None:
            return False
        self._end(entry, ending)
        return ending.how != "lapse"

    def park(self, entry: Session[S], reason: str = "") -> None:
        """Keep the state for reuse; from now on TTL, LRU and the limits may take it."""
        entry.active = False
        entry.lapsed = reason == "lapsed"
        entry.used_at = self._clock()
        if reason:
            self._ended(reason)

    def free(self, entry: Session[S], reason: str) -> None:
        """Forget a session and its state now."""
        self._ledger.free(entry, reason)

    def sweep(self) -> None:
        """What time brings: lapsed leases, parked sessions past their TTL, old tombstones."""
        now = self._clock()
        for entry in list(self.sessions()):
            if entry.active and entry.leased and entry.lease_until <= now:
                self._end(entry, Ending("lapse", "lapsed"))
            elif entry.evictable and entry.used_at + self.limits.ttl_seconds <= now:
                self.free(entry, "ttl")
        for session in [session for session, (_, until) in self._tombstones.items() if until <= now]:
            del self._tombstones[session]

    def check(self) -> None:
        """Raise IntegrityError where what is accounted is not what is held. Only meaningful while nothing runs."""
        self._ledger.check()

    def _create(self, request: Open, owner: str) -> Session[S]:
        source = self.find(request.source) if request.source else None
        if source is None or not self._usable(source, request, owner):
            return self._allocate(request, owner)
        if request.take == "fork":
            return self._fork(source, request, owner)
        return self._adopt(source, request, owner)

    @staticmethod
    def _usable(source: Session[S], request: Open, owner: str) -> bool:
        """Whether the source's state can go on as the new session: parked, or at rest where it is only copied."""
        fits = source.owner == owner and source.start_layer == request.start_layer and source.state is not None
        at_rest = not source.running and source.cut is None
        return fits and at_rest and (not source.active or request.take == "fork")

    def _fork(self, source: Session[S], request: Open, owner: str) -> Session[S]:
        """Copy the state; where there is no room for the copy, start from nothing."""
        original = source.state
        if original is None:
            return self._allocate(request, owner)
        try:
            state = self._ledger.duplicate(source, original, request.max_positions, count=not request.recovery)
        except (OverCapacity, TooLarge):
            return self._allocate(request, owner)
        entry = self._put(request, owner, state)
        entry.tape = source.tape.copy()
        entry.rewind(state.resumable(min(request.at, state.filled)))
        source.used_at = self._clock()
        return entry

    def _adopt(self, source: Session[S], request: Open, owner: str) -> Session[S]:
        """Move the state to the new id; where it is too small and can't grow within the limits, start from nothing."""
        try:
            self._grow(source, request.max_positions)
        except (OverCapacity, TooLarge):
            self.free(source, "bytes")
            return self._allocate(request, owner, count=False)
        donor = source.id
        self._ledger.rename(source, request.session)
        source.begin_attempt(request.attempt)
        source.cut, source.donor = request.at, donor
        return source

    def _grow(self, entry: Session[S], max_positions: int) -> None:
        """Room for max_positions in the entry's state; the old one stays until the copy is made."""
        old = entry.state
        if old is not None and old.capacity < max_positions:
            self._ledger.replace(entry, self._ledger.duplicate(entry, old, max_positions, count=False))

    def _reopen(self, entry: Session[S], request: Open, owner: str) -> Session[S]:
        self._check_owner(entry, owner)
        if request.attempt < entry.attempt:
            raise Stale(f"attempt {request.attempt} was given up, {entry.attempt} is current")
        if entry.start_layer != request.start_layer:
            self.free(entry, "replaced")
            return self._allocate(request, owner, count=False)
        self._grow(entry, request.max_positions)
        if request.attempt > entry.attempt:
            entry.begin_attempt(request.attempt)
        return entry

    def _allocate(self, request: Open, owner: str, *, count: bool = True) -> Session[S]:
        """An empty session, after making room for it; `count` False where it takes the place of another."""
        counted = count and not request.recovery
        state = self._ledger.allocate(request.max_positions, request.start_layer, count=counted)
        return self._put(request, owner, state)

    def _put(self, request: Open, owner: str, state: S | None) -> Session[S]:
        entry = Session(request.session, owner, request.start_layer, state, request.attempt)
        self._ledger.put(entry)
        self._activate(entry)
        return entry

    def _activate(self, entry: Session[S]) -> None:
        entry.active, entry.lapsed = True, False
        entry.used_at = self._clock()
        entry.lease_until = entry.used_at + self.limits.lease_seconds

    def _end(self, entry: Session[S], ending: Ending) -> None:
        if entry.running:
            if entry.ending is None or ending.how != "lapse":
                entry.ending = ending
        elif ending.how == "free":
            self.free(entry, ending.reason)
        elif ending.how == "lapse":
            self.park(entry, ending.reason)
        else:
            self._keep(entry, ending.at)

    def _keep(self, entry: Session[S], at: int | None) -> None:
        if entry.donor is not None and entry.cut is not None and entry.donor not in self._ledger.sessions:
            self._ledger.rename(entry, entry.donor)
            entry.cut = entry.donor = None
            self.park(entry)
            return
        stand = entry.have
        if at is not None and entry.state is not None:
            stand = entry.state.resumable(min(at, stand))
        if stand == 0:
            self.free(entry, "closed")
            return
        entry.rewind(stand)
        entry.cut, entry.reply, entry.recovery = None, None, False
        self.park(entry)

    @staticmethod
    def _check_owner(entry: Session[S], owner: str) -> None:
        if entry.owner != owner:
            raise NotOwner("the session belongs to another head")
