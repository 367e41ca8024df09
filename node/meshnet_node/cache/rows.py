"""Whether a row may run on a session, decided when it is dequeued and not when it came.

Between its arrival and its turn a session may have been closed, evicted, adopted, reset or moved to a new attempt; the
answer to a row is that of the moment at which it would run. Pure: values and the store in, a verdict out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from meshnet_node.cache.sessions import S, Session
from meshnet_node.cache.store import Store
from meshnet_node.errors import CacheMiss, NotOwner, SessionClosed, Stale, TooLarge
from meshnet_node.wire.frames import Row


@dataclass(frozen=True)
class Run(Generic[S]):
    """The row runs: the session is cut to the row's past_len and marked as running until `Store.settle`."""

    session: Session[S]


@dataclass(frozen=True)
class Repeat:
    """The row ran before; this is what was answered then."""

    reply: object


def admit(store: Store[S], row: Row, owner: str) -> Run[S] | Repeat:
    """Raises SessionClosed, CacheMiss (`have`: where the session can go on), NotOwner, Stale or TooLarge.

    Nothing is changed where it raises, save that a higher attempt becomes the current one.
    """
    entry = _entry(store, row, owner)
    if row.attempt > entry.attempt:
        entry.begin_attempt(row.attempt)
    elif row.step == entry.step and entry.reply is not None:
        return Repeat(entry.reply)
    elif row.step <= entry.step:
        raise Stale(f"step {row.step} ran before step {entry.step}")
    _check_content(entry, row)
    if entry.state is not None and row.past_len + row.n > entry.state.capacity:
        raise TooLarge(f"positions {row.past_len} to {row.past_len + row.n} of {entry.state.capacity} reserved")
    entry.rewind(row.past_len)
    entry.cut = entry.donor = None
    if not entry.active:
        store.revive(entry)
    entry.running = True
    return Run(entry)


def resume(store: Store[S], row: Row, owner: str, session: Session[S], done: int) -> Run[S]:
    """Go on with a row of which `done` positions ran already. Raises as `admit`."""
    entry = _entry(store, row, owner)
    if entry is not session or entry.filled != row.past_len + done:
        raise CacheMiss("the session changed between two chunks of the row", have=entry.have)
    if row.attempt != entry.attempt:
        raise Stale(f"attempt {row.attempt} was given up, {entry.attempt} is current")
    if not entry.active:
        store.revive(entry)
    entry.running = True
    return Run(entry)


def record(entry: Session[S], tokens: Sequence[int]) -> None:
    """The state took in these tokens."""
    entry.tape.append(tokens)


def answered(entry: Session[S], row: Row, reply: object) -> None:
    """The row ran to its end: the same step again gets the same reply."""
    if row.attempt == entry.attempt:
        entry.step, entry.reply = row.step, reply


def _entry(store: Store[S], row: Row, owner: str) -> Session[S]:
    if store.is_closed(row.session, row.attempt):
        raise SessionClosed("the session was closed")
    entry = store.find(row.session)
    if entry is None:
        raise CacheMiss("no such session here", have=0)
    if entry.owner != owner:
        raise NotOwner("the session belongs to another head")
    if row.attempt < entry.attempt:
        raise Stale(f"attempt {row.attempt} was given up, {entry.attempt} is current")
    return entry


def _check_content(entry: Session[S], row: Row) -> None:
    """The row must go on from what is held, or from a position that the state can be cut back to."""
    have = entry.have
    if row.past_len > have:
        raise CacheMiss(f"position {row.past_len} is not held", have=have)
    if entry.tape.hash_at(row.past_len) != row.hash:
        raise CacheMiss(f"other content before position {row.past_len}", have=0)
    if entry.state is not None:
        stand = entry.state.resumable(row.past_len)
        if stand != row.past_len:
            raise CacheMiss(f"the state can't stand at position {row.past_len}", have=stand)
