"""One shard process: loading, serving, draining; what its routes and links ask for.

Owns the model thread and the engine. The server listens from the first moment: while the weights load, everything that
needs them is answered with `loading`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

import torch
from prometheus_client import CollectorRegistry

from meshnet_node.cache.ledger import Limits
from meshnet_node.cache.states import SessionState
from meshnet_node.cache.store import Store
from meshnet_node.errors import Loading, MeshnetError
from meshnet_node.logs import events
from meshnet_node.metrics import new_registry
from meshnet_node.model.families import boundaries
from meshnet_node.model.identity import fingerprint, model_hash
from meshnet_node.model.source import resolve
from meshnet_node.settings import ShardSettings
from meshnet_node.shard.check import Facts
from meshnet_node.shard.engine import Engine
from meshnet_node.shard.memory import state_budget
from meshnet_node.shard.meters import Meters
from meshnet_node.shard.runner import RangeRunner
from meshnet_node.wire.frames import Info
from meshnet_node.wire.handshake import TokenFile

log = events(__name__)

Progress = Callable[[int, int], None]
Loader = Callable[[ShardSettings, Progress], RangeRunner]

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
CREDITS = 64
HUNG_SECONDS, HUNG_FACTOR = 60.0, 20.0


@dataclass(frozen=True)
class Loaded:
    """Everything that exists only once the weights are there."""

    runner: RangeRunner
    engine: Engine
    info: Info
    facts: Facts


class Shard:
    """`failed` is done with the error that this process must end with. `clock`: monotonic seconds."""

    def __init__(
        self, settings: ShardSettings, load: Loader = RangeRunner.load, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings
        self.instance = secrets.token_hex(16)
        self.pod_uid = settings.pod_uid or secrets.token_hex(8)
        self.tokens = TokenFile(settings.token_file)
        self.registry: CollectorRegistry = new_registry()
        self.meters = Meters(self.registry)
        self.progress = (0, 0)
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._load = load
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._loaded: Loaded | None = None
        self._draining = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def loaded(self) -> Loaded:
        """Raises Loading until the weights are there."""
        if self._loaded is None:
            raise Loading("the weights are being loaded")
        return self._loaded

    @property
    def phase(self) -> Literal["loading", "ready", "draining", "failed"]:
        if self.failed.done():
            return "failed"
        if self._draining:
            return "draining"
        return "loading" if self._loaded is None else "ready"

    @property
    def hung(self) -> bool:
        """One group has been on the model thread far longer than such a group takes."""
        if self._loaded is None:
            return False
        busy, expected = self._loaded.engine.busy
        return busy > max(HUNG_SECONDS, HUNG_FACTOR * expected)

    def start(self) -> None:
        """Begin to load; returns at once."""
        self._spawn(self._bring_up())

    async def stop(self) -> None:
        """End all tasks; a running group is let end in its thread."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def drain(self) -> None:
        """Take no new sessions; returns when none is active, or after drain_seconds."""
        self._draining = True
        log.info("draining")
        if self._loaded is None:
            return
        engine = self._loaded.engine
        engine.desk.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_seconds):
                await engine.quiet()
        log.info("drained", active=engine.store.active)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that died by a bug ends the process: better restarted than serving half."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            log.error("task_died", exc_info=error)
            self.failed.set_result(error)

    async def _bring_up(self) -> None:
        loop = asyncio.get_running_loop()
        began = self._clock()
        log.info("loading", model=self.settings.model, start_layer=self.settings.start_layer)
        try:
            runner, identity, budget = await loop.run_in_executor(self._pool, self._load_model)
        except MeshnetError as error:
            log.error("loading_failed", reason=str(error))
            self.failed.set_result(error)
            return
        info = self._describe(runner, identity, budget, self._clock() - began)
        self._loaded = self._assemble(runner, info)
        log.info("ready", seconds=info.load_seconds, weight_bytes=runner.weight_bytes, state_bytes=budget)

    def _load_model(self) -> tuple[RangeRunner, str, int]:
        """On the model thread: the weights, the model's hash and the budget for states."""
        settings = self.settings
        if settings.threads:
            torch.set_num_threads(settings.threads)
        runner = self._load(settings, self._report)
        files = resolve(
            settings.model,
            revision=settings.revision,
            trust_remote_code=settings.trust_remote_code,
            cache_dir=settings.cache_dir,
        )
        budget = settings.kv_max_bytes or state_budget(runner.device)
        return runner, model_hash(files, settings.cache_dir), budget

    def _report(self, done: int, total: int) -> None:
        self.progress = (done, total)

    def _describe(self, runner: RangeRunner, identity: str, budget: int, seconds: float) -> Info:
        settings = self.settings
        strict = settings.determinism == "strict"
        return Info(
            instance=self.instance,
            pod_uid=self.pod_uid,
            model=settings.model,
            model_hash=identity,
            fingerprint=fingerprint(identity, runner.dtype, runner.schema, self._pins(runner) if strict else ()),
            start_layer=runner.start_layer,
            end_layer=runner.end_layer,
            num_layers=runner.num_layers,
            hidden_size=runner.hidden_size,
            vocab_size=runner.vocab_size,
            dtype=runner.dtype,
            stateful=runner.stateful and not settings.stateless,
            boundaries=[b for b in boundaries(runner.num_layers) if runner.start_layer <= b <= runner.end_layer],
            schema=runner.schema,
            max_context=min(settings.max_context or runner.max_positions, runner.max_positions),
            max_sessions=settings.kv_max_sessions,
            max_bytes=budget,
            max_message_bytes=MAX_MESSAGE_BYTES,
            credits=CREDITS,
            chunk=settings.chunk,
            device=str(runner.device),
            threads=settings.threads or torch.get_num_threads(),
            load_seconds=round(seconds, 3),
            strict=strict,
        )

    def _pins(self, runner: RangeRunner) -> list[str]:
        """What decides on the last bits of a sum, beside the weights: kernels are chosen by these."""
        kind = runner.device.type
        name = torch.cuda.get_device_name(runner.device) if kind == "cuda" else torch.backends.cpu.get_cpu_capability()
        return [
            f"torch {torch.__version__}",
            f"transformers {version('transformers')}",
            f"{kind} {name}",
            f"threads {torch.get_num_threads()}",
            f"chunk {self.settings.chunk}",
        ]

    def _assemble(self, runner: RangeRunner, info: Info) -> Loaded:
        settings = self.settings
        limits = Limits(settings.kv_max_sessions, info.max_bytes, settings.kv_ttl_seconds, settings.lease_seconds)
        store: Store[SessionState] = Store(
            runner, limits, self._clock, lambda reason: self.meters.ended.labels(reason).inc()
        )
        engine = Engine(runner, store, self._pool, self.meters, self._clock, settings.chunk, info.strict)
        engine.desk.draining = self._draining
        self._spawn(engine.run())
        self._spawn(engine.sweep())
        self._export(engine)
        facts = Facts(
            start_layer=info.start_layer,
            end_layer=info.end_layer,
            vocab_size=info.vocab_size,
            hidden_size=info.hidden_size,
            max_context=info.max_context,
            stateful=info.stateful,
            schema=info.schema[0],
        )
        return Loaded(runner, engine, info, facts)

    def _export(self, engine: Engine) -> None:
        store = engine.store
        self.meters.watch("sessions_active", "Sessions that are active", lambda: store.active)
        self.meters.watch("sessions_parked", "Sessions kept for reuse", lambda: len(store) - store.active)
        self.meters.watch("state_bytes", "Bytes of session state", lambda: store.bytes_held)
        self.meters.watch("free_state_bytes", "Bytes that a new session could get", lambda: store.bytes_free)
        self.meters.watch("rows_queued", "Rows that wait for the model thread", lambda: engine.queued)
        self.meters.watch("busy_seconds", "Age of the group on the model thread", lambda: engine.busy[0])
