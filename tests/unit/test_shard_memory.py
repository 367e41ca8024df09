"""What is left for session states: the machine's free memory, or the cgroup's where that is less."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from meshnet_node.shard.memory import free_memory, state_budget

MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8_192_000_000),
        ({"memory.max": "max\n", "memory.current": "5\n"}, 8_192_000_000),
        ({"memory.max": "4000000000\n", "memory.current": "1500000000\n"}, 2_500_000_000),
        ({"memory.max": "1000\n", "memory.current": "1500\n"}, 0),
    ],
    ids=["no cgroup", "no limit", "limit", "limit passed"],
)
def test_the_smaller_of_machine_and_cgroup(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert free_memory(tmp_path / "meminfo", tmp_path) == expected


def test_a_cpu_gets_a_share_of_this_machine() -> None:
    assert state_budget(torch.device("cpu")) >= 64 * 1024**2
