"""Prometheus registries: one per process, made in the app and handed down; nothing is registered globally.

Names are `meshnet_<process>_<what>_<unit>`. Label values come from closed lists (codes, reasons, kinds), never from a
client, so that the number of series is bounded.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

STEP_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds; from one hop of a small model to a chunk of a large one."""

WAIT_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds that a client or a recovery waits."""


def new_registry() -> CollectorRegistry:
    """An empty registry with the process's own numbers (memory, CPU, open files)."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry) -> tuple[bytes, str]:
    """Body and content type of GET /metrics."""
    return generate_latest(registry), CONTENT_TYPE_LATEST
