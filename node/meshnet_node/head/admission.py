"""Who may start: a queue in order of arrival in front of the opens on all hops (docs/architecture.md, Sessions).

A request is promised only when every hop has reserved its state. While the oldest one is refused, it tries again at
each close and heartbeat; it waits at most `queue_seconds`, and is then refused with 503 `overloaded`. Nothing that
runs is ever disturbed by one that waits.
"""

from __future__ import annotations

import asyncio
import time

from meshnet_node.errors import ApiError, LinkLost, OverCapacity, TooLarge, WireError, overloaded
from meshnet_node.head.context import MeshContext
from meshnet_node.head.generation import MeshGeneration
from meshnet_node.head.path import plan
from meshnet_node.head.pulse import Pulse

OPEN_SECONDS = 5.0


class Admission:
    """One per head. waiting: requests in the queue now."""

    def __init__(self, context: MeshContext) -> None:
        self.waiting = 0
        self.refused = 0
        self._context = context
        self._turn = asyncio.Lock()

    async def admit(self, generation: MeshGeneration) -> None:
        """Open all hops. Raises ApiError 503 when that was not possible in time; nothing is left open then."""
        seconds = self._context.settings.queue_seconds
        deadline = time.monotonic() + seconds
        self.waiting += 1
        try:
            async with asyncio.timeout(seconds):
                await self._turn.acquire()
            try:
                await self._admit(generation, deadline)
            finally:
                self._turn.release()
        except TimeoutError:
            self.refused += 1
            raise overloaded("the mesh is full: too many requests are waiting before this one") from None
        except ApiError:
            self.refused += 1
            raise
        finally:
            self.waiting -= 1

    async def _admit(self, generation: MeshGeneration, deadline: float) -> None:
        while True:
            beat = self._context.endpoints.changed.next()
            reason = await self._try(generation)
            if reason is None:
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise reason
            await Pulse.wait(beat, left)

    async def _try(self, generation: MeshGeneration) -> ApiError | None:
        """Open every hop in path order, or none; the reason why not."""
        adoption = generation.adoption
        if adoption is not None and not adoption.parked.usable:
            if adoption.take == "adopt":  # nobody else knows its logs any more
                adoption.parked.release()
            adoption = generation.adoption = None
        stages = list(adoption.parked.stages) if adoption else plan(self._context.endpoints.all.values())
        if stages is None:
            return ApiError(
                "no complete path of shards is ready", status=503, type="server_error", code="not_ready", retry_after=5
            )
        generation.set_path(stages)
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                haves = []
                for hop in generation.hops:
                    attempt, frame = generation.open_frame(hop, recovery=False)
                    haves.append(await hop.open(hop.endpoint, attempt, frame))
        except OverCapacity as refusal:
            generation.roll_back()
            return overloaded(f"the mesh is full: {refusal.message}")
        except TooLarge as refusal:
            generation.roll_back()
            raise ApiError(
                f"the answer may need {generation.max_positions} positions, more than a shard can hold: ask for fewer "
                f"max_tokens ({refusal.message})",
                code="context_length_exceeded",
                param="max_tokens",
            ) from refusal
        except (WireError, LinkLost, TimeoutError) as fault:
            generation.roll_back()
            return overloaded(f"a shard could not be opened: {fault}")
        except asyncio.CancelledError:
            generation.roll_back()
            raise
        generation.opened(haves)
        return None
