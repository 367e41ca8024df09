"""Boundary logs are write-once, give back exactly the rows asked for, and are never used as a suffix once dropped."""

from __future__ import annotations

import pytest

from meshnet_node.errors import BadFrame
from meshnet_node.head.boundary import BoundaryLog, ReplayBudget
from meshnet_node.wire.frames import TensorSpec

ROW = 3 * 4


def rows(start: int, n: int, mark: int = 0) -> tuple[list[TensorSpec], list[memoryview]]:
    """Rows whose bytes say their position (and a mark)."""
    data = b"".join(bytes([start + i, mark] + [7] * (ROW - 2)) for i in range(n))
    return [TensorSpec("hidden", "float32", [1, n, 3])], [memoryview(data)]


def put(log: BoundaryLog, start: int, n: int, mark: int = 0) -> None:
    log.put(start, n, *rows(start, n, mark))


def positions(log: BoundaryLog, start: int, stop: int) -> list[tuple[int, int]]:
    _, (data,) = log.rows(start, stop)
    return [(data[i], data[i + 1]) for i in range(0, len(data), ROW)]


def test_rows_come_back_by_position() -> None:
    log = BoundaryLog(ReplayBudget(1000))
    put(log, 0, 4)
    put(log, 4, 1)
    specs, _ = log.rows(2, 5)
    assert specs == [TensorSpec("hidden", "float32", [1, 3, 3])]
    assert positions(log, 2, 5) == [(2, 0), (3, 0), (4, 0)]


def test_recomputed_rows_never_replace_those_that_were_seen() -> None:
    log = BoundaryLog(ReplayBudget(1000))
    put(log, 0, 4, mark=1)
    put(log, 2, 4, mark=9)
    assert positions(log, 0, 6) == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 9), (5, 9)]


def test_a_gap_is_refused() -> None:
    log = BoundaryLog(ReplayBudget(1000))
    put(log, 0, 2)
    with pytest.raises(BadFrame, match="ends at 2"):
        put(log, 3, 1)


def test_another_shape_is_refused() -> None:
    log = BoundaryLog(ReplayBudget(1000))
    put(log, 0, 2)
    with pytest.raises(BadFrame, match="does not fit"):
        log.put(2, 1, [TensorSpec("hidden", "float32", [1, 1, 4])], [memoryview(bytes(16))])


def test_over_the_budget_the_longest_log_gives_up_what_was_consumed() -> None:
    budget = ReplayBudget(10 * ROW)
    long, short = BoundaryLog(budget), BoundaryLog(budget)
    put(long, 0, 8)
    long.consumed_to(7)
    put(short, 0, 2)
    short.consumed_to(2)
    put(short, 2, 1)
    assert (long.base, long.end, short.base) == (7, 8, 0)
    assert positions(long, 7, 8) == [(7, 0)]
    assert budget.nbytes == 4 * ROW
    assert budget.dropped == 1


def test_a_dropped_log_goes_on_dropping_what_is_consumed() -> None:
    budget = ReplayBudget(0)
    log = BoundaryLog(budget)
    put(log, 0, 3)
    assert log.base == 0, "rows that nobody has consumed are kept whatever the budget"
    log.consumed_to(3)
    put(log, 3, 1)
    assert (log.base, log.end) == (3, 4)
    log.consumed_to(4)
    assert (log.base, log.end, log.nbytes) == (4, 4, 0)


def test_a_restart_makes_it_complete_again() -> None:
    budget = ReplayBudget(0)
    log = BoundaryLog(budget)
    put(log, 0, 3)
    log.consumed_to(3)
    log.drop()
    budget.limit = 1000
    log.restart()
    put(log, 0, 3, mark=2)
    assert (log.base, log.end) == (0, 3)
    assert positions(log, 0, 3) == [(0, 2), (1, 2), (2, 2)]


def test_a_released_log_costs_nothing() -> None:
    budget = ReplayBudget(1000)
    log = BoundaryLog(budget)
    put(log, 0, 3)
    log.release()
    assert budget.nbytes == 0


def test_a_log_that_is_made_again_keeps_what_the_next_hop_still_needs() -> None:
    budget = ReplayBudget(0)
    log = BoundaryLog(budget)
    put(log, 0, 3)
    log.consumed_to(3)
    put(log, 3, 1)
    assert log.base == 3
    log.restart()
    log.consumed_to(0)
    put(log, 0, 2)
    assert (log.base, log.end) == (0, 2), "the next hop is back at 0: its rows must not go by its old position"
