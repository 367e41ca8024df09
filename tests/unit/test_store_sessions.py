"""Opening, parking, adopting, evicting: who keeps a place, and who has to go."""

from __future__ import annotations

from collections import Counter

import pytest
from meshnet_logstate import BYTES_PER_POSITION, FakeClock, Kind, LogState, LogStates

from meshnet_node.cache.ledger import Limits
from meshnet_node.cache.sessions import Session
from meshnet_node.cache.store import Store
from meshnet_node.errors import IntegrityError, NotOwner, OverCapacity, SessionClosed, Stale, TooLarge
from meshnet_node.wire.frames import Close, Open

HEAD, OTHER = "head-a", "head-b"


class Shard:
    """A store with its clock and what it told about sessions that ended."""

    def __init__(self, kind: Kind = "plain", max_sessions: int = 3, max_positions: int = 1000) -> None:
        self.clock = FakeClock()
        self.states = LogStates(kind)
        self.ended: Counter[str] = Counter()
        limits = Limits(max_sessions, max_positions * BYTES_PER_POSITION, ttl_seconds=600, lease_seconds=15)
        self.store: Store[LogState] = Store(self.states, limits, self.clock, lambda reason: self.ended.update([reason]))

    def open(self, session: str, attempt: int = 1, positions: int = 100, owner: str = HEAD, **fields: object) -> int:
        start = fields.pop("start_layer", 0)
        return self.store.open(Open(session, attempt, start, positions, **fields), owner).have  # type: ignore[arg-type]

    def fill(self, session: str, count: int) -> Session[LogState]:
        """Tokens 0, 1, 2 ... at the end of what the session holds, as if a row had run."""
        entry = self.store.find(session)
        assert entry is not None
        assert entry.state is not None
        ids = list(range(entry.filled, entry.filled + count))
        entry.state.tokens += ids
        entry.tape.append(ids)
        entry.cut = None
        return entry

    def parked(self, session: str, count: int = 10, **fields: object) -> None:
        self.open(session, **fields)  # type: ignore[arg-type]
        self.fill(session, count)
        self.close(session, keep=True)
        self.clock.now += 1

    def close(
        self, session: str, attempt: int = 1, keep: bool = False, at: int | None = None, owner: str = HEAD
    ) -> None:
        self.store.close(Close(session, attempt, keep, at), owner)

    def ids(self) -> set[str]:
        return {entry.id for entry in self.store.sessions()}


def test_an_open_reserves_the_bytes_of_all_its_positions() -> None:
    shard = Shard()
    assert shard.open("a", positions=70) == 0
    assert shard.store.bytes_held == 70 * BYTES_PER_POSITION
    assert shard.store.active == 1
    shard.close("a")
    assert shard.store.bytes_held == 0
    assert len(shard.store) == 0
    shard.store.check()


def test_the_same_open_again_answers_what_is_there() -> None:
    shard = Shard()
    shard.open("a")
    shard.fill("a", 12)
    assert shard.open("a") == 12
    assert shard.open("a", attempt=4) == 12
    assert shard.states.made == 1


def test_an_open_of_a_lower_attempt_is_stale() -> None:
    shard = Shard()
    shard.open("a", attempt=5)
    with pytest.raises(Stale):
        shard.open("a", attempt=4)


def test_another_head_is_not_the_owner() -> None:
    shard = Shard()
    shard.open("a")
    with pytest.raises(NotOwner):
        shard.open("a", attempt=9, owner=OTHER)
    with pytest.raises(NotOwner):
        shard.close("a", attempt=9, owner=OTHER)
    assert shard.store.active == 1


def test_a_new_start_layer_replaces_the_old_state() -> None:
    shard = Shard()
    shard.open("a")
    shard.fill("a", 12)
    assert shard.open("a", attempt=2, start_layer=3) == 0
    assert len(shard.store) == 1
    assert shard.ended["replaced"] == 1
    shard.store.check()


def test_a_longer_reservation_keeps_the_content() -> None:
    shard = Shard()
    shard.open("a", positions=20)
    shard.fill("a", 20)
    assert shard.open("a", attempt=2, positions=200) == 20
    assert shard.store.bytes_held == 200 * BYTES_PER_POSITION
    shard.store.check()


