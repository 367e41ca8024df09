"""What the API counts, under the families that dashboards for language model servers know, prefixed meshnet_."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from meshnet_node.metrics import WAIT_BUCKETS

TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds between two tokens."""


class ApiMetrics:
    """One per app. Reasons and finish reasons are closed lists."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self.registry = registry
        names = ["model_name"]

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"meshnet_{name}", text, names, registry=registry).labels(model)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"meshnet_{name}", text, names, registry=registry).labels(model)

        def seconds(name: str, text: str, buckets: tuple[float, ...] = WAIT_BUCKETS) -> Histogram:
            return Histogram(f"meshnet_{name}_seconds", text, names, registry=registry, buckets=buckets).labels(model)

        self.running = gauge("requests_running", "Generations that run")
        self.waiting = gauge("requests_waiting", "Generations that wait to be admitted")
        self.first_token = seconds("time_to_first_token", "From a request's arrival to its first token")
        self.between_tokens = seconds("inter_token_latency", "Between two tokens of a generation", TOKEN_BUCKETS)
        self.whole = seconds("e2e_request_latency", "From a request's arrival to its end")
        self.queue = seconds("request_queue_time", "From a request's arrival until the mesh promised it")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts, counted once")
        self.generation_tokens = counter("generation_tokens", "Tokens generated, counted once")
        self._model = model
        self._success = Counter(
            "meshnet_request_success", "Generations ended", [*names, "finished_reason"], registry=registry
        )
        self._rejections = Counter("meshnet_request_rejections", "Answers of 4xx and 5xx", ["code"], registry=registry)

    def finished(self, reason: str) -> None:
        """`reason`: stop, length, abort (the client left) or error."""
        self._success.labels(self._model, reason).inc()

    def rejected(self, status: int) -> None:
        """An error status was sent."""
        self._rejections.labels(str(status)).inc()


class Meter:
    """Times one generation. Calls in this order: queued, started, token ..., finished (if it ended well), closed."""

    def __init__(self, metrics: ApiMetrics) -> None:
        self._metrics = metrics
        self._begin = time.perf_counter()
        self._last: float | None = None
        self._gauge: Gauge | None = None
        self._reason = "abort"

    def queued(self) -> None:
        """It waits to be admitted."""
        self._move(self._metrics.waiting)

    def started(self, prompt_tokens: int) -> None:
        """It runs."""
        self._move(self._metrics.running)
        self._metrics.queue.observe(time.perf_counter() - self._begin)
        self._metrics.prompt_tokens.inc(prompt_tokens)

    def token(self) -> None:
        """A token came."""
        now = time.perf_counter()
        if self._last is None:
            self._metrics.first_token.observe(now - self._begin)
        else:
            self._metrics.between_tokens.observe(now - self._last)
        self._last = now
        self._metrics.generation_tokens.inc()

    def failed(self) -> None:
        """It will end by an error."""
        self._reason = "error"

    def finished(self, reason: str) -> None:
        """It has ended well."""
        self._reason = reason

    def closed(self) -> None:
        """It is over, in whatever way; once."""
        started = self._gauge is self._metrics.running
        self._move(None)
        if started:
            self._metrics.finished(self._reason)
            self._metrics.whole.observe(time.perf_counter() - self._begin)

    def _move(self, gauge: Gauge | None) -> None:
        if self._gauge is not None:
            self._gauge.dec()
        if gauge is not None:
            gauge.inc()
        self._gauge = gauge
