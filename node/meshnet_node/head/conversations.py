"""Parked sessions of finished answers, and which of them a new prompt can go on from.

A hint only: the shards check content by hash and say what they really have. Reuse is per head and per API key. An entry
is adopted (moved) when the prompt continues nearly all of it, and forked (copied) when it shares only a beginning, so
that an unrelated conversation with the same system prompt never takes another one's state (exo 1816).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from meshnet_node.head.boundary import BoundaryLog
from meshnet_node.head.path import Stage

MIN_SHARED = 32
NEARLY_ALL = 0.9
MOST_ENTRIES = 256


@dataclass(frozen=True)
class Parked:
    """A session that every shard of its path parked, holding `tokens`.

    instances: those of its stages' shards. logs: its boundary logs by the layer that they feed, for a loss in the next
    turn; whoever forgets the entry releases them.
    """

    session: str
    key: str
    tokens: tuple[int, ...]
    stages: tuple[Stage, ...]
    instances: tuple[str, ...]
    logs: dict[int, BoundaryLog] = field(default_factory=dict, compare=False)

    def release(self) -> None:
        """Give back the logs."""
        for log in self.logs.values():
            log.release()
        self.logs.clear()

    @property
    def gone(self) -> bool:
        """A shard is another process now, or no longer listed: its state will not come back."""
        links = [stage.endpoint.link for stage in self.stages]
        others = any(
            link is not None and link.info.instance != known for link, known in zip(links, self.instances, strict=True)
        )
        return others or not all(stage.endpoint.listed for stage in self.stages)

    @property
    def usable(self) -> bool:
        """Every shard is still the same process, and may open now."""
        return not self.gone and all(stage.endpoint.opens for stage in self.stages)


@dataclass(frozen=True)
class Adoption:
    """Go on from `parked` at position `at`."""

    parked: Parked
    at: int
    take: Literal["adopt", "fork"]


class Conversations:
    """The parked sessions of one head, oldest first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, Parked] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, parked: Parked) -> None:
        """Remember a session that was just parked."""
        self._entries[parked.session] = parked
        while len(self._entries) > MOST_ENTRIES:
            self._entries.popitem(last=False)[1].release()

    def take(self, key: str, prompt: Sequence[int]) -> Adoption | None:
        """The entry that shares most with the prompt, if that is worth it; one that is adopted is no longer listed."""
        best: Parked | None = None
        most = MIN_SHARED - 1
        for parked in list(self._entries.values()):
            if parked.gone:
                self._entries.pop(parked.session).release()
            elif parked.key == key and parked.usable and (shared := shared_length(parked.tokens, prompt)) > most:
                best, most = parked, shared
        if best is None:
            return None
        at = min(most, len(prompt) - 1)
        if at < NEARLY_ALL * len(best.tokens):
            return Adoption(best, at, "fork")
        del self._entries[best.session]
        return Adoption(best, at, "adopt")


def shared_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many ids the two have in common from the start on."""
    length = min(len(left), len(right))
    if tuple(left[:length]) == tuple(right[:length]):
        return length
    return next(index for index in range(length) if left[index] != right[index])
