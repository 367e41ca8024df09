"""The batch engine: rows in, answers out. One thread computes; the event loop decides and never computes.

The engine owns the store and the queue. A row is judged when its turn comes (cache/rows.py), runs in pieces of at most
`chunk` positions, and its answer goes to the sink that asked. What a close, a reset or a lapsed lease wants of a
session whose piece is running is done when that piece has ended.

Invariants: at most one group is on the model thread; a session is marked as running exactly while its piece is there;
each row that was submitted is answered once. `except Exception` around the model is one of the two documented places:
whatever it raises costs the group's sessions their state, never the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from meshnet_node.cache import rows
from meshnet_node.cache.sessions import Session
from meshnet_node.cache.states import SessionState
from meshnet_node.cache.store import Store
from meshnet_node.errors import (
    IntegrityError,
    SessionClosed,
    ShardFault,
    Stale,
    WireError,
)
from meshnet_node.logs import events
from meshnet_node.shard.compute import Job, Output, compute
from meshnet_node.shard.desk import Desk
from meshnet_node.shard.items import Item, Reply, deliver
from meshnet_node.shard.jobs import answer, check_input, next_job
from meshnet_node.shard.meters import Meters
from meshnet_node.shard.pace import Pace
from meshnet_node.shard.queue import Facts, RowQueue
from meshnet_node.shard.runner import RangeRunner
from meshnet_node.wire.frames import Pong

log = events(__name__)

SWEEP_SECONDS = 0.25
CHECK_SECONDS = 1.0


class Engine:
    """`run` and `sweep` are the two tasks that its owner starts; `pool` has exactly one thread."""

    def __init__(
        self,
        runner: RangeRunner,
        store: Store[SessionState],
        pool: ThreadPoolExecutor,
        meters: Meters,
        clock: Callable[[], float],
        chunk: int,
        strict: bool = False,
    ) -> None:
        self.store = store
        self.steps = 0
        self._runner = runner
        self._pool = pool
        self._meters = meters
        self._clock = clock
        self._chunk = chunk
        self._strict = strict
        self._queue = RowQueue(self._facts)
        self._pace = Pace()
        self.desk = Desk(store, self._queue, self._answer)
        self._wake = asyncio.Event()
        self._busy: tuple[float, float] | None = None
        self._checked_at = 0.0

    @property
    def busy(self) -> tuple[float, float]:
        """Seconds that the group on the model thread has been running, and that such a group usually takes."""
        return (0.0, 0.0) if self._busy is None else (self._clock() - self._busy[0], self._busy[1])

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def idle(self) -> bool:
        return self._busy is None and len(self._queue) == 0

    def submit(self, items: Sequence[Item]) -> None:
        """Queue checked rows; each is answered once, through its sink."""
        for item in items:
            stale = self._queue.push(item)
            self._answer([(old, old.refused(Stale("a higher attempt of the session came"))) for old in stale])
        self._wake.set()

    def pong(self, seq: int, owner: str) -> Pong:
        """The heartbeat's answer; renews the leases of this owner's sessions."""
        self.store.renew(owner)
        busy, expected = self.busy
        return Pong(
            seq=seq,
            steps=self.steps,
            busy=busy,
            expected=expected,
            queue=len(self._queue),
            bytes_free=self.store.bytes_free,
            sessions=len(self.store),
            active=self.store.active,
            draining=self.desk.draining,
        )

    async def run(self) -> None:
        """Run groups for ever."""
        while True:
            group = self._next_group()
            if group:
                await self._run_group(group)
                continue
            self._check_accounts()
            await self._wake.wait()
            self._wake.clear()

    async def sweep(self) -> None:
        """Let time pass for leases, TTL and tombstones, for ever."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.store.sweep()
            self.desk.settled()
            self._check_accounts()

    async def quiet(self) -> None:
        """Until no session is active and no row waits or runs."""
        while self.store.active or not self.idle:
            await self.desk.wait()

    def _facts(self, item: Item) -> Facts:
        entry = self.store.find(item.row.session) if item.cached else None
        if entry is None:
            return Facts(item.start_layer, recovery=False, hops=1)
        return Facts(entry.start_layer, entry.recovery, entry.hops)

    def _next_group(self) -> list[tuple[Item, Job]]:
        """The next rows that may run; those that may not are answered on the way."""
        while picked := self._queue.pick(self.store.active):
            group = []
            for item in picked:
                try:
                    job = self._admit(item)
                except WireError as error:
                    self._answer([(item, item.refused(error))])
                    continue
                if job is not None:
                    group.append((item, job))
            if group:
                return group
        return []

    def _admit(self, item: Item) -> Job | None:
        """The next piece of a row, its session marked as running; None where it was answered as a repeat."""
        row = item.row
        if not item.cached:
            check_input(item, item.start_layer)
            return next_job(item, None, row.n)
        entry = self.store.find(row.session)
        if entry is not None and not entry.active and not item.sink.alive:
            raise SessionClosed("the head went silent and its connection is gone")
        if item.session is None:
            if entry is not None:
                check_input(item, entry.start_layer)
            verdict = rows.admit(self.store, row, item.owner)
            if isinstance(verdict, rows.Repeat):
                self._meters.rows.labels("repeat").inc()
                if isinstance(verdict.reply, Reply):
                    item.sink.deliver([verdict.reply])
                return None
            item.session = verdict.session
        else:
            verdict = rows.resume(self.store, row, item.owner, item.session, item.done)
        return next_job(item, verdict.session, min(self._chunk, item.left))

    async def _run_group(self, group: list[tuple[Item, Job]]) -> None:
        first = group[0][0]
        decode = first.is_decode
        positions = sum(len(job.tokens) for _, job in group)
        began = self._clock()
        self._busy = (began, self._pace.expected(positions, decode=decode))
        start_layer = self._facts(first).start_layer
        loop = asyncio.get_running_loop()
        try:
            outputs = await loop.run_in_executor(
                self._pool, compute, self._runner, [job for _, job in group], start_layer, self._strict
            )
        except Exception as error:  # the model's boundary: see the module's docstring
            self._fail(group, error)
            return
        finally:
            self._busy = None
            self.steps += 1
        seconds = self._clock() - began
        self._pace.took(seconds, positions, decode=decode)
        kind = "decode" if decode else "chunk"
        self._meters.groups.labels(kind).observe(seconds)
        self._meters.positions.labels(kind).inc(positions)
        self._apply(group, outputs)

    def _apply(self, group: list[tuple[Item, Job]], outputs: Sequence[Output]) -> None:
        answers = []
        for (item, job), output in zip(group, outputs, strict=True):
            reply = self._finish(item, job, output)
            if reply is None and not self._queue.push_back(item):
                reply = item.refused(Stale("a higher attempt of the session came"))
            if reply is not None:
                answers.append((item, reply))
        self.desk.settled()
        self._answer(answers)

    def _finish(self, item: Item, job: Job, output: Output) -> Reply | None:
        """Book one piece that ran; the answer where it was the row's last."""
        session = item.session
        if output.broken:
            self._drop(session)
            return item.refused(ShardFault("the model put out NaN for this row; its session was dropped"))
        if session is not None:
            rows.record(session, job.tokens)
            if self.store.settle(session):
                return item.refused(SessionClosed("the session was closed while the row ran"))
        item.done += len(job.tokens)
        item.scores += output.scores
        if output.tensor is not None:
            item.outputs.append(output.tensor)
        if item.left:
            return None
        reply = answer(item, output, self._runner)
        if session is not None:
            rows.answered(session, item.row, reply)
        return reply

    def _fail(self, group: list[tuple[Item, Job]], error: Exception) -> None:
        """The states of the group are unknown: they go, and the rows are told so."""
        log.error("model_failed", exc_info=error, rows=len(group), positions=sum(len(job.tokens) for _, job in group))
        if isinstance(error, torch.cuda.OutOfMemoryError):
            torch.cuda.empty_cache()
        for item, _ in group:
            self._drop(item.session)
        self.desk.settled()
        fault = ShardFault(f"the model failed: {type(error).__name__}; the session was dropped")
        self._answer([(item, item.refused(fault)) for item, _ in group])

    def _drop(self, session: Session[SessionState] | None) -> None:
        if session is None:
            return
        session.running, session.ending = False, None
        self.store.free(session, "fault")

    def _answer(self, answers: list[tuple[Item, Reply]]) -> None:
        for _, reply in answers:
            self._meters.rows.labels("ok" if reply.result.error is None else reply.result.error.code).inc()
        deliver(answers)

    def _check_accounts(self) -> None:
        """When idle, in production too: a wrong account is a bug, logged and counted."""
        now = self._clock()
        if now - self._checked_at < CHECK_SECONDS or not self.idle:
            return
        self._checked_at = now
        try:
            self.store.check()
        except IntegrityError as error:
            self._meters.integrity.inc()
            log.error("integrity_check_failed", reason=str(error))
