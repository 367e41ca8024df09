"""What to do about a fault: where to open the hop again, when to take another path, when to give up.

The mechanism is the generation's loop; here are only decisions. A fault marks its hop as not synced. `reopen` then
finds an endpoint (the same one for a refusal, another one first for a lost link), opens with a higher attempt, and
sets `filled` to what that shard holds and what is kept here of its output. Never an unbounded loop: tries are counted
per new token, waits back off and end with the hold time.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

from meshnet_node.errors import CacheMiss, Draining, LinkLost, MeshnetError, WireError, overloaded
from meshnet_node.head.path import pick, plan, replacements
from meshnet_node.head.pulse import Pulse

if TYPE_CHECKING:
    from meshnet_node.head.endpoints import Endpoint
    from meshnet_node.head.generation import MeshGeneration
    from meshnet_node.head.hop import Hop
    from meshnet_node.head.path import Stage

MAX_TRIES = 32
BACKOFF_FIRST, BACKOFF_MOST = 0.05, 1.0
OPEN_SECONDS = 5.0
DRAIN_STAGGER_SECONDS = 2.0
LOAD_FACTOR = 2.0


class Rebuild(Exception):
    """This hop needs rows that its boundary log no longer has: the hop before it has to make them again."""

    def __init__(self, hop: Hop) -> None:
        super().__init__()
        self.hop = hop


class Repath(Exception):
    """No endpoint can stand in for this hop, but another complete path exists."""

    def __init__(self, hop: Hop, stages: list[Stage]) -> None:
        super().__init__()
        self.hop = hop
        self.stages = stages


class Recovery:
    """The recovery of one generation: its count of tries, and since when it has been in trouble (monotonic seconds)."""

    def __init__(self, generation: MeshGeneration) -> None:
        self._generation = generation
        self._tries = 0
        self._since: float | None = None
        self._fingerprint = ""

    @property
    def hold_seconds(self) -> float:
        """How long the stream is held while nothing can go on."""
        context, request = self._generation.context, self._generation.request
        loads = [hop.link.info.load_seconds for hop in self._generation.hops if hop.link is not None]
        hold = max(context.settings.hold_seconds, LOAD_FACTOR * max(loads, default=0.0))
        return hold if request.max_hold is None else min(hold, request.max_hold)

    def fault(self, hop: Hop, fault: LinkLost | WireError) -> None:
        """A forward failed. A second miss in a row without progress starts that hop from 0."""
        if isinstance(fault, CacheMiss):
            again = isinstance(hop.fault, CacheMiss)
            hop.resume_at = 0 if again or fault.have is None else fault.have
        hop.fell_back(fault)
        self._in_trouble(hop.endpoint.suspect_since)

    def progressed(self, *, new_token: bool) -> None:
        """A position was computed that had never been before: the trouble is over."""
        if self._since is not None:
            self._generation.context.telemetry.stalled(self._generation.session, time.monotonic() - self._since)
            self._since = None
        if new_token:
            self._tries = 0

    async def reopen(self, hop: Hop) -> None:
        """Open this hop where it is or elsewhere, and set what it has. Raises Repath, or ApiError when all is spent."""
        fault = hop.fault
        if fault is not None:
            await self._count_try()
        while True:
            beat = self._generation.context.endpoints.changed.next()
            endpoint = self._choose(hop)
            if endpoint is None:
                self._look_for_path(hop)
            elif await self._open(hop, endpoint, fault):
                return
            self._in_trouble(None)
            await Pulse.wait(beat, self._remaining())

    def rebuild(self, hop: Hop) -> None:
        """The hop before this one goes back to 0 and makes the missing rows again."""
        hops = self._generation.hops
        before = hops[hops.index(hop) - 1]
        log = self._generation.logs[hop.stage.start_layer]
        log.restart()
        log.consumed_to(hop.filled)
        self._note(before, "rebuild", "log_dropped", before.filled)
        before.filled = 0
        before.resume_at = 0
        before.synced = False

    def repath(self, repath: Repath) -> None:
        """Go by another path from now on."""
        self._note(repath.hop, "repath", _cause(repath.hop.fault), repath.hop.filled)
        self._generation.set_path(repath.stages)

    def leave_draining(self) -> None:
        """Leave an endpoint that is being taken down, once another is ready; staggered, not all at once."""
        for hop in self._generation.hops:
            if not hop.endpoint.leaving or not hop.synced:
                continue
            now = time.monotonic()
            if hop.leave_at is None:
                hop.leave_at = now + random.uniform(0, DRAIN_STAGGER_SECONDS)
            elif now >= hop.leave_at and any(endpoint.opens for endpoint in self._candidates(hop)):
                hop.fell_back(Draining("the shard is being taken down"))

    def _candidates(self, hop: Hop) -> list[Endpoint]:
        if hop.link is not None:
            self._fingerprint = hop.link.info.fingerprint
        everyone = self._generation.context.endpoints.all.values()
        found = replacements(everyone, hop.stage, self._fingerprint)
        if hop.endpoint.up and hop.endpoint not in found:
            found.append(hop.endpoint)
        return found

    def _choose(self, hop: Hop) -> Endpoint | None:
        """The same endpoint after a refusal; after a lost link another one first, and the same when it is back."""
        candidates = self._candidates(hop)
        elsewhere = isinstance(hop.fault, LinkLost | Draining)
        if not elsewhere and hop.endpoint.healthy:
            return hop.endpoint
        others = [endpoint for endpoint in candidates if endpoint is not hop.endpoint]
        return pick(others) or pick(candidates, worst=2)

    async def _open(self, hop: Hop, endpoint: Endpoint, fault: Exception | None) -> bool:
        """True when the hop is usable again."""
        generation = self._generation
        moved = endpoint is not hop.endpoint
        before = hop.filled
        attempt, frame = generation.open_frame(hop, recovery=True)
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                have = await hop.open(endpoint, attempt, frame)
        except (MeshnetError, TimeoutError) as error:
            hop.fault = error if isinstance(error, MeshnetError) else LinkLost("the shard did not answer an open")
            return False
        limits = [have, generation.produced(hop)]
        if hop.resume_at is not None:
            limits.append(hop.resume_at)
        hop.filled = min(limits)
        if generation.shapes is not None:
            hop.filled = generation.shapes.begin(hop.filled)
        if hop.stage.start_layer:
            generation.logs[hop.stage.start_layer].consumed_to(hop.filled)
        kind = "moved" if moved else "replay" if hop.filled == 0 else "resume"
        if fault is not None:
            self._note(hop, kind, _cause(fault), max(0, before - hop.filled))
        return True

    def _look_for_path(self, hop: Hop) -> None:
        """Raise Repath where a complete path of the same fingerprint exists."""

        def fits(endpoint: Endpoint) -> bool:
            return endpoint.link is not None and endpoint.link.info.fingerprint == self._fingerprint

        stages = plan(self._generation.context.endpoints.all.values(), fits)
        if stages is not None:
            raise Repath(hop, stages)

    def _in_trouble(self, since: float | None) -> None:
        if self._since is None:
            self._since = time.monotonic() if since is None else since

    def _remaining(self) -> float:
        """Seconds of the hold that are left, at most the back-off's longest; raises when it is spent."""
        since = time.monotonic() if self._since is None else self._since
        left = since + self.hold_seconds - time.monotonic()
        if left <= 0:
            self._generation.context.telemetry.spent()
            raise overloaded(f"no shard could go on with this answer for {self.hold_seconds:.0f} seconds")
        return min(left, BACKOFF_MOST)

    async def _count_try(self) -> None:
        """Bound and slow down tries that bring no new token; the first two are immediate."""
        self._tries += 1
        if self._tries > MAX_TRIES:
            self._generation.context.telemetry.spent()
            raise overloaded(f"{MAX_TRIES} recoveries in a row brought no new token")
        if self._tries > 2:
            await asyncio.sleep(min(BACKOFF_MOST, BACKOFF_FIRST * 2 ** (self._tries - 3)))

    def _note(self, hop: Hop, kind: str, cause: str, replayed: int) -> None:
        layers = (hop.stage.start_layer, hop.stage.end_layer)
        self._generation.context.telemetry.recovered(self._generation.session, layers, cause, kind, replayed)


def _cause(fault: Exception | None) -> str:
    """The closed list of causes: a refusal's code, link_lost, or none (nothing was wrong with the hop itself)."""
    if isinstance(fault, WireError):
        return fault.code
    return "none" if fault is None else "link_lost"
