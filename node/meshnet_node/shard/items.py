"""A row on its way through the shard: what came in, how far it is, and where its answer goes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from typing_extensions import Buffer

from meshnet_node.cache.sessions import Session
from meshnet_node.cache.states import SessionState
from meshnet_node.errors import WireError
from meshnet_node.wire.frames import Row, RowError, RowResult, Score


@dataclass(frozen=True)
class Reply:
    """The answer to one row with the raw bytes of its tensors."""

    result: RowResult
    tensors: tuple[Buffer, ...] = ()


class Sink(Protocol):
    """Whoever asked: the connection that a row came over, or an HTTP request."""

    @property
    def alive(self) -> bool:
        """Whether anybody still listens."""

    def deliver(self, replies: list[Reply]) -> None:
        """Take answers, in any order; never blocks and never raises, also when nobody listens any more."""


@dataclass(eq=False)
class Item:
    """A checked row. `hidden`: raw bytes of the tensor [1, n, hidden] for a later hop, None where tokens are embedded.

    done: positions that ran already (a long row runs in pieces); arrival: order number. start_layer: for rows of mode
    `none`, which have no session to say it.
    """

    row: Row
    owner: str
    sink: Sink
    tokens: array[int]
    hidden: memoryview | None
    targets: array[int] | None = None
    start_layer: int = 0
    arrival: int = 0
    done: int = 0
    session: Session[SessionState] | None = None
    outputs: list[Buffer] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)

    @property
    def cached(self) -> bool:
        return self.row.mode == "cached"

    @property
    def is_decode(self) -> bool:
        """One position on top of what is held: may share a batch with those of other sessions."""
        return self.row.n == 1 and self.cached and self.row.past_len > 0

    @property
    def left(self) -> int:
        return self.row.n - self.done

    def refused(self, error: WireError) -> Reply:
        """The error answer to this row."""
        return refusal(self.row, error)


def refusal(row: Row, error: WireError) -> Reply:
    """The error answer to a row."""
    fault = RowError(code=error.code, message=error.message, have=error.have)
    return Reply(RowResult(session=row.session, attempt=row.attempt, step=row.step, error=fault))


def deliver(answers: Sequence[tuple[Item, Reply]]) -> None:
    """Each sink gets its answers together, so that a batch goes out as one message per connection."""
    by_sink: dict[Sink, list[Reply]] = {}
    for item, reply in answers:
        by_sink.setdefault(item.sink, []).append(reply)
    for sink, replies in by_sink.items():
        sink.deliver(replies)
