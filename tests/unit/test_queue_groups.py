"""Which rows run next: batches and their size, turns between decode and prompts, replays first, stale rows out."""

from __future__ import annotations

from array import array

from meshnet_node.shard.items import Item, Reply
from meshnet_node.shard.queue import Facts, RowQueue
from meshnet_node.wire.content import EMPTY
from meshnet_node.wire.frames import Row


class Nobody:
    alive = True

    def deliver(self, replies: list[Reply]) -> None:
        raise AssertionError("the queue answers nobody")


class Waiting:
    """A queue and the facts of its sessions."""

    def __init__(self) -> None:
        self.facts: dict[str, Facts] = {}
        self.queue = RowQueue(lambda item: self.facts.get(item.row.session, Facts(0, False, 1)))

    def add(
        self, session: str, n: int = 1, past: int = 10, attempt: int = 1, step: int = 0, mode: str = "cached"
    ) -> Item:
        row = Row(session, attempt, step, past, n, EMPTY, bytes(4 * n), mode=mode)  # type: ignore[arg-type]
        item = Item(row, "head", Nobody(), array("i", bytes(4 * n)), None)
        self.stale = self.queue.push(item)
        return item

    def pick(self, active: int = 8) -> list[str]:
        return [item.row.session for item in self.queue.pick(active)]


def test_nothing_waits() -> None:
    assert Waiting().pick() == []


def test_decode_rows_of_many_sessions_are_one_batch_in_order_of_arrival() -> None:
    waiting = Waiting()
    for session in "abcd":
        waiting.add(session)
    assert waiting.pick() == ["a", "b", "c", "d"]
    assert len(waiting.queue) == 0


def test_only_the_first_row_of_a_session_may_run() -> None:
    waiting = Waiting()
    waiting.add("a", step=0)
    waiting.add("a", step=1)
    waiting.add("b")
    assert waiting.pick() == ["a", "b"]
    assert waiting.pick() == ["a"]


def test_as_many_groups_as_hops_stay_in_flight() -> None:
    waiting = Waiting()
    for session in "abcde":
        waiting.facts[session] = Facts(0, False, 2)
        waiting.add(session)
    assert waiting.pick(active=5) == ["a", "b", "c"]
    assert waiting.pick(active=5) == ["d", "e"]


def test_rows_of_another_start_layer_are_another_group() -> None:
    waiting = Waiting()
    waiting.facts["b"] = Facts(3, False, 1)
    for session in "abc":
        waiting.add(session)
    assert waiting.pick() == ["a", "c"]
    assert waiting.pick() == ["b"]


def test_one_long_session_does_not_pad_many_short_ones() -> None:
    waiting = Waiting()
    for session, past in (("a", 100), ("long", 9000), ("b", 900), ("c", 1000)):
        waiting.add(session, past=past)
    assert waiting.pick() == ["a", "b", "c"]
    assert waiting.pick() == ["long"]


def test_a_prompt_waits_for_one_batch_and_a_batch_for_one_piece() -> None:
    waiting = Waiting()
    order = []
    prompt = waiting.add("prompt", n=300, past=0)
    for step in range(3):
        waiting.add("a", step=step)
    for _ in range(6):
        group = waiting.queue.pick(8)
        order += [item.row.session for item in group]
        for item in group:
            if item is prompt and item.done < 200:
                item.done += 100
                waiting.queue.push_back(item)
    assert order == ["a", "prompt", "a", "prompt", "a", "prompt"]


def test_a_first_row_of_one_position_and_a_stateless_row_run_alone() -> None:
    waiting = Waiting()
    waiting.add("first", past=0)
    waiting.add("none", past=0, mode="none")
    waiting.add("a")
    groups = [waiting.pick(), waiting.pick(), waiting.pick()]
    assert sorted(groups) == [["a"], ["first"], ["none"]]


def test_prompts_take_turns() -> None:
    waiting = Waiting()
    items = {name: waiting.add(name, n=300, past=0) for name in ("long", "other")}
    order = []
    for _ in range(4):
        (item,) = waiting.queue.pick(8)
        order.append(item.row.session)
        item.done += 100
        waiting.queue.push_back(items[item.row.session])
    assert order == ["long", "other", "long", "other"]


def test_replays_come_first_the_shortest_two_of_them() -> None:
    waiting = Waiting()
    waiting.add("new", n=50, past=0)
    for session, n in (("r300", 300), ("r100", 100), ("r200", 200)):
        waiting.facts[session] = Facts(0, True, 1)
        waiting.add(session, n=n, past=0)
    order = []
    while group := waiting.queue.pick(8):
        (item,) = group
        order.append(item.row.session)
        item.done += min(100, item.left)
        if item.left:
            waiting.queue.push_back(item)
    assert order == ["r100", "r200", "r300", "r200", "r300", "r300", "new"]


def test_a_higher_attempt_throws_out_the_queued_rows_of_lower_ones() -> None:
    waiting = Waiting()
    old = [waiting.add("a", step=step, n=20) for step in range(3)]
    waiting.add("b")
    waiting.add("a", attempt=2)
    assert waiting.stale == old
    assert len(waiting.queue) == 2


def test_purge_takes_the_rows_up_to_an_attempt_of_one_owner() -> None:
    waiting = Waiting()
    high, low = waiting.add("a", attempt=3), waiting.add("a", attempt=2)
    assert waiting.queue.purge("a", 2, "another head") == []
    assert waiting.queue.purge("a", 2, "head") == [low]
    assert waiting.queue.purge("a", 9) == [high]
    assert len(waiting.queue) == 0
    assert waiting.pick() == []
