"""How much memory session states may take where no limit is set: a share of what the weights leave free."""

from __future__ import annotations

from pathlib import Path

import torch

SHARE = 0.8
_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def state_budget(device: torch.device) -> int:
    """Bytes, for a device on which the weights are loaded already; at least 64 MB, so that a shard can serve at all."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
    else:
        free = free_memory(_MEMINFO, _CGROUP)
    return max(64 * 1024**2, int(free * SHARE))


def free_memory(meminfo: Path, cgroup: Path) -> int:
    """Bytes that this process can still get: of the machine, or of its cgroup (version 2) where that is less."""
    available = 0
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            available = int(value.split()[0]) * 1024
    limit = _number(cgroup / "memory.max")
    used = _number(cgroup / "memory.current")
    if limit is not None and used is not None:
        available = min(available, max(0, limit - used))
    return available


def _number(file: Path) -> int | None:
    """The file's number; None where there is no such file or it says `max`."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
