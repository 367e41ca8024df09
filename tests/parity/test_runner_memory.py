"""A shard's peak memory is that of its own range: measured in processes of their own, against one that holds next to
nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import meshnet_testing_models as models
import pytest
from meshnet_testing_demo import demo_folder

SCRIPT = """
import sys, torch
torch.set_num_threads(1)
from meshnet_node.settings import ShardSettings
from meshnet_node.shard.runner import RangeRunner
model, start, end, dtype = sys.argv[1:]
runner = RangeRunner.load(
    ShardSettings(model=model, start_layer=int(start), end_layer=int(end), device="cpu", dtype=dtype)
)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(runner.weight_bytes, int(status["VmHWM"].split()[0]) * 1024)
"""


def peak(model: Path, start: int, end: int, dtype: str) -> tuple[int, int]:
    """Bytes of the range's weights, and the most memory that the process ever had."""
    command = [sys.executable, "-c", SCRIPT, str(model), str(start), str(end), dtype]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    weights, most = done.stdout.split()[-2:]
    return int(weights), int(most)


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Peak of a process with the same code and a model of half a megabyte."""
    weights, most = peak(models.write_model(tmp_path_factory.mktemp("small") / "model", "llama"), 0, 5, "float32")
    return most - weights


@pytest.mark.parametrize(
    ("start", "end", "dtype"),
    [
        (15, 29, "float32"),
        pytest.param(15, 29, "bfloat16", marks=pytest.mark.parity),
        pytest.param(0, 29, "float32", marks=pytest.mark.parity),
        pytest.param(0, 14, "float32", marks=pytest.mark.parity),
        pytest.param(10, 19, "bfloat16", marks=pytest.mark.parity),
        pytest.param(29, 29, "float32", marks=pytest.mark.parity),
    ],
)
def test_peak_is_at_most_a_tenth_above_the_range(start: int, end: int, dtype: str, idle: int) -> None:
    weights, most = peak(demo_folder(), start, end, dtype)
    assert most - idle <= 1.1 * weights
