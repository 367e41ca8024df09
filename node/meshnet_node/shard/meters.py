"""The shard's metrics; names and labels in one place. Labels come from closed lists."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from meshnet_node.metrics import STEP_BUCKETS


class Meters:
    """One per process, on the given registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.groups = Histogram(
            "meshnet_shard_group_seconds",
            "Time of one group on the model thread",
            ["kind"],
            buckets=STEP_BUCKETS,
            registry=registry,
        )
        self.positions = Counter("meshnet_shard_positions", "Positions computed", ["kind"], registry=registry)
        self.rows = Counter(
            "meshnet_shard_rows", "Rows answered, by code (ok, repeat or the error)", ["code"], registry=registry
        )
        self.opens = Counter("meshnet_shard_opens", "Opens answered, by code", ["code"], registry=registry)
        self.ended = Counter(
            "meshnet_shard_ended_sessions",
            "Sessions that went away, or were parked by a lapsed lease",
            ["reason"],
            registry=registry,
        )
        self.integrity = Counter(
            "meshnet_shard_integrity_failures", "Idle checks that found accounts wrong", registry=registry
        )
        self.frames = Counter("meshnet_shard_bad_frames", "Frames that could not be read", registry=registry)
        self.links = Gauge("meshnet_shard_links", "Connections whose hello succeeded", registry=registry)
        self._registry = registry

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(f"meshnet_shard_{name}", text, registry=self._registry).set_function(value)
