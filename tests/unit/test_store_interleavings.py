"""Any interleaving of opens, rows, closes, duplicates, late frames, silence, eviction and restart: no wrong state.

Heads here are careless on purpose: they send rows for any position of any content, old attempts, old steps, closes that
come late. Whatever they do, a row may only run on exactly the content that it claims; what is active stays; what is
freed is given back. Rows run in pieces, so that everything else can happen while one is on the model thread.
"""

from __future__ import annotations

import gc
import random
import weakref
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from meshnet_logstate import BYTES_PER_POSITION, FakeClock, Kind, LogState, LogStates

from meshnet_node.cache.ledger import Limits
from meshnet_node.cache.rows import Repeat, admit, answered, record, resume
from meshnet_node.cache.sessions import Session
from meshnet_node.cache.store import Store
from meshnet_node.errors import CacheMiss, OverCapacity, SessionClosed, WireError
from meshnet_node.wire.content import EMPTY, extend, pack_tokens
from meshnet_node.wire.frames import Close, Open, Row

HEADS = ["head-a", "head-b"]
NAMES = ["s0", "s1", "s2", "s3", "s4"]
CAPACITY = 48
MAX_POSITIONS, MAX_SESSIONS = 200, 3
CONTENTS = [list(range(100, 148)), [*range(100, 112), *range(200, 236)], list(range(300, 348))]

names, heads = st.sampled_from(NAMES), st.sampled_from(HEADS)
attempts = st.integers(1, 4)
contents = st.sampled_from(CONTENTS)


@dataclass
class Running:
    """A row with a piece on the model thread."""

    row: Row
    owner: str
    entry: Session[LogState]
    tokens: list[int]
    done: int
    piece: int


