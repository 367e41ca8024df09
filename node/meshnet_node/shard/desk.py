"""Where sessions are opened and closed: what has to wait for a running piece waits here.

The desk shares store and queue with the engine, which tells it (`settled`) whenever a group has ended or time has
passed. It never touches a session whose piece is on the model thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from meshnet_node.cache.sessions import Session
from meshnet_node.cache.states import SessionState
from meshnet_node.cache.store import HTTP_OWNER, Store
from meshnet_node.errors import BadFrame, CacheMiss, Draining, NotOwner, SessionClosed, Stale, WireError
from meshnet_node.logs import events
from meshnet_node.shard.items import Item, Reply
from meshnet_node.shard.queue import RowQueue
from meshnet_node.wire.frames import Close, Open

log = events(__name__)


class Desk:
    """`answer` delivers the answers of rows that a new attempt or a close takes out of the queue."""

    def __init__(
        self, store: Store[SessionState], queue: RowQueue, answer: Callable[[list[tuple[Item, Reply]]], None]
    ) -> None:
        self.draining = False
        self._store = store
        self._queue = queue
        self._answer = answer
        self._settled = asyncio.Event()

    def settled(self) -> None:
        """Wake all that wait: sessions may have come to rest, or gone."""
        settled, self._settled = self._settled, asyncio.Event()
        settled.set()

    async def wait(self) -> None:
        """Until the next `settled`."""
        await self._settled.wait()

    async def open(self, request: Open, owner: str) -> int:
        """Reserve a session; the positions that it has already. Waits for a running piece of it. Raises WireError."""
        known = self._store.find(request.session)
        if self.draining and known is None:
            raise Draining("this shard is going away and opens no sessions")
        if known is not None and known.owner == owner:
            if request.attempt > known.attempt:
                # At once, so that a long row of the old attempt ends with the piece that runs now.
                known.begin_attempt(request.attempt)
            stale = self._queue.purge(request.session, request.attempt - 1, owner)
            self._refuse(stale, Stale("the session was opened again"))
        while self._runs(request.session) or self._runs(request.source):
            await self.wait()
        entry = self._store.open(request, owner)
        log.info("session_opened", session=entry.id, attempt=entry.attempt, have=entry.have, bytes=entry.nbytes)
        return entry.have

    async def close(self, request: Close, owner: str | None) -> None:
        """End a session up to that attempt; returns when its running piece has ended. Raises NotOwner."""
        self._store.close(request, owner)
        late = self._queue.purge(request.session, request.attempt, owner)
        self._refuse(late, SessionClosed("the session was closed"))
        while self._runs(request.session):
            await self.wait()
        self.settled()
        log.info("session_closed", session=request.session, attempt=request.attempt, keep=request.keep)

    async def enter_plain(
        self, session: str, *, creates: bool, start_layer: int, reserve: int
    ) -> Session[SessionState]:
        """An HTTP request for that session begins: created anew, or found with room for `reserve` positions.

        Requests of one session take turns. Raises WireError; `leave_plain` must follow where it does not.
        """
        while (entry := self._store.find(session)) is not None and entry.owner == HTTP_OWNER and entry.active:
            await self.wait()
        if entry is not None and entry.owner != HTTP_OWNER:
            raise NotOwner("the session belongs to a head")
        if creates:
            if self.draining:
                raise Draining("this shard is going away and opens no sessions")
            return self._store.create_plain(session, start_layer, reserve)
        if entry is None:
            raise CacheMiss("no such session here", have=0)
        if entry.start_layer != start_layer:
            raise BadFrame(f"start layer {start_layer}: this session began at layer {entry.start_layer}")
        self._store.enter_plain(entry, reserve)
        return entry

    def leave_plain(self, entry: Session[SessionState]) -> None:
        """The HTTP request was answered: its session may be evicted again."""
        if self._store.find(entry.id) is entry:
            self._store.park(entry)
        self.settled()

    def _runs(self, session: str | None) -> bool:
        entry = None if session is None else self._store.find(session)
        return entry is not None and entry.running

    def _refuse(self, items: list[Item], error: WireError) -> None:
        self._answer([(item, item.refused(error)) for item in items])
