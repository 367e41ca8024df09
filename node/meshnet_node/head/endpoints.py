"""A shard that the head keeps dialled: its link comes up, goes silent, and comes back here.

An Endpoint owns at most one live link. It is redialled with back-off (0.1 to 1 s) for as long as it is listed. Who
answers at its address is checked at each hello (place.py); somebody else there is never used and never given up on.
Sessions that were closed while the link was away are closed again when the same instance is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from meshnet_node.errors import LinkLost, MeshnetError, Unauthorized, WrongShard
from meshnet_node.head.place import Place, identified
from meshnet_node.head.pulse import Pulse
from meshnet_node.logs import events
from meshnet_node.wire.dial import dial
from meshnet_node.wire.frames import Close, Info
from meshnet_node.wire.handshake import TokenFile
from meshnet_node.wire.link import ShardLink

log = events(__name__)

BACKOFF_FIRST, BACKOFF_MOST = 0.1, 1.0
HUNG_SECONDS, HUNG_FACTOR = 2.0, 10.0
CLOSE_RETRY_SECONDS = 2.0


@dataclass(frozen=True)
class LinkSettings:
    """What dialling and watching need: this head's instance, the shard tokens, heartbeat and silence in seconds.

    count: is told the bytes that were sent and received since it was last told.
    """

    instance: str
    tokens: TokenFile
    heartbeat_seconds: float
    silent_seconds: float
    count: Callable[[int, int], None]


class Peers(Protocol):
    """What an endpoint asks of the others; roster.py answers."""

    def has_alternative(self, suspect: Endpoint) -> bool:
        """Another endpoint can take over the whole range of a suspect one."""
        ...

    def refusal(self, place: Place, info: Info) -> str:
        """Why a shard that says this of itself must not be used there; "" = it may."""
        ...


class Endpoint:
    """One shard process as the head sees it. `changed` beats whenever the link or its health changed.

    users: hops of running generations that are here. suspect_since: monotonic seconds, None = nothing is wrong.
    mistaken: somebody else answered at its address when it was last dialled.
    """

    def __init__(self, place: Place, settings: LinkSettings, changed: Pulse, peers: Peers) -> None:
        self.place = place
        self.link: ShardLink | None = None
        self.listed = True
        self.fault = "not dialled yet"
        self.mistaken = False
        self.suspect_since: float | None = None
        self.users = 0
        self._settings = settings
        self._changed = changed
        self._peers = peers
        self._closing: dict[str, Close] = {}
        self._closing_instance = ""
        self._asked: dict[str, Close] = {}
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @property
    def uid(self) -> str:
        """The pod's uid, by which the table names this process; "" while a found one has not said it."""
        return self.place.route.uid

    @property
    def name(self) -> str:
        """What logs call it."""
        return self.uid or self.place.route.address

    @property
    def up(self) -> bool:
        """There is a live link."""
        return self.link is not None and not self.link.lost.done()

    @property
    def healthy(self) -> bool:
        """Up, answering its heartbeat, and its engine is not hung."""
        return self.up and self.suspect_since is None

    @property
    def leaving(self) -> bool:
        """Its pod is being taken down: no new sessions, running ones leave when there is somewhere to go."""
        return self.place.route.state == "draining" or (self.link is not None and self.link.pong.draining)

    @property
    def opens(self) -> bool:
        """New sessions may go here: healthy, listed, and not draining."""
        return self.healthy and self.listed and not self.leaving

    @property
    def load(self) -> float:
        """Share of its session places that are active, from the last heartbeat."""
        if self.link is None:
            return 1.0
        return self.link.pong.active / max(1, self.link.info.max_sessions)

    def covers_same(self, other: Endpoint) -> bool:
        """Both serve the same layers of the same model."""
        mine, theirs = self.place, other.place
        return (mine.shard.start_layer, mine.shard.end_layer, mine.layout.fingerprint) == (
            theirs.shard.start_layer,
            theirs.shard.end_layer,
            theirs.layout.fingerprint,
        )

    def close_session(self, frame: Close) -> None:
        """End a session here, again and again until it is acknowledged or the instance is another."""
        if self.link is None:
            return
        if self._closing_instance != self.link.info.instance:
            self._closing.clear()
            self._closing_instance = self.link.info.instance
        self._closing[frame.session] = frame
        self._wake.set()

    async def aclose(self) -> None:
        """End the link and stop dialling."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self.link is not None:
            await self.link.aclose()

    async def _run(self) -> None:
        delay = BACKOFF_FIRST
        while self.listed or self.up:
            try:
                self.link = await self._dial()
            except (MeshnetError, OSError) as error:
                self._failed(error)
                await asyncio.sleep(delay)
                delay = min(BACKOFF_MOST, delay * 2)
                continue
            delay, self.fault, self.mistaken = BACKOFF_FIRST, "", False
            self.link.lost.add_done_callback(lambda _: self._wake.set())
            self._changed.beat()
            await self._watch(self.link)
            self.fault, self.suspect_since = self.link.lost.result(), None
            log.info("link lost", endpoint=self.name, reason=self.fault)
            self._changed.beat()
            await self.link.aclose()

    def _failed(self, error: Exception) -> None:
        self.mistaken = isinstance(error, WrongShard | Unauthorized)
        if str(error) != self.fault:
            self.fault = str(error)
            log.info("endpoint not usable", endpoint=self.name, reason=self.fault)
            self._changed.beat()

    async def _dial(self) -> ShardLink:
        tokens = self._settings.tokens
        try:
            link = await dial(self.place.route.address, self._settings.instance, tokens.tokens)
        except Unauthorized:
            tokens.reload()
            raise
        if fault := self._peers.refusal(self.place, link.info):
            await link.aclose()
            raise WrongShard(f"{self.place.route.address} {fault}")
        self.place = identified(self.place, link.info)
        return link

    async def _watch(self, link: ShardLink) -> None:
        """Heartbeat, suspicion and repeated closes, until the link is lost."""
        closed_at = 0.0
        self._asked.clear()
        while not link.lost.done():
            link.ping()
            self._settings.count(*link.take_traffic())
            self._judge(link)
            if self.suspect_since is not None and self._peers.has_alternative(self):
                link.abandon("the shard is silent or hung, and another one is ready")
            if time.monotonic() - closed_at > CLOSE_RETRY_SECONDS:
                closed_at = time.monotonic()
                self._asked.clear()
            self._send_closes(link)
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.heartbeat_seconds):
                    await self._wake.wait()
            self._changed.beat()

    def _judge(self, link: ShardLink) -> None:
        """Suspect when no pong came for `silent_seconds`, or one batch runs far longer than such a batch takes."""
        now = time.monotonic()
        silent = now - link.pong_at > self._settings.silent_seconds
        hung = link.pong.busy > max(HUNG_SECONDS, HUNG_FACTOR * link.pong.expected)
        if not (silent or hung):
            self.suspect_since = None
        elif self.suspect_since is None:
            self.suspect_since = now
            log.warning("shard suspected", endpoint=self.uid, reason="silent" if silent else "hung")

    def _send_closes(self, link: ShardLink) -> None:
        if self._closing_instance != link.info.instance:
            self._closing.clear()
        for frame in list(self._closing.values()):
            if self._asked.get(frame.session) is frame:
                continue
            self._asked[frame.session] = frame
            task = asyncio.create_task(self._close_once(link, frame))
            task.add_done_callback(_discard_result)

    async def _close_once(self, link: ShardLink, frame: Close) -> None:
        try:
            await link.close_session(frame)
        except LinkLost:
            return
        if self._closing.get(frame.session) is frame:
            del self._closing[frame.session]
            self._asked.pop(frame.session, None)
        self._changed.beat()


def _discard_result(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