class Tracked(LogStates):
    """Remembers every state that it made, as long as somebody holds it."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind)
        self.alive: weakref.WeakSet[LogState] = weakref.WeakSet()

    def new_state(self, max_positions: int, start_layer: int | None = None) -> LogState:
        state = super().new_state(max_positions, start_layer)
        self.alive.add(state)
        return state


@dataclass
class Sent:
    """What was answered, and with which content it was asked."""

    replies: dict[tuple[str, int, int], object] = field(default_factory=dict)
    closed: dict[str, tuple[int, float]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)


class Interleavings(RuleBasedStateMachine):
    @initialize(kind=st.sampled_from(["plain", "window", "snapshots"]))
    def start(self, kind: Kind) -> None:
        self.kind = kind
        self.clock = FakeClock()
        self.running: list[Running] = []
        self.ran = self.repeated = self.resumed = 0
        self._begin()

    @rule(luck=st.integers(0, 9))
    def restart(self, luck: int) -> None:
        """Now and then a killed process: everything that it held is gone, whoever asks is told so."""
        if luck == 0:
            self._begin()

    def _begin(self) -> None:
        self.running.clear()
        self.states = Tracked(self.kind)
        limits = Limits(MAX_SESSIONS, MAX_POSITIONS * BYTES_PER_POSITION, ttl_seconds=60, lease_seconds=15)
        self.store: Store[LogState] = Store(self.states, limits, self.clock, lambda _: None)
        self.sent = Sent()
        self.recovering = 0

    @rule(
        name=names,
        head=heads,
        ahead=st.sampled_from([1, 1, 1, 0, -1, 3]),
        positions=st.sampled_from([5, CAPACITY, CAPACITY]),
        recovery=st.booleans(),
        source=st.none() | names | names,
        at=st.integers(0, CAPACITY),
        fork=st.booleans(),
        start=st.sampled_from([0, 0, 0, 2]),
    )
    def open(
        self,
        name: str,
        head: str,
        ahead: int,
        positions: int,
        recovery: bool,
        source: str | None,
        at: int,
        fork: bool,
        start: int,
    ) -> None:
        entry = self.store.find(name)
        newest = max(0, self._closed(name)) if entry is None else entry.attempt
        self._open(name, head, max(0, newest + ahead), positions, recovery, source, at, fork, start)

    def _open(
        self,
        name: str,
        head: str,
        attempt: int,
        positions: int,
        recovery: bool,
        source: str | None,
        at: int,
        fork: bool,
        start: int,
    ) -> None:
        entry = self.store.find(name)
        if (entry is not None and entry.running) or self._runs(source):
            return  # the engine waits for the running piece first
        before = self._active()
        closed = self._closed(name) >= attempt
        request = Open(name, attempt, start, positions, recovery, 1, source, at, "fork" if fork else "adopt")
        try:
            opened = self.store.open(request, head)
        except SessionClosed:
            assert closed
            return
        except OverCapacity:
            self._none_lost(before, but=name)
            return
        except WireError:
            return
        assert not closed
        assert opened.owner == head
        assert opened.have <= len(opened.tape)
        self.recovering += recovery
        self.resumed += opened.have > 0
        self._none_lost(before, but=name)

    @rule(name=names, head=heads, attempt=attempts, step=st.integers(0, 3), past=st.integers(0, 40), tokens=contents)
    def wild_row(self, name: str, head: str, attempt: int, step: int, past: int, tokens: list[int]) -> None:
        """A row of anything for anything."""
        self._row(name, head, attempt, step, past, 1, 1, tokens)

    @rule(
        pick=st.integers(0, 9),
        attempt=st.sampled_from([0, 0, 0, 0, 1, -1]),
        step=st.sampled_from([1, 1, 1, 1, 0, -1]),
        back=st.sampled_from([0, 0, 0, 0, 1, 3, 9, 48, -2]),
        n=st.integers(1, 24),
        piece=st.integers(1, 24),
        other=st.sampled_from([None, None, None, *CONTENTS]),
        at_once=st.booleans(),
    )
    def row(
        self,
        pick: int,
        attempt: int,
        step: int,
        back: int,
        n: int,
        piece: int,
        other: list[int] | None,
        at_once: bool,
    ) -> None:
        """A row that goes on from what a session holds, or nearly; where nothing rests here, a session for it."""
        resting = [entry for entry in self.store.sessions() if not entry.running]
        if len(resting) <= pick % 2:
            self._open(NAMES[pick % 5], HEADS[pick % 2], 1, CAPACITY, False, None, 0, False, 0)
            return
        entry = resting[pick % len(resting)]
        past = min(max(0, entry.have - back), CAPACITY - 1)
        held = entry.state.tokens[:past] if entry.state is not None else []
        fitting = [tokens for tokens in CONTENTS if tokens[:past] == held] or CONTENTS
        tokens = other or fitting[pick % len(fitting)]
        n = min(n, CAPACITY - past)
        at = max(0, entry.step + step)
        waiting = len(self.running)
        self._row(entry.id, entry.owner, entry.attempt + attempt, at, past, n, n if at_once else min(piece, n), tokens)
        if at_once and len(self.running) > waiting:
            self._piece_ends(self.running.pop(), fails=False)

    def _row(
        self, name: str, head: str, attempt: int, step: int, past: int, n: int, piece: int, tokens: list[int]
    ) -> None:
        entry = self.store.find(name)
        if entry is not None and entry.running:
            return  # one row of a session at a time
        content = [EMPTY, *extend(EMPTY, tokens[:past])][past]
        given = Row(name, attempt, step, past, n, content, pack_tokens(tokens[past : past + n]))
        held = None if entry is None or entry.state is None else list(entry.state.tokens)
        try:
            verdict = admit(self.store, given, head)
        except CacheMiss as miss:
            self._missed(miss, entry, held)
            return
        except WireError:
            return
        if isinstance(verdict, Repeat):
            self.repeated += 1
            assert verdict.reply is self.sent.replies[name, attempt, step]
            return
        self.ran += 1
        session = verdict.session
        assert session.state is not None
        assert session.owner == head
        assert self._closed(name) < attempt
        assert session.state.tokens == tokens[:past], "a row may run on exactly the content that it claims"
        self.running.append(Running(given, head, session, tokens, 0, piece))

    def _missed(self, miss: CacheMiss, entry: Session[LogState] | None, held: list[int] | None) -> None:
        """A miss promises no more than is there, and changes nothing."""
        assert miss.have is not None
        assert 0 <= miss.have <= len(held or [])
        if entry is not None and entry.state is not None:
            assert entry.state.tokens == held

    @rule(pick=st.integers(0, 9), fails=st.sampled_from([False, False, False, False, False, True]))
    def piece_ends(self, pick: int, fails: bool) -> None:
        if self.running:
            self._piece_ends(self.running.pop(pick % len(self.running)), fails)

    def _piece_ends(self, work: Running, fails: bool) -> None:
        session, state = work.entry, work.entry.state
        assert state is not None
        if fails:
            state.tokens.append(-1)
            session.running, session.ending = False, None
            self.store.free(session, "fault")
            return
        at = work.row.past_len + work.done
        ids = work.tokens[at : at + work.piece]
        state.tokens += ids
        record(session, ids)
        if self.store.settle(session):
            assert self.sent.ended[work.row.session] >= work.row.attempt
            return
        done = work.done + work.piece
        if done == work.row.n:
            reply = object()
            answered(session, work.row, reply)
            self.sent.replies[work.row.session, work.row.attempt, work.row.step] = reply
            return
        self._next_piece(work, done)

    def _next_piece(self, work: Running, done: int) -> None:
        try:
            resume(self.store, work.row, work.owner, work.entry, done)
        except WireError:
            return
        assert work.entry.state is not None
        assert work.entry.state.tokens == work.tokens[: work.row.past_len + done]
        piece = min(work.piece, work.row.n - done)
        self.running.append(Running(work.row, work.owner, work.entry, work.tokens, done, piece))

    @rule(
        name=names,
        head=heads,
        attempt=attempts,
        keep=st.sampled_from([True, True, False]),
        at=st.none() | st.integers(0, CAPACITY),
    )
    def close(self, name: str, head: str, attempt: int, keep: bool, at: int | None) -> None:
        before = self._active()
        try:
            self.store.close(Close(name, attempt, keep, at), head)
        except WireError:
            assert self._active() == before
            return
        self.sent.ended[name] = max(attempt, self.sent.ended.get(name, -1))
        self.sent.closed[name] = (max(attempt, self._closed(name)), self.clock.now + 60)
        entry = self.store.find(name)
        if entry is not None and entry.attempt <= attempt:
            assert not entry.active or entry.ending is not None
        self._none_lost(before, but=name)

    @rule(seconds=st.sampled_from([1, 10, 16, 61]), head=st.none() | heads)
    def time_passes(self, seconds: int, head: str | None) -> None:
        self.clock.now += seconds
        kept = {} if head is None else self._active(head)
        if head is not None:
            self.store.renew(head)
        self.store.sweep()
        self._none_lost(kept, but=None)

    @invariant()
    def accounts_are_right(self) -> None:
        held = sum(entry.nbytes for entry in self.store.sessions())
        assert held == self.store.bytes_held <= MAX_POSITIONS * BYTES_PER_POSITION
        assert len(self.store) <= MAX_SESSIONS + self.recovering
        running = {id(work.entry) for work in self.running}
        assert {id(entry) for entry in self.store.sessions() if entry.running} == running
        if not running:
            self.store.check()

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for work in self.running:
            work.entry.running, work.entry.ending = False, None
            self.store.free(work.entry, "fault")
        self.running.clear()
        self.clock.now += 1000
        self.store.sweep()
        self.clock.now += 1000
        self.store.sweep()
        assert len(self.store) == 0
        assert self.store.bytes_held == 0
        if self.states.alive:
            gc.collect()
        assert not list(self.states.alive), "a freed state is still held by somebody"

    def _closed(self, name: str) -> int:
        """The newest attempt that a close of the last minute spoke of."""
        attempt, until = self.sent.closed.get(name, (-1, 0.0))
        return attempt if self.clock.now < until else -1

    def _runs(self, name: str | None) -> bool:
        entry = None if name is None else self.store.find(name)
        return entry is not None and entry.running

    def _active(self, owner: str | None = None) -> dict[str, int]:
        found = [e for e in self.store.sessions() if e.active and owner in (None, e.owner)]
        return {entry.id: entry.filled for entry in found}

    def _none_lost(self, before: dict[str, int], but: str | None) -> None:
        """What was active still is, with as much as it held."""
        now = self._active()
        for name, filled in before.items():
            assert name == but or now[name] == filled


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=25,
    stateful_step_count=50,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("kind", ["plain", "window", "snapshots"])
def test_a_long_walk(kind: Kind) -> None:
    """The same machine, driven by plain chance through far more steps than a search for small examples takes."""
    luck = random.Random(kind)
    machine = Interleavings()
    machine.start(kind=kind)
    for _ in range(6000):
        _step(machine, luck)
        machine.accounts_are_right()
    assert machine.ran > 500
    assert machine.repeated > 20
    assert machine.resumed > 20
    machine.teardown()


def _step(machine: Interleavings, luck: random.Random) -> None:
    name, head, at = luck.choice(NAMES), luck.choice(HEADS[:1] * 5 + HEADS), luck.randint(0, CAPACITY)
    match luck.choices(["open", "row", "ends", "wild", "close", "time", "kill"], [6, 20, 10, 2, 2, 2, 0.03])[0]:
        case "open":
            source = luck.choice([None, *NAMES])
            ahead, start = luck.choice([1, 1, 1, 0, -1, 3]), luck.choice([0] * 9 + [2])
            positions, recovery = luck.choice([5, CAPACITY, CAPACITY]), luck.random() < 0.1
            machine.open(name, head, ahead, positions, recovery, source, at, luck.random() < 0.5, start)
        case "row":
            pick, attempt = luck.randint(0, 9), luck.choice([0] * 8 + [1, -1])
            step, back = luck.choice([1] * 6 + [0, 0, -1]), luck.choice([0] * 6 + [1, 3, 9, 48, -2])
            n, piece, other = luck.randint(1, 24), luck.randint(1, 24), luck.choice([None] * 6 + CONTENTS)
            machine.row(pick, attempt, step, back, n, piece, other, luck.random() < 0.6)
        case "ends":
            machine.piece_ends(luck.randint(0, 9), luck.random() < 0.02)
        case "wild":
            machine.wild_row(name, head, luck.randint(1, 4), luck.randint(0, 3), min(at, 40), luck.choice(CONTENTS))
        case "close":
            machine.close(name, head, luck.choice([1, 2, 9, 99]), luck.random() < 0.8, luck.choice([None, at]))
        case "time":
            machine.time_passes(luck.choice([1, 1, 10, 16, 61]), luck.choice([None, *HEADS]))
        case "kill":
            machine.restart(0)
