"""One session at a shard: whose it is, what its state holds, and which content that came from.

A state is opaque here (`State`): no code outside cache/ looks inside one. The tape is the content of the state's
positions: token ids and the rolling hash before each position, so that equal length with other content can't pass.

Invariant while no chunk of the session runs: len(tape) == state.filled <= state.capacity.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, Self, TypeVar

from meshnet_node.wire.content import EMPTY, HASH_BYTES, extend


class State(Protocol):
    """What the layers of a range remember of one session."""

    @property
    def nbytes(self) -> int:
        """Bytes allocated (capacity, not rows in use)."""

    @property
    def capacity(self) -> int:
        """Positions that fit."""

    @property
    def filled(self) -> int:
        """Positions held."""

    def resumable(self, position: int) -> int:
        """The largest q <= position at which the state can stand; 0 is always possible."""

    def rewind(self, position: int) -> None:
        """Cut back to `position`, which must be resumable."""

    def copy(self, capacity: int) -> Self:
        """An independent state with the same content and room for `capacity` positions (never below `filled`)."""

    def check(self) -> None:
        """Raise when the state's own numbers do not fit what it has allocated."""


S = TypeVar("S", bound=State)
S_co = TypeVar("S_co", bound=State, covariant=True)


class States(Protocol[S_co]):
    """Where states come from: the model's layer range."""

    def state_bytes(self, max_positions: int, start_layer: int | None = None) -> int:
        """Bytes that `new_state` of the same arguments allocates."""

    def new_state(self, max_positions: int, start_layer: int | None = None) -> S_co:
        """An empty state."""


class Tape:
    """Token ids of positions 0..len, and the content hash before each of them and after the last."""

    def __init__(self) -> None:
        self._tokens = array("i")
        self._hashes = bytearray(EMPTY)

    def __len__(self) -> int:
        return len(self._tokens)

    def hash_at(self, position: int) -> bytes:
        """Hash of tokens[0..position); position <= len."""
        return bytes(self._hashes[position * HASH_BYTES : (position + 1) * HASH_BYTES])

    def append(self, tokens: Sequence[int]) -> None:
        last = self.hash_at(len(self))
        self._tokens.extend(tokens)
        self._hashes += b"".join(extend(last, tokens))

    def cut(self, position: int) -> None:
        """Forget everything from `position` on."""
        del self._tokens[position:]
        del self._hashes[(position + 1) * HASH_BYTES :]

    def tokens(self) -> array[int]:
        """A copy of all ids, safe to read on another thread."""
        return self._tokens[:]

    def copy(self) -> Tape:
        twin = Tape()
        twin._tokens = self._tokens[:]
        twin._hashes = self._hashes[:]
        return twin


@dataclass(frozen=True)
class Ending:
    """How a session ends once its running chunk has ended."""

    how: Literal["free", "park", "lapse"]
    reason: str
    at: int | None = None


@dataclass(eq=False)
class Session(Generic[S]):
    """The one entry of a session id. `state` is None at a shard that holds no state (a stateless model).

    cut: positions that an adopted state counts as usable until the first row says where it goes on; `donor` is then the
    id to give the state back to. declared: content hashes that an HTTP client gave for positions of a hop that gets no
    token ids. lapsed: parked because its head was silent, not because it was closed. step and reply:
    the newest row that ran in this attempt and what was answered.
    """

    id: str
    owner: str
    start_layer: int
    state: S | None
    attempt: int = 0
    tape: Tape = field(default_factory=Tape)
    recovery: bool = False
    hops: int = 1
    active: bool = True
    leased: bool = True
    lapsed: bool = False
    lease_until: float = 0.0
    used_at: float = 0.0
    step: int = -1
    reply: object = None
    running: bool = False
    ending: Ending | None = None
    cut: int | None = None
    donor: str | None = None
    declared: dict[int, bytes] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return 0 if self.state is None else self.state.nbytes

    @property
    def filled(self) -> int:
        return 0 if self.state is None else self.state.filled

    @property
    def have(self) -> int:
        """Positions that are usable as they are."""
        if self.state is None:
            return 0
        return self.state.filled if self.cut is None else self.state.resumable(min(self.cut, self.state.filled))

    @property
    def evictable(self) -> bool:
        return not self.active and not self.running

    def rewind(self, position: int) -> None:
        """Cut state and tape to `position`, which must be resumable; at 0 a state forgets everything."""
        if self.state is not None and position < self.state.filled:
            self.state.rewind(position)
        self.tape.cut(position)

    def begin_attempt(self, attempt: int) -> None:
        """Rows of lower attempts are stale from now on."""
        self.attempt = attempt
        self.step = -1
        self.reply = None
