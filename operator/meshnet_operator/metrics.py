"""Prometheus metrics. One registry a process, passed down; the names are listed in docs/operations-operator.md."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from meshnet_operator.resource import Key

MODEL = ("namespace", "model")
FAST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """Everything that the operator measures."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.reconcile_seconds = Histogram(
            "meshnet_reconcile_seconds", "time of one reconcile of a MeshModel", registry=registry, buckets=FAST
        )
        self.reconcile_errors = Counter(
            "meshnet_reconcile_errors_total", "failed reconciles", ("reason",), registry=registry
        )
        self.publish_seconds = Histogram(
            "meshnet_route_publish_seconds", "pod event to published table", registry=registry, buckets=FAST
        )
        self.watch_age = Gauge("meshnet_watch_age_seconds", "since anything was heard", ("kind",), registry=registry)
        self.route_epoch = Gauge("meshnet_route_epoch", "version of the route table", MODEL, registry=registry)
        self.writes = Counter("meshnet_writes_total", "writes to the API server", ("kind",), registry=registry)
        self.requests = Counter(
            "meshnet_api_requests_total", "requests to the API server", ("method",), registry=registry
        )
        self.shard_ready = Gauge(
            "meshnet_shard_ready_pods", "ready pods of a shard", (*MODEL, "shard"), registry=registry
        )
        self.model_ready = Gauge("meshnet_model_ready", "1: a complete path serves", MODEL, registry=registry)
        self.model_degraded = Gauge("meshnet_model_degraded", "1: Degraded is true", MODEL, registry=registry)
        self.pod_losses = Counter("meshnet_pod_losses_total", "endpoints lost", MODEL, registry=registry)
        self.recovery_seconds = Histogram(
            "meshnet_recovery_seconds",
            "a range without a ready pod until it has one",
            registry=registry,
            buckets=(1, 2, 5, 10, 20, 30, 60, 120, 300, 600),
        )
        self.leader = Gauge("meshnet_operator_leader", "1: this instance leads", registry=registry)

    def asked(self, method: str) -> None:
        self.requests.labels(method).inc()

    def forget(self, key: Key) -> None:
        """Removes the series of a MeshModel that is gone."""
        labels = (key.namespace, key.name)
        for metric in (self.route_epoch, self.model_ready, self.model_degraded, self.pod_losses):
            metric.remove_by_labels(dict(zip(MODEL, labels, strict=True)))
        self.shard_ready.remove_by_labels(dict(zip(MODEL, labels, strict=True)))
