"""One stage of a generation's path: which shard it is at, and up to which position that shard is known to be.

A hop never decides anything: it opens, forwards one row, and says what happened. `filled` is the number of positions
that its shard holds; `synced` is False when that is not known for sure (before the first open, after any fault, after a
forward that was cut off), and then only a new open with a higher attempt makes it usable again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from typing_extensions import Buffer

from meshnet_node.errors import LinkLost
from meshnet_node.head.endpoints import Endpoint
from meshnet_node.head.path import Stage
from meshnet_node.wire.frames import Close, Open, Row, Sampling, TensorSpec
from meshnet_node.wire.link import Answer, ShardLink


class Hop:
    """Stage `stage` of the generation `session`. reached: the most positions that were ever filled here."""

    def __init__(self, session: str, stage: Stage, *, is_last: bool) -> None:
        self.session = session
        self.stage = stage
        self.is_last = is_last
        self.filled = 0
        self.reached = 0
        self.synced = False
        self.fault: Exception | None = None
        self.resume_at: int | None = None
        self.leave_at: float | None = None
        self.link: ShardLink | None = None
        self.opened_at: dict[Endpoint, int] = {}
        self.attempt = 0
        self._step = 0
        stage.endpoint.users += 1

    @property
    def endpoint(self) -> Endpoint:
        """Where it is now."""
        return self.stage.endpoint

    async def open(self, endpoint: Endpoint, attempt: int, frame: Open | None) -> int:
        """Go to that endpoint and open there (frame None: a stateless path needs none); the positions it holds.

        Raises the shard's refusal or LinkLost; the hop then stays where it was, not synced.
        """
        link = endpoint.link
        if link is None or link.lost.done():
            raise LinkLost(f"no link to {endpoint.uid}")
        self.synced = False
        if frame is not None:
            self.opened_at[endpoint] = attempt
        have = 0 if frame is None else (await link.open(frame)).have
        if endpoint is not self.endpoint:
            self.opened_at.pop(endpoint, None)
            self.release(keep=False)
            if frame is not None:
                self.opened_at[endpoint] = attempt
            endpoint.users += 1
            self.stage = Stage(endpoint, self.stage.start_layer, self.stage.end_layer)
        self.link, self.attempt, self._step = link, attempt, 0
        self.synced, self.leave_at = True, None
        return have

    async def forward(
        self,
        past_len: int,
        tokens: bytes,
        content: bytes,
        payload: tuple[Sequence[TensorSpec], Sequence[Buffer]],
        want: Literal["none", "last", "all"],
        mode: Literal["cached", "none"],
        sampling: Sampling | None,
        targets: bytes = b"",
    ) -> Answer:
        """Send one row. On any fault, and when it is cancelled, the hop is no longer synced."""
        if self.link is None:
            raise LinkLost("the hop was never opened")
        specs, parts = payload
        row = Row(
            session=self.session,
            attempt=self.attempt,
            step=self._step,
            past_len=past_len,
            n=len(tokens) // 4,
            hash=content,
            tokens=tokens,
            want=want,
            mode=mode,
            sampling=sampling,
            targets=targets,
            tensors=list(specs),
        )
        self._step += 1
        self.synced = False
        answer = await self.link.forward(row, parts)
        self.synced = True
        return answer

    def advance(self, n: int) -> None:
        """The shard has n more positions."""
        self.filled += n
        self.reached = max(self.reached, self.filled)
        self.fault = self.resume_at = None

    def fell_back(self, fault: Exception) -> None:
        """Remember why it has to be opened again."""
        self.synced = False
        self.fault = fault

    def release(self, *, keep: bool, at: int | None = None) -> None:
        """Leave: every shard that was asked to open the session ends it, also one that never answered.

        keep: the shard where the hop is parks it, cut to `at` positions.
        """
        self.endpoint.users -= 1
        for endpoint, attempt in self.opened_at.items():
            stays = keep and endpoint is self.endpoint
            endpoint.close_session(Close(self.session, attempt, keep=stays, at=at if stays else None))
        self.opened_at.clear()