def test_active_sessions_are_never_evicted() -> None:
    shard = Shard(max_sessions=2)
    shard.open("a")
    shard.open("b")
    with pytest.raises(OverCapacity):
        shard.open("c")
    assert shard.ids() == {"a", "b"}


def test_any_open_evicts_parked_sessions_the_least_recently_used_first() -> None:
    shard = Shard(max_sessions=3)
    for name in ("a", "b", "c"):
        shard.parked(name)
    shard.open("d")
    assert shard.ids() == {"b", "c", "d"}
    assert shard.ended["lru"] == 1


def test_bytes_evict_too_and_only_as_many_as_are_needed() -> None:
    shard = Shard(max_sessions=10, max_positions=300)
    for name in ("a", "b", "c"):
        shard.parked(name)
    shard.open("d", positions=150)
    assert shard.ids() == {"c", "d"}
    assert shard.ended["bytes"] == 2


def test_nothing_is_evicted_for_an_open_that_is_refused_anyway() -> None:
    shard = Shard(max_sessions=10, max_positions=300)
    shard.open("active", positions=200)
    shard.parked("p")
    with pytest.raises(OverCapacity):
        shard.open("big", positions=150)
    assert shard.ids() == {"active", "p"}


def test_what_can_never_fit_is_too_large_and_not_over_capacity() -> None:
    with pytest.raises(TooLarge):
        Shard(max_positions=300).open("a", positions=301)


def test_recovery_is_bound_by_bytes_and_not_by_count() -> None:
    shard = Shard(max_sessions=1, max_positions=250)
    shard.open("a")
    assert shard.open("b", recovery=True) == 0
    with pytest.raises(OverCapacity):
        shard.open("c", recovery=True)


def test_memory_that_the_device_refuses_is_over_capacity() -> None:
    shard = Shard()
    shard.states.fails = True
    with pytest.raises(OverCapacity):
        shard.open("a")
    assert len(shard.store) == 0
    shard.store.check()


def test_a_silent_head_loses_its_lease_and_its_session_is_parked() -> None:
    shard = Shard()
    shard.open("a")
    shard.open("b", owner=OTHER)
    shard.fill("a", 5)
    shard.clock.now += 10
    shard.store.renew(OTHER)
    shard.clock.now += 6
    shard.store.sweep()
    assert shard.store.active == 1
    assert shard.ended == {"lapsed": 1}
    assert shard.open("a") == 5
    assert shard.store.active == 2


def test_a_parked_session_lives_for_its_ttl() -> None:
    shard = Shard()
    shard.parked("a")
    shard.clock.now += 598
    shard.store.sweep()
    assert shard.ids() == {"a"}
    shard.clock.now += 2
    shard.store.sweep()
    assert shard.ids() == set()
    assert shard.ended["ttl"] == 1


def test_an_active_session_outlives_the_ttl() -> None:
    shard = Shard()
    shard.open("a")
    for _ in range(200):
        shard.clock.now += 10
        shard.store.renew(HEAD)
        shard.store.sweep()
    assert shard.store.active == 1


def test_a_close_stops_opens_of_its_attempts_also_of_an_unknown_id() -> None:
    shard = Shard()
    shard.close("a", attempt=3)
    with pytest.raises(SessionClosed):
        shard.open("a", attempt=3)
    assert shard.open("a", attempt=4) == 0


def test_a_late_close_does_not_end_a_higher_attempt() -> None:
    shard = Shard()
    shard.open("a", attempt=2)
    shard.close("a", attempt=1)
    assert shard.store.active == 1


def test_a_tombstone_is_forgotten_after_a_minute() -> None:
    shard = Shard()
    shard.close("a", attempt=3)
    shard.clock.now += 61
    shard.store.sweep()
    assert shard.open("a", attempt=1) == 0


