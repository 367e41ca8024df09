"""The verdict on a row at the moment of its turn."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from meshnet_logstate import BYTES_PER_POSITION, FakeClock, Kind, LogState, LogStates

from meshnet_node.cache.ledger import Limits
from meshnet_node.cache.rows import Repeat, Run, admit, answered, record, resume
from meshnet_node.cache.store import Store
from meshnet_node.errors import CacheMiss, NotOwner, SessionClosed, Stale, TooLarge
from meshnet_node.wire.content import EMPTY, extend, pack_tokens
from meshnet_node.wire.frames import Close, Open, Row

HEAD = "head-a"
TOKENS = list(range(100, 200))


def new_store(kind: Kind = "plain", clock: FakeClock | None = None) -> Store[LogState]:
    limits = Limits(4, 4000 * BYTES_PER_POSITION, ttl_seconds=600, lease_seconds=15)
    store: Store[LogState] = Store(LogStates(kind), limits, clock or FakeClock(), lambda _: None)
    store.open(Open("s", 1, 0, 100), HEAD)
    return store


def row(past: int, n: int, step: int = 0, attempt: int = 1, tokens: Sequence[int] = TOKENS) -> Row:
    content = [EMPTY, *extend(EMPTY, tokens[:past])][past]
    return Row("s", attempt, step, past, n, content, pack_tokens(tokens[past : past + n]))


def run(store: Store[LogState], given: Row, tokens: Sequence[int] = TOKENS, owner: str = HEAD) -> object:
    """Let the row run to its end; its reply."""
    verdict = admit(store, given, owner)
    assert isinstance(verdict, Run)
    state = verdict.session.state
    assert state is not None
    assert state.tokens == list(tokens[: given.past_len])
    ids = list(tokens[given.past_len : given.past_len + given.n])
    state.tokens += ids
    record(verdict.session, ids)
    assert not store.settle(verdict.session)
    reply = object()
    answered(verdict.session, given, reply)
    store.check()
    return reply


def test_rows_go_on_where_the_last_one_ended() -> None:
    store = new_store()
    run(store, row(0, 30))
    run(store, row(30, 1, step=1))
    assert store.open(Open("s", 1, 0, 100), HEAD).have == 31


def test_the_same_step_again_gets_the_stored_reply() -> None:
    store = new_store()
    reply = run(store, row(0, 30))
    assert admit(store, row(0, 30), HEAD) == Repeat(reply)
    run(store, row(30, 1, step=1))
    with pytest.raises(Stale):
        admit(store, row(0, 30), HEAD)


def test_a_lower_attempt_is_stale_and_a_higher_one_counts_its_steps_anew() -> None:
    store = new_store()
    run(store, row(0, 30, step=7))
    run(store, row(30, 5, step=0, attempt=3))
    with pytest.raises(Stale):
        admit(store, row(35, 1, step=8), HEAD)


def test_past_len_beyond_what_is_held_is_a_miss_that_says_what_is() -> None:
    store = new_store()
    run(store, row(0, 30))
    with pytest.raises(CacheMiss) as miss:
        admit(store, row(31, 1, step=1), HEAD)
    assert miss.value.have == 30


@pytest.mark.parametrize(
    ("kind", "past", "have"),
    [("plain", 11, None), ("snapshots", 16, None), ("snapshots", 19, 16), ("window", 28, None), ("window", 11, 0)],
    ids=["plain", "at a snapshot", "between snapshots", "in the window", "before the window"],
)
def test_past_len_below_what_is_held_cuts_back_where_the_state_can(kind: Kind, past: int, have: int | None) -> None:
    store = new_store(kind)
    run(store, row(0, 30))
    if have is None:
        run(store, row(past, 4, step=1))
    else:
        with pytest.raises(CacheMiss) as miss:
            admit(store, row(past, 4, step=1), HEAD)
        assert miss.value.have == have
        store.check()


def test_equal_length_with_other_content_does_not_pass() -> None:
    store = new_store()
    run(store, row(0, 30))
    other = [*TOKENS[:10], 7, *TOKENS[11:]]
    with pytest.raises(CacheMiss) as miss:
        admit(store, row(30, 1, step=1, tokens=other), HEAD)
    assert miss.value.have == 0
    run(store, row(30, 1, step=1))


def test_other_content_after_a_common_start_is_a_rewind() -> None:
    store = new_store()
    run(store, row(0, 30))
    other = [*TOKENS[:10], *range(40)]
    run(store, row(10, 20, step=1, tokens=other), tokens=other)


def test_an_unknown_session_is_a_miss_at_zero_and_a_closed_one_is_closed() -> None:
    store = new_store()
    with pytest.raises(CacheMiss) as miss:
        admit(store, Row("other", 1, 0, 0, 1, EMPTY, pack_tokens([1])), HEAD)
    assert miss.value.have == 0
    store.close(Close("s", 1), HEAD)
    with pytest.raises(SessionClosed):
        admit(store, row(0, 1), HEAD)


def test_rows_after_a_kept_close_are_closed_too() -> None:
    store = new_store()
    run(store, row(0, 30))
    store.close(Close("s", 1, keep=True), HEAD)
    with pytest.raises(SessionClosed):
        admit(store, row(30, 1, step=1), HEAD)


def test_another_head_is_refused() -> None:
    with pytest.raises(NotOwner):
        admit(new_store(), row(0, 5), "head-b")


def test_more_positions_than_were_reserved_are_too_large() -> None:
    store = new_store()
    run(store, row(0, 99))
    with pytest.raises(TooLarge):
        admit(store, row(99, 2, step=1, tokens=[*TOKENS, 1]), HEAD)


def test_a_row_of_its_owner_revives_a_session_that_lapsed() -> None:
    clock = FakeClock()
    store = new_store(clock=clock)
    run(store, row(0, 30))
    clock.now += 20
    store.sweep()
    assert store.active == 0
    run(store, row(30, 1, step=1))
    assert store.active == 1


def test_an_adopted_session_goes_on_from_its_cut() -> None:
    store = new_store()
    run(store, row(0, 30))
    store.close(Close("s", 1, keep=True), HEAD)
    assert store.open(Open("t", 1, 0, 100, source="s", at=20), HEAD).have == 20
    other = [*TOKENS[:20], 1, 2, 3, 4, 5]
    content = extend(EMPTY, other[:20])[-1]
    with pytest.raises(CacheMiss) as miss:
        admit(store, Row("t", 1, 0, 25, 1, extend(EMPTY, TOKENS[:25])[-1], pack_tokens([9])), HEAD)
    assert miss.value.have == 20
    verdict = admit(store, Row("t", 1, 1, 20, 5, content, pack_tokens(other[20:])), HEAD)
    assert isinstance(verdict, Run)
    assert verdict.session.filled == 20
    assert verdict.session.state is not None
    verdict.session.state.tokens += other[20:]
    record(verdict.session, other[20:])
    store.settle(verdict.session)
    content = extend(EMPTY, other)[-1]
    assert isinstance(admit(store, Row("t", 1, 2, 25, 1, content, pack_tokens([9])), HEAD), Run)


@pytest.mark.parametrize("keep", [False, True])
def test_a_close_while_a_piece_runs_takes_effect_when_it_ends(keep: bool) -> None:
    store = new_store()
    verdict = admit(store, row(0, 30), HEAD)
    assert isinstance(verdict, Run)
    entry = verdict.session
    store.close(Close("s", 1, keep=keep, at=8), HEAD)
    assert store.find("s") is entry
    assert entry.state is not None
    entry.state.tokens += TOKENS[:30]
    record(entry, TOKENS[:30])
    assert store.settle(entry)
    kept = store.find("s")
    assert (kept.filled if kept else None) == (8 if keep else None)
    store.check()


def test_a_lapse_while_a_piece_runs_does_not_cost_its_result() -> None:
    clock = FakeClock()
    store = new_store(clock=clock)
    verdict = admit(store, row(0, 30), HEAD)
    assert isinstance(verdict, Run)
    clock.now += 20
    store.sweep()
    assert store.active == 1
    assert verdict.session.state is not None
    verdict.session.state.tokens += TOKENS[:30]
    record(verdict.session, TOKENS[:30])
    assert not store.settle(verdict.session)
    assert store.active == 0
    store.check()


def test_a_long_row_goes_on_only_on_the_session_as_it_left_it() -> None:
    store = new_store()
    given = row(0, 60)
    verdict = admit(store, given, HEAD)
    assert isinstance(verdict, Run)
    entry = verdict.session
    assert entry.state is not None
    entry.state.tokens += TOKENS[:30]
    record(entry, TOKENS[:30])
    store.settle(entry)
    assert resume(store, given, HEAD, entry, 30).session is entry
    store.settle(entry)
    store.open(Open("s", 2, 0, 100), HEAD)
    with pytest.raises(Stale):
        resume(store, given, HEAD, entry, 30)
    store.free(entry, "lru")
    with pytest.raises(CacheMiss):
        resume(store, given, HEAD, entry, 30)
