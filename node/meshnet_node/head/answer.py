"""A generation seen as text: tokens in, pieces of text out, until a stop id, a stop string or the end of the budget.

Order: detokenizer, then stop matcher, for streams and whole answers alike. Log-probabilities travel with the text of
their token: a token's score comes out exactly once, and never before its text may (a held-back stop string would leak
through it). Tokens that lie behind a stop string's beginning are dropped with it, but count in the usage: they were
generated. The end token counts too.

Owns the generation's end: `close` must be called in every case, and is idempotent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Literal

from meshnet_node.errors import ApiError
from meshnet_node.head.api_metrics import Meter
from meshnet_node.head.backend import Backend, GeneratedToken, Generation, GenerationRequest
from meshnet_node.head.closing import Closer
from meshnet_node.text.detokenizer import Detokenizer
from meshnet_node.text.stops import StopMatcher
from meshnet_node.wire.frames import Score

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Piece:
    """New text (may be empty), the scores of the tokens that it ends, and on the last piece why it is the last.

    end: the end token's score, when the answer ended by one.
    """

    text: str
    scores: tuple[Score, ...] = ()
    finish: Finish | None = None
    end: Score | None = None


class Answer:
    """One choice of a reply. prompt_tokens, completion_tokens: for the usage."""

    def __init__(
        self,
        backend: Backend,
        closer: Closer,
        request: GenerationRequest,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        meter: Meter,
    ) -> None:
        self.request = request
        self.prompt_tokens = len(request.prompt)
        self.completion_tokens = 0
        self._backend = backend
        self._closer = closer
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops)
        self._meter = meter
        self._generation: Generation | None = None
        self._closed = False
        self._waiting: deque[tuple[int, Score]] = deque()  # scores by the offset at which their token's text begins
        self._decoded = 0
        self._out = 0

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that needed no computation."""
        return 0 if self._generation is None else self._generation.cached_tokens

    @property
    def prompt_scores(self) -> list[Score]:
        """Filled before the first piece, where they were asked for."""
        return [] if self._generation is None else self._generation.prompt_scores

    async def start(self) -> None:
        """Returns when the mesh has promised the generation. Raises ApiError."""
        self._meter.queued()
        self._generation = await self._backend.start(self.request)
        self._meter.started(self.prompt_tokens)

    async def pieces(self) -> AsyncGenerator[Piece]:
        """All pieces; the last has `finish`. Starts the generation if that was not done. Raises ApiError."""
        if self._generation is None:
            await self.start()
        if self._generation is None:
            return
        try:
            async for token in self._generation:
                self.completion_tokens += 1
                self._meter.token()
                piece = self._piece(token)
                if piece.finish is not None:
                    self._meter.finished(piece.finish)
                    await self.close(keep=True)
                yield piece
                if piece.finish is not None:
                    return
            raise ApiError("the generation ended without its last token", status=500, type="server_error")
        except ApiError:
            self._meter.failed()
            raise

    def failed(self) -> None:
        """The reply will be an error."""
        self._meter.failed()

    async def close(self, *, keep: bool = False) -> None:
        """Free the generation at all shards. keep: the answer is whole, its state may serve the next turn."""
        if self._closed:
            return
        self._closed = True
        self._meter.closed()
        if self._generation is not None:
            await self._closer.close(self._generation, keep=keep)

    def _piece(self, token: GeneratedToken) -> Piece:
        if token.finish == "stop":
            text, scores = self._rest()
            return Piece(text, scores, "stop", None if self._matcher.stopped else token.score)
        self._waiting.append((self._decoded, token.score))
        text, scores = self._advance(self._detokenizer.decode(token.score.id))
        if self._matcher.stopped:
            return Piece(text, scores, "stop")
        if token.finish == "length":
            rest, more = self._rest()
            return Piece(text + rest, scores + more, "stop" if self._matcher.stopped else "length")
        return Piece(text, scores)

    def _rest(self) -> tuple[str, tuple[Score, ...]]:
        """What is held back at the end: through the same matcher as everything before."""
        text, scores = self._advance(self._detokenizer.flush())
        rest = "" if self._matcher.stopped else self._matcher.flush()
        self._out += len(rest)
        return text + rest, scores + self._released()

    def _advance(self, decoded: str) -> tuple[str, tuple[Score, ...]]:
        self._decoded += len(decoded)
        text = self._matcher.decode(decoded)
        self._out += len(text)
        return text, self._released()

    def _released(self) -> tuple[Score, ...]:
        """Scores of the tokens whose text has begun to come out; all of them when nothing is held back."""
        free = not self._matcher.stopped and self._out == self._decoded
        found = []
        while self._waiting and (free or self._waiting[0][0] < self._out):
            found.append(self._waiting.popleft()[1])
        return tuple(found)
