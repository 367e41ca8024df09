"""Each bench in a very small configuration: whole meshes of real processes, and numbers that can be what they say.

Nothing here is about speed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from meshnet_tiny import LAYERS

from meshnet_node.bench import concurrency, decode, faults, memory, prefill, recovery
from meshnet_node.bench.command import table
from meshnet_node.bench.session import Bench
from meshnet_node.local.models import local_model

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The reference of these runs on one thread: it shares the cores with whatever else is tested."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def bench(tiny: Path, tmp_path: Path) -> Callable[[int], Bench]:
    """bench(shards): a bench of the tiny model; one shard where the cut is not what is tested."""

    def make(shards: int) -> Bench:
        return Bench(local_model(str(tiny)), "float32", tmp_path, print, shards=shards)

    return make


def readable(found: dict[str, Any], rows: Callable[[dict[str, Any]], list[list[object]]]) -> None:
    """It is JSON, and a table whose rows have as many cells as its heading."""
    assert json.loads(json.dumps(found)) == found
    cells = rows(found)
    assert {len(row) for row in cells} == {len(cells[0])}
    assert len(table(cells).splitlines()) == len(cells)


@pytest.mark.parity
def test_decode(bench: Callable[[int], Bench]) -> None:
    sizes = decode.Sizes(prompt=12, steps=20, runs=1, warm=2)
    found = asyncio.run(decode.run(bench(2), sizes))
    assert found["cut"] == ["0-2", f"3-{LAYERS - 1}"]
    assert (found["prompt_tokens"], found["steps"], found["runs"]) == (12, 20, 1)
    assert found["identical"] is True
    assert found["stateless_identical"] is True
    for name in ("mesh", "stateless", "generate"):
        assert found[name]["tokens_per_s"] == pytest.approx(1000 / found[name]["step_ms"], rel=0.02)
        assert found[name]["first_token_ms"] > 0
        assert found[name]["flatness"] > 0
    expected = found["mesh"]["tokens_per_s"] / found["generate"]["tokens_per_s"]
    assert found["ratios"]["mesh_to_generate"] == pytest.approx(expected, rel=0.01)
    readable(found, decode.rows)


@pytest.mark.parity
def test_concurrency(bench: Callable[[int], Bench]) -> None:
    sizes = concurrency.Sizes(streams=(1, 3), prompt=8, longer=3, tokens=6, runs=2)
    found = asyncio.run(concurrency.run(bench(1), sizes))
    assert [level["streams"] for level in found["levels"]] == [1, 3]
    assert [level["answers"] for level in found["levels"]] == [2, 6]
    assert [level["identical"] for level in found["levels"]] == [2, 6]
    readable(found, concurrency.rows)


@pytest.mark.parity
def test_prefill(bench: Callable[[int], Bench]) -> None:
    found = asyncio.run(prefill.run(bench(1), prefill.Sizes(prompt=150, runs=2, warm=10)))
    assert found["identical"] is True
    for name in ("mesh", "generate"):
        rate = 150 / found[name]["first_token_ms"] * 1000
        assert found[name]["prompt_tokens_per_s"] == pytest.approx(rate, rel=0.01)
    readable(found, prefill.rows)


def test_recovery(bench: Callable[[int], Bench]) -> None:
    chosen = (
        faults.Fault("none", 1, faults.nothing),
        faults.Fault("evicted", 1, faults.evict),
        faults.Fault("killed", 1, faults.kill),
    )
    sizes = recovery.Sizes(prompt=30, tokens=60, at=10, faults=chosen)
    found = asyncio.run(recovery.run(bench(2), sizes))
    assert (found["identical"], found["errors"]) == (True, 0)
    quiet, evicted, killed = found["faults"]
    assert (quiet["replayed_rows"], quiet["recoveries"], quiet["head_stall_ms"]) == (0, [], None)
    for one in (evicted, killed):
        assert 30 + 10 - 1 <= one["replayed_rows"] < 30 + 60, "what that hop held when the fault struck, once"
        assert len(one["recoveries"]) >= 1
        assert one["head_stall_ms"] > 0
    assert killed["recoveries"][0].startswith("link_lost")
    readable(found, recovery.rows)


@pytest.mark.parity
def test_memory(bench: Callable[[int], Bench], tiny: Path) -> None:
    sizes = memory.Sizes(prompt=40, tokens=60)
    found = asyncio.run(memory.run(bench(1), sizes))
    (shard,) = found["shards"]
    assert shard["layers"] == [0, LAYERS - 1]
    file_mb = (tiny / "model.safetensors").stat().st_size / 1e6
    assert shard["weights_mb"] == pytest.approx(file_mb, rel=0.3), "the whole model: the head may be tied or not"
    assert shard["base_mb"] > 50, "a process with its imports"
    assert shard["served_peak_mb"] >= shard["peak_mb"]
    key_and_value = 2 * LAYERS * 2 * 16 * 4
    assert shard["state_bytes_per_position"] == pytest.approx(key_and_value, rel=0.35)
    assert found["positions"] == 99
    assert found["generate_peak_mb"] > 50
    readable(found, memory.rows)
