"""What the head counts about hops and recoveries: Prometheus metrics, and the last recoveries for GET /mesh."""

from __future__ import annotations

import time
from collections import deque

from prometheus_client import CollectorRegistry, Counter, Histogram

STALL_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class MeshTelemetry:
    """One per head. Causes and kinds are closed lists: the fault's name, and how the hop was brought up again."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.recent: deque[dict[str, object]] = deque(maxlen=50)
        self._recoveries = Counter(
            "meshnet_recoveries", "Hops brought up again, by cause and kind", ["cause", "kind"], registry=registry
        )
        self._replayed = Counter(
            "meshnet_replayed_positions", "Positions computed again by recoveries", registry=registry
        )
        self._stall = Histogram(
            "meshnet_recovery_stall_seconds",
            "From a fault to the generation's next new position",
            buckets=STALL_BUCKETS,
            registry=registry,
        )
        self._spent = Counter("meshnet_recoveries_spent", "Generations given up", registry=registry)

    def recovered(self, session: str, layers: tuple[int, int], cause: str, kind: str, replayed: int) -> None:
        """A hop is usable again, `replayed` positions behind where it was."""
        self._recoveries.labels(cause, kind).inc()
        self._replayed.inc(replayed)
        self.recent.append(
            {
                "time": round(time.time(), 3),
                "session": session[:8],
                "layers": list(layers),
                "cause": cause,
                "kind": kind,
                "replayed": replayed,
            }
        )

    def stalled(self, session: str, seconds: float) -> None:
        """The generation goes on after so many seconds."""
        self._stall.observe(seconds)
        for entry in self.recent:
            if entry["session"] == session[:8] and "stall_ms" not in entry:
                entry["stall_ms"] = round(seconds * 1000, 1)

    def spent(self) -> None:
        """A generation was given up: the hold time or the number of tries is spent."""
        self._spent.inc()
