"""The `meshnet bench` command: runs one bench in a scratch folder and prints what it found."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from meshnet_node.bench import concurrency, decode, memory, prefill, recovery
from meshnet_node.bench.machine import describe, load_average
from meshnet_node.bench.session import Bench, Result
from meshnet_node.local.models import local_model

Runner = Callable[[Bench], Awaitable[Result]]
Rows = Callable[[Result], list[list[object]]]

BENCHES: dict[str, tuple[Runner, Rows]] = {
    "decode": (decode.run, decode.rows),
    "concurrency": (concurrency.run, concurrency.rows),
    "prefill": (prefill.run, prefill.rows),
    "recovery": (recovery.run, recovery.rows),
    "memory": (memory.run, memory.rows),
}


def bench(what: str, *, model: str, dtype: str, as_json: bool) -> None:
    """Run and print: a table, or one JSON object. Progress goes to standard error. Raises MeshnetError."""
    runner, rows = BENCHES[what]
    found = local_model(model)
    before, began = load_average(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="meshnet-bench-") as folder:
        measured = asyncio.run(runner_of(runner, Bench(found, dtype, Path(folder), partial(_say, began))))
    head: Result = {"bench": what, "model": found.name, "dtype": dtype, "machine": describe()}
    tail: Result = {
        "load_average": {"before": before, "after": load_average()},
        "seconds": round(time.monotonic() - began, 1),
    }
    result = head | measured | tail
    print(json.dumps(result, indent=2) if as_json else text(result, rows(result)))


async def runner_of(runner: Runner, session: Bench) -> Result:
    """The runner's result, as a coroutine of its own for asyncio.run."""
    return await runner(session)


def text(result: Result, rows: Sequence[Sequence[object]]) -> str:
    """The result for people: what was measured on what, then the table."""
    machine = result["machine"]
    load = result["load_average"]
    lines = [
        f"{result['bench']}: {result['model']}, {result['dtype']}",
        f"on {machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, "
        f"transformers {machine['transformers']}; load average {load['before']} before, {load['after']} after",
        "",
        table(rows),
    ]
    return "\n".join(lines + [f"\n{note}" for note in result.get("notes", [])])


def table(rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their widest cell, the first one to the left and the others to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  ".join(
            value.ljust(width) if column == 0 else value.rjust(width)
            for column, (value, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


def _say(began: float, message: str) -> None:
    print(f"[{time.monotonic() - began:3.0f} s] {message}", file=sys.stderr, flush=True)
