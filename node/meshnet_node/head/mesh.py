"""The mesh behind the API: implements backend.Backend over routes, endpoints, admission and generations."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time

from prometheus_client import CollectorRegistry, Gauge

from meshnet_node import __version__
from meshnet_node.errors import ApiError
from meshnet_node.head.admission import Admission
from meshnet_node.head.backend import GenerationRequest
from meshnet_node.head.background import keep_running
from meshnet_node.head.boundary import ReplayBudget
from meshnet_node.head.context import MeshContext
from meshnet_node.head.endpoints import Endpoint, LinkSettings
from meshnet_node.head.generation import MeshGeneration
from meshnet_node.head.leaving import describe
from meshnet_node.head.lookup import Dns, Resolve, ServiceLookup
from meshnet_node.head.path import plan, rank
from meshnet_node.head.roster import Endpoints
from meshnet_node.head.routes import Intake
from meshnet_node.head.source import open_source
from meshnet_node.head.telemetry import MeshTelemetry
from meshnet_node.settings import HeadSettings
from meshnet_node.wire.frames import Info
from meshnet_node.wire.handshake import TokenFile

WATCH_SECONDS = 0.5
FOLLOWED = ("read", "connected")


class Mesh:
    """One per head process; make it inside the event loop. `max_context` is what the API clamps to.

    resolve: how the name of a range's Service becomes addresses; the cluster's DNS where it is not given. Raises
    ConfigError where the routes can't be followed from here.
    """

    def __init__(
        self, settings: HeadSettings, max_context: int, registry: CollectorRegistry, resolve: Resolve | None = None
    ) -> None:
        self.max_context = max_context
        self.proven = True  # whoever wants a proof first takes this back: head/proof.py
        self.instance = secrets.token_hex(16)
        telemetry = MeshTelemetry(registry)
        link_settings = LinkSettings(
            self.instance,
            TokenFile(settings.token_file),
            settings.heartbeat_seconds,
            settings.silent_seconds,
            telemetry.passed,
        )
        endpoints = Endpoints(link_settings)
        self.context = MeshContext(settings, endpoints, ReplayBudget(settings.replay_bytes), telemetry)
        self._admission = Admission(self.context)
        self._intake = Intake(endpoints.apply)
        self._source = open_source(settings, self._intake)
        self._dns = Dns()
        self._lookup = ServiceLookup(endpoints, resolve or self._dns.resolve, settings.lookup_seconds)
        self._tasks = [
            asyncio.create_task(keep_running(name, run))
            for name, run in (("routes", self._source.run), ("lookup", self._lookup.run), ("watch", self._watch))
        ]
        self._export(registry)

    async def start(self, request: GenerationRequest) -> MeshGeneration:
        """See backend.Backend.start."""
        if len(request.prompt) + request.max_new_tokens > self.max_context:
            raise ApiError(
                f"This model's maximum context length is {self.max_context} tokens. However, you requested "
                f"{len(request.prompt) + request.max_new_tokens} tokens.",
                code="context_length_exceeded",
            )
        stateless = self._stateless()
        strict = any(info.strict for info in self._infos())
        reuse = not (stateless or strict or request.prompt_scores)
        adoption = self.context.conversations.take(request.key, request.prompt) if reuse else None
        generation = MeshGeneration(request, self.context, stateless=stateless, strict=strict, adoption=adoption)
        try:
            await self._admission.admit(generation)
            self.context.running.add(generation)
            await generation.begin()
        except BaseException:
            # Also a cancelled start (the client left while it waited) leaves nothing open at any shard.
            if adoption is not None and not generation.hops:
                self.context.conversations.put(adoption.parked)  # its state was given back, if it was ever taken
            await generation.aclose()
            raise
        return generation

    def has_path(self) -> bool:
        """A complete chain of shards is there for a new request."""
        return plan(self.context.endpoints.all.values()) is not None

    def ready(self) -> bool:
        """A new request would be answered."""
        return self.proven and self.has_path()

    def table_seen(self) -> bool:
        """A route table was read."""
        return self.context.endpoints.table is not None

    def fingerprint(self) -> str:
        """Weights, dtype, cut and software in 12 hex digits; "" while no path is known."""
        stages = plan(self.context.endpoints.all.values())
        if not stages:
            return ""
        parts = [__version__]
        for stage in stages:
            link = stage.endpoint.link
            parts.append(f"{stage.start_layer}-{stage.end_layer}-{link.info.fingerprint if link else ''}")
        return "fp_" + hashlib.sha256(" ".join(parts).encode()).hexdigest()[:12]

    def describe(self) -> dict[str, object]:
        """The body of GET /mesh."""
        table, age = self.context.endpoints.table, self._intake.age
        return {
            "instance": self.instance,
            "table": {"uid": table.uid, "epoch": table.epoch, "age_seconds": round(age, 1)} if table else None,
            "routes": self._source.describe(),
            "lookups": self._lookup.describe(),
            "ready": self.ready(),
            "sessions": {
                "running": len(self.context.running),
                "waiting": self._admission.waiting,
                "list": [describe(generation) for generation in self.context.running],
            },
            "conversations": len(self.context.conversations),
            "replay_bytes": self.context.budget.nbytes,
            "shards": [_describe(endpoint) for endpoint in self.context.endpoints.all.values()],
            "recoveries": list(self.context.telemetry.recent),
        }

    async def aclose(self) -> None:
        """End all generations, then all links."""
        for generation in list(self.context.running):
            await generation.aclose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.context.endpoints.aclose()
        self._dns.close()

    def _stateless(self) -> bool:
        return self.context.settings.stateless or any(not info.stateful for info in self._infos())

    def _infos(self) -> list[Info]:
        return [endpoint.link.info for endpoint in self.context.endpoints.all.values() if endpoint.link is not None]

    async def _watch(self) -> None:
        """Give up rows that a silent or hung shard has kept for longer than their generation may be held."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            now = time.monotonic()
            for generation in list(self.context.running):
                for hop in generation.hops:
                    since = hop.endpoint.suspect_since
                    if since is not None and hop.link is not None and now - since > generation.recovery.hold_seconds:
                        hop.link.abandon("the shard stayed silent for the whole hold time", generation.session)

    def _export(self, registry: CollectorRegistry) -> None:
        running = Gauge("meshnet_generations_running", "Generations that hold state at shards", registry=registry)
        running.set_function(lambda: len(self.context.running))
        waiting = Gauge("meshnet_generations_waiting", "Requests that wait for a free session", registry=registry)
        waiting.set_function(lambda: self._admission.waiting)
        replay = Gauge("meshnet_replay_bytes", "Bytes held by boundary logs", registry=registry)
        replay.set_function(lambda: self.context.budget.nbytes)
        epoch = Gauge("meshnet_routes_epoch", "Epoch of the route table in force", registry=registry)
        epoch.set_function(lambda: self._intake.table.epoch if self._intake.table else 0)
        age = Gauge("meshnet_routes_age_seconds", "Since the route table in force was taken", registry=registry)
        age.set_function(lambda: self._intake.age)
        found = Gauge(
            "meshnet_endpoints_found", "Shards in use by a Service's word, not the table's", registry=registry
        )
        found.set_function(lambda: self._lookup.found)
        followed = Gauge("meshnet_routes_followed", "1 while the route table's source is followed", registry=registry)
        followed.set_function(lambda: self._source.state in FOLLOWED)


def _describe(endpoint: Endpoint) -> dict[str, object]:
    info, pong = (endpoint.link.info, endpoint.link.pong) if endpoint.link is not None else (None, None)
    return {
        "name": endpoint.place.shard.name,
        "layout": endpoint.place.layout.id,
        "layers": [endpoint.place.shard.start_layer, endpoint.place.shard.end_layer],
        "uid": endpoint.uid,
        "from": "service" if endpoint.place.found else "table",
        "address": endpoint.place.route.address,
        "state": ("ready", "suspect", "unavailable", "down")[rank(endpoint)],
        "fault": endpoint.fault,
        "instance": info.instance if info else None,
        "dtype": info.dtype if info else None,
        "device": info.device if info else None,
        "sessions": pong.sessions if pong else None,
        "active": pong.active if pong else None,
        "steps": pong.steps if pong else None,
        "bytes_free": pong.bytes_free if pong else None,
        "generations": endpoint.users,
    }
