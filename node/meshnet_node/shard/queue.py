"""Which rows run next: groups for the model thread, chosen from what waits. Pure: no clock, no waiting.

A lane holds the rows of one session in order of arrival; only its first row may run. Decode rows form batches, chunk
rows run alone, and the two take turns, so that a long prompt holds running streams up by no more than a chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil

from meshnet_node.shard.items import Item

REPLAYS_AT_ONCE = 2
SHORT = 1024
LENGTH_RATIO = 4

Lane = tuple[str, str, str]


@dataclass(frozen=True)
class Facts:
    """What the choice depends on beyond the rows. hops: length of the session's path."""

    start_layer: int
    recovery: bool
    hops: int


class RowQueue:
    """`look` gives the facts of a row's session as they are now."""

    def __init__(self, look: Callable[[Item], Facts]) -> None:
        self._look = look
        self._lanes: dict[Lane, deque[Item]] = {}
        self._arrivals = 0
        self._served: dict[Lane, int] = {}
        self._turns = 0
        self._replaying: list[Lane] = []
        self._chunk_is_due = False

    def __len__(self) -> int:
        return sum(len(lane) for lane in self._lanes.values())

    def push(self, item: Item) -> list[Item]:
        """Queue a row; the rows of lower attempts of its session that it makes stale."""
        self._arrivals += 1
        item.arrival = self._arrivals
        key = _lane(item)
        stale = self._drop(key, lambda waiting: waiting.row.attempt < item.row.attempt)
        self._lanes.setdefault(key, deque()).append(item)
        return stale

    def push_back(self, item: Item) -> bool:
        """The rest of a row that ran in part stays first in its lane; False where a higher attempt came meanwhile."""
        lane = self._lanes.setdefault(_lane(item), deque())
        if any(waiting.row.attempt > item.row.attempt for waiting in lane):
            return False
        lane.appendleft(item)
        return True

    def purge(self, session: str, attempt: int, owner: str | None = None) -> list[Item]:
        """Take out the cached rows of a session up to that attempt (`owner` None: of anybody)."""
        keys = [key for key in self._lanes if key[1] == session and key[2] == "cached" and owner in (None, key[0])]
        return [item for key in keys for item in self._drop(key, lambda waiting: waiting.row.attempt <= attempt)]

    def pick(self, active: int) -> list[Item]:
        """Take out the next group: a decode batch of one start layer, or one row of any length; [] when none waits.

        `active`: sessions that are active. A batch takes ceil(active / hops) rows at most, so that as many groups as
        shards are in flight on a path.
        """
        decode = sorted((lane[0] for lane in self._lanes.values() if lane[0].is_decode), key=lambda item: item.arrival)
        chunks = [lane[0] for lane in self._lanes.values() if not lane[0].is_decode]
        if chunks and (self._chunk_is_due or not decode):
            self._chunk_is_due = False
            group = [self._next_chunk(chunks)]
        elif decode:
            self._chunk_is_due = True
            group = self._batch(decode, active)
        else:
            return []
        for item in group:
            self._take(item)
        return group

    def _take(self, item: Item) -> None:
        key = _lane(item)
        lane = self._lanes[key]
        lane.popleft()
        if not lane:
            del self._lanes[key]
        self._turns += 1
        self._served[key] = self._turns
        if len(self._served) > 4 * len(self._lanes) + 64:
            self._served = {key: turn for key, turn in self._served.items() if key in self._lanes}

    def _drop(self, key: Lane, wanted: Callable[[Item], bool]) -> list[Item]:
        lane = self._lanes.get(key, deque())
        dropped = [item for item in lane if wanted(item)]
        if dropped:
            kept = deque(item for item in lane if not wanted(item))
            if kept:
                self._lanes[key] = kept
            else:
                del self._lanes[key]
        return dropped

    def _batch(self, waiting: list[Item], active: int) -> list[Item]:
        """The oldest row and those that fit with it: same start layer, and no long row that pads many short ones."""
        facts = [self._look(item) for item in waiting]
        cap = max(1, ceil(active / max(fact.hops for fact in facts)))
        batch: list[Item] = []
        shortest = longest = waiting[0].row.past_len
        for item, fact in zip(waiting, facts, strict=True):
            shorter, longer = min(shortest, item.row.past_len), max(longest, item.row.past_len)
            fits = longer <= max(SHORT, LENGTH_RATIO * shorter)
            if fact.start_layer == facts[0].start_layer and fits and len(batch) < cap:
                batch.append(item)
                shortest, longest = shorter, longer
        return batch

    def _next_chunk(self, waiting: Iterable[Item]) -> Item:
        """Replays before new prompts, the shortest first and two at a time; else whose last turn is longest ago."""
        items = {_lane(item): item for item in waiting}
        replays = [key for key, item in items.items() if item.cached and self._look(item).recovery]
        if replays:
            current = [key for key in self._replaying if key in replays]
            others = sorted((key for key in replays if key not in current), key=self._waiting_positions)
            self._replaying = (current + others)[:REPLAYS_AT_ONCE]
            return items[min(self._replaying, key=lambda key: (self._served.get(key, 0), self._waiting_positions(key)))]
        return items[min(items, key=lambda key: (self._served.get(key, 0), items[key].arrival))]

    def _waiting_positions(self, key: Lane) -> int:
        return sum(item.left for item in self._lanes[key])


def _lane(item: Item) -> Lane:
    return item.owner, item.row.session, item.row.mode
