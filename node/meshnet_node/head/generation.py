"""One generation: the loop that brings every hop up to a position, for prefill, decode, loss, miss and route change.

The generation owns the token log, the boundary logs (keyed by the layer that they feed) and its hops. Each hop is its
own consumer of the log before it; a hop that lost its state only goes back in `filled`, and the same loop replays it.
What to do about a fault is decided in recovery.py.

Invariants: logs are write-once, so no recomputed value replaces one that a later hop has seen; a token is appended
once; hop.filled never exceeds what its shard is known to hold.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator
from typing import Literal

from meshnet_node.errors import ApiError, LinkLost, WireError
from meshnet_node.head.backend import GeneratedToken, GenerationRequest
from meshnet_node.head.boundary import BoundaryLog
from meshnet_node.head.context import MeshContext
from meshnet_node.head.conversations import Adoption
from meshnet_node.head.hop import Hop
from meshnet_node.head.leaving import leave
from meshnet_node.head.path import Stage
from meshnet_node.head.pulse import Pulse
from meshnet_node.head.recovery import Rebuild, Recovery, Repath
from meshnet_node.head.shapes import Shapes
from meshnet_node.head.tokenlog import TokenLog
from meshnet_node.wire.frames import Open, RowResult, Score

CHUNKS_AHEAD = 2
REPLAY_CHUNKS = 4


class MeshGeneration:
    """Implements backend.Generation. Made by mesh.Mesh.start, which opens the hops before anyone iterates."""

    def __init__(
        self,
        request: GenerationRequest,
        context: MeshContext,
        *,
        stateless: bool,
        strict: bool = False,
        adoption: Adoption | None = None,
    ) -> None:
        self.adoption = adoption
        self.shapes = Shapes(len(request.prompt), context.settings.chunk) if strict else None
        self.request = request
        self.context = context
        self.stateless = stateless
        self.session = secrets.token_hex(16)
        self.tokens = TokenLog(request.prompt, scored=request.prompt_scores)
        self.hops: list[Hop] = []
        self.logs: dict[int, BoundaryLog] = {}
        self.cached_tokens = 0
        self.pulse = Pulse()
        self.accepted = asyncio.Event()
        self.recovery = Recovery(self)
        self._attempts = itertools.count(1)
        self._last: Score | None = None
        self._task: asyncio.Task[None] | None = None
        self._finished = False
        self._closed = False

    @property
    def prompt_scores(self) -> list[Score]:
        """One per prompt position, complete before the first token; empty unless asked for."""
        return self.tokens.prompt_scores

    @property
    def max_positions(self) -> int:
        """Positions that each shard has to reserve: the last token is sampled, never fed."""
        return len(self.request.prompt) + self.request.max_new_tokens - 1

    def set_path(self, stages: list[Stage]) -> None:
        """Go by this path from now on: hops that stay keep their state, logs that no hop needs are given back."""
        kept = {(hop.endpoint, hop.stage.start_layer, hop.stage.end_layer): hop for hop in self.hops}
        hops = []
        for stage in stages:
            hop = kept.pop((stage.endpoint, stage.start_layer, stage.end_layer), None)
            hops.append(hop or Hop(self.session, stage, is_last=stage is stages[-1]))
        for hop in kept.values():
            hop.release(keep=False)
        self.hops = hops
        wanted = {stage.start_layer for stage in stages[1:]}
        for layer in self.logs.keys() - wanted:
            self.logs.pop(layer).release()
        for layer in wanted - self.logs.keys():
            self.logs[layer] = BoundaryLog(self.context.budget)

    def open_frame(self, hop: Hop, *, recovery: bool) -> tuple[int, Open | None]:
        """The next attempt, and the frame that opens this hop with it (None on a stateless path)."""
        attempt = next(self._attempts)
        if self.stateless:
            return attempt, None
        frame = Open(
            session=self.session,
            attempt=attempt,
            start_layer=hop.stage.start_layer,
            max_positions=self.max_positions,
            recovery=recovery,
            hops=len(self.hops),
        )
        if self.adoption is not None and not recovery:
            frame.source, frame.at, frame.take = self.adoption.parked.session, self.adoption.at, self.adoption.take
        return attempt, frame

    def opened(self, haves: list[int]) -> None:
        """All hops are open and hold so many positions (of an adopted conversation); logs begin where their hops do."""
        for hop, have in zip(self.hops, haves, strict=True):
            hop.filled = hop.reached = min(have, len(self.request.prompt) - 1)
            if not hop.is_last:
                self._begin_log(hop.stage.end_layer + 1, hop.filled)
        self.cached_tokens = min(hop.filled for hop in self.hops)
        if self.adoption is not None and self.adoption.take == "adopt":
            self.adoption.parked.release()

    def _begin_log(self, layer: int, filled: int) -> None:
        """The log that feeds this layer: the adopted conversation's own where it is whole, else one without a past."""
        adopted = self.adoption.parked.logs if self.adoption is not None and self.adoption.take == "adopt" else {}
        kept = adopted.get(layer)
        if kept is None or kept.base > 0 or kept.end < filled:
            self.logs[layer].begin_at(filled)
            return
        self.logs[layer].release()
        self.logs[layer] = adopted.pop(layer)
        kept.cut(filled)
        kept.parked = False
        kept.consumed_to(filled)

    def roll_back(self) -> None:
        """Not all hops could be opened: give back those that were, and an adopted state to its parked session."""
        for hop in self.hops:
            hop.release(keep=self.adoption is not None and self.adoption.take == "adopt")
        self.hops = []
        self.set_path([])

    def produced(self, hop: Hop) -> int:
        """Positions whose output by this hop is kept here: what lies beyond must be computed (again)."""
        if hop.is_last:
            return self.tokens.produced
        return self.logs[hop.stage.end_layer + 1].end

    async def begin(self) -> None:
        """Start on the first token; returns when the first chunk is accepted by the first hop, or raises."""
        self._task = asyncio.create_task(self._bring_up(len(self.tokens)))
        accepted = asyncio.create_task(self.accepted.wait())
        try:
            await asyncio.wait({self._task, accepted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            accepted.cancel()
        if self._task.done():
            self._task.result()

    async def __aiter__(self) -> AsyncIterator[GeneratedToken]:
        while not self._finished and not self._closed:
            yield await self._next()

    async def aclose(self, *, keep: bool = True) -> None:
        """End it at every shard that was reached. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.hops:
            leave(self, keep=keep and all(hop.synced for hop in self.hops))
        for log in self.logs.values():
            log.release()
        self.context.running.discard(self)

    async def _next(self) -> GeneratedToken:
        if self._task is None:
            self._task = asyncio.create_task(self._bring_up(len(self.tokens)))
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._closed:
                raise ApiError("the generation was closed", status=499, type="server_error") from None
            raise
        self._task = None
        score = self._last
        if score is None:
            raise ApiError("the last shard gave no token", status=500, type="server_error")
        finish: Literal["stop", "length"] | None = None
        if score.id in self.request.stop_ids:
            finish = "stop"
        elif self.tokens.generated >= self.request.max_new_tokens:
            finish = "length"
        self._finished = finish is not None
        return GeneratedToken(score, finish)

    async def _bring_up(self, target: int) -> None:
        """All hops up to `target`; the last one's output there is appended as the next token."""
        if self.stateless:
            self._forget()
        while True:
            self.recovery.leave_draining()
            try:
                await self._pass(target)
                return
            except Rebuild as rebuild:
                self.recovery.rebuild(rebuild.hop)
            except Repath as repath:
                self.recovery.repath(repath)

    async def _pass(self, target: int) -> None:
        """One run over all hops: one after the other when little is missing, else side by side in chunks."""
        missing = target - min(hop.filled for hop in self.hops)
        if missing <= 1 or self.stateless or len(self.hops) == 1:
            for hop in self.hops:
                await self._fill(hop, target)
            return
        tasks = [asyncio.create_task(self._fill(hop, target)) for hop in self.hops]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _fill(self, hop: Hop, target: int) -> None:
        """Bring one hop up to `target`, taking its input from the log before it as it grows."""
        while hop.filled < target or not hop.synced:
            if not hop.synced:
                await self.recovery.reopen(hop)
                continue
            stop = await self._ready_rows(hop, target)
            try:
                await self._forward(hop, stop, target)
            except (LinkLost, WireError) as fault:
                self.recovery.fault(hop, fault)

    async def _ready_rows(self, hop: Hop, target: int) -> int:
        """Wait until input is there and the next hop is not too far behind; the position to run up to."""
        chunk = self.context.settings.chunk
        following = None if hop.is_last else self.hops[self.hops.index(hop) + 1]
        while True:
            beat = self.pulse.next()
            available = target
            if hop.stage.start_layer:
                log = self.logs[hop.stage.start_layer]
                if hop.filled < log.base:
                    raise Rebuild(hop)
                available = min(target, log.end)
            ahead = following is not None and hop.filled - following.filled >= CHUNKS_AHEAD * chunk
            if available > hop.filled and not (ahead and hop.filled >= hop.reached):
                break
            await Pulse.wait(beat)
        if self.stateless:
            return available
        if self.shapes is not None:
            return min(available, self.shapes.end(hop.filled))
        replaying = hop.filled < hop.reached and available >= hop.reached
        return min(available, hop.filled + chunk * (REPLAY_CHUNKS if replaying else 1))

    async def _forward(self, hop: Hop, stop: int, target: int) -> None:
        start = hop.filled
        log = self.logs[hop.stage.start_layer] if hop.stage.start_layer else None
        payload = log.rows(start, stop) if log is not None else ([], [])
        sampled = hop.is_last and stop == target
        scoring = hop.is_last and self.tokens.scoring
        sampling = self.request.sampling_at(self.tokens.generated) if sampled or scoring else None
        want: Literal["none", "last", "all"] = "last" if sampled else "none"
        targets = b""
        if scoring:
            want, targets = "all", self.tokens.targets(start, stop)
        tokens, content = self.tokens.packed(start, stop), self.tokens.content(start)
        mode: Literal["cached", "none"] = "none" if self.stateless else "cached"
        result, tensors = await hop.forward(start, tokens, content, payload, want, mode, sampling, targets)
        if not hop.is_last:
            self.logs[hop.stage.end_layer + 1].put(start, stop - start, result.tensors, tensors)
        else:
            self._take_output(result, start, sampled=sampled)
        progress = stop > hop.reached
        hop.advance(stop - start)
        if log is not None:
            log.consumed_to(hop.filled)
        if progress:
            self.accepted.set()
            self.recovery.progressed(new_token=sampled)
        self.pulse.beat()

    def _take_output(self, result: RowResult, start: int, *, sampled: bool) -> None:
        if self.tokens.scoring:
            self.tokens.take_scores(start, result.scores)
        if sampled:
            if result.token is None:
                raise LinkLost("the last shard answered without a token")
            self._last = result.token
            self.tokens.append(result.token.id)

    def _forget(self) -> None:
        """Stateless: every step starts from nothing."""
        for hop in self.hops:
            hop.filled = 0
        for log in self.logs.values():
            log.restart()