@pytest.mark.parametrize(
    ("kind", "at", "held"),
    [("plain", 7, 7), ("plain", 99, 20), ("snapshots", 19, 16), ("snapshots", 7, None), ("window", 3, None)],
    ids=["cut", "beyond the end", "to a snapshot", "before the first snapshot", "before the window"],
)
def test_close_keeps_what_it_can_up_to_a_position(kind: Kind, at: int, held: int | None) -> None:
    shard = Shard(kind)
    shard.open("a")
    shard.fill("a", 20)
    shard.close("a", keep=True, at=at)
    entry = shard.store.find("a")
    assert (entry.filled if entry else None) == held
    shard.store.check()


def test_an_empty_session_is_not_worth_parking() -> None:
    shard = Shard()
    shard.open("a")
    shard.close("a", keep=True)
    assert len(shard.store) == 0


def test_adopting_moves_the_state_and_answers_where_it_goes_on() -> None:
    shard = Shard(max_sessions=1)
    shard.parked("old", 20)
    assert shard.open("new", source="old", at=15) == 15
    assert shard.ids() == {"new"}
    assert shard.states.made == 1
    shard.store.check()


def test_adopting_never_misses() -> None:
    shard = Shard(max_sessions=6)
    assert shard.open("new", source="unknown", at=15) == 0
    shard.parked("of another", owner=HEAD)
    assert shard.open("theirs", source="of another", at=5, owner=OTHER) == 0
    shard.open("active")
    shard.fill("active", 9)
    assert shard.open("thief", source="active", at=5) == 0
    assert shard.ids() == {"new", "of another", "theirs", "active", "thief"}


def test_adopting_with_a_longer_reservation_grows_within_the_limits() -> None:
    shard = Shard(max_positions=500)
    shard.parked("old", 20)
    assert shard.open("new", source="old", at=20, positions=300) == 20
    assert shard.store.bytes_held == 300 * BYTES_PER_POSITION
    shard.store.check()


def test_adopting_what_can_not_grow_starts_from_nothing() -> None:
    shard = Shard(max_positions=500)
    shard.parked("old", 20)
    assert shard.open("new", source="old", at=20, positions=450) == 0
    assert shard.ids() == {"new"}
    shard.store.check()


def test_a_rolled_back_adoption_gives_the_state_back() -> None:
    shard = Shard()
    shard.parked("old", 20)
    shard.open("new", source="old", at=15)
    shard.close("new", keep=True)
    assert shard.ids() == {"old"}
    assert shard.store.active == 0
    assert shard.open("next", source="old", at=20) == 20
    shard.store.check()


def test_a_fork_copies_and_leaves_the_source() -> None:
    shard = Shard()
    shard.parked("old", 20)
    assert shard.open("one", source="old", at=15, take="fork") == 15
    assert shard.open("two", source="old", at=20, take="fork") == 20
    assert shard.ids() == {"old", "one", "two"}
    one = shard.fill("one", 3)
    old = shard.store.find("old")
    assert one.state is not None
    assert old is not None
    assert old.state is not None
    assert one.state.tokens == list(range(18))
    assert old.state.tokens == list(range(20))
    shard.store.check()


def test_a_fork_does_not_evict_what_it_copies() -> None:
    shard = Shard(max_sessions=2, max_positions=250)
    shard.parked("old", 20)
    shard.parked("other", 5)
    assert shard.open("one", source="old", at=20, take="fork") == 20
    assert shard.ids() == {"old", "one"}


def test_a_wrong_account_is_found() -> None:
    shard = Shard()
    shard.open("a")
    entry = shard.fill("a", 5)
    assert entry.state is not None
    entry.state.tokens.pop()
    with pytest.raises(IntegrityError):
        shard.store.check()


def test_a_plain_session_has_no_lease_and_is_evicted_only_between_its_requests() -> None:
    shard = Shard(max_sessions=1)
    entry = shard.store.create_plain("curl", 0, 50)
    shard.clock.now += 100
    shard.store.sweep()
    assert entry.active
    with pytest.raises(OverCapacity):
        shard.open("a")
    shard.fill("curl", 10)
    shard.store.park(entry)
    assert shard.open("a") == 0
    assert shard.ids() == {"a"}


def test_a_plain_session_can_not_replace_that_of_a_head() -> None:
    shard = Shard()
    shard.open("a")
    with pytest.raises(NotOwner):
        shard.store.create_plain("a", 0, 50)
