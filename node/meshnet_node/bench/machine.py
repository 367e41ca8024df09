"""What the numbers of a bench were measured on. Reads /proc and package metadata; imports nothing heavy."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from meshnet_node import __version__


def describe(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, object]:
    """CPU model, cores that this process may use, memory, versions. JSON-able."""
    return {
        "cpu": cpu_model(cpuinfo),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "transformers": _version("transformers"),
        "meshnet": __version__,
    }


def cpu_model(cpuinfo: Path) -> str:
    """The first `model name` of /proc/cpuinfo; the architecture where it has none."""
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def load_average() -> float:
    """Processes that ran or waited, over the last minute: well above what the bench itself needs, others disturb it."""
    return round(os.getloadavg()[0], 2)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
