"""A backend that says what a test wants said, token by token, and counts what becomes of its generations.

It implements head.backend.Backend in this process, so that the protocol can be tested to the last byte: it can wait,
fail and be refused at chosen moments, which a real mesh does only by chance.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from meshnet_node.errors import ApiError
from meshnet_node.head.backend import GeneratedToken, GenerationRequest
from meshnet_node.wire.frames import Score

Script = Callable[[GenerationRequest], Sequence[int]]
Scorer = Callable[[int, int], Score]


@dataclass
class ScriptedBackend:
    """script: ids to say for a request; said again from the start when they run out before the request's end.

    start_error / start_gate: start raises / waits. fail_at: after so many tokens the generation raises `error`.
    pause_at: before that token it waits for `go`. delay: seconds before each token. scorer: (id, wanted) -> Score.
    """

    script: Script
    scorer: Scorer = field(default=lambda id_, wanted: Score(id=id_))
    max_context: int = 1000
    start_error: ApiError | None = None
    start_gate: asyncio.Event | None = None
    fail_at: int | None = None
    error: BaseException = field(
        default_factory=lambda: ApiError("no shard came back", status=503, type="server_error", code="overloaded")
    )
    pause_at: int | None = None
    go: asyncio.Event = field(default_factory=asyncio.Event)
    delay: float = 0.0
    cached: int = 0
    chain: bool = True
    table: bool = True
    requests: list[GenerationRequest] = field(default_factory=list)
    open: int = 0
    closes: int = 0
    said: int = 0
    cancelled_starts: int = 0

    async def start(self, request: GenerationRequest) -> ScriptedGeneration:
        self.requests.append(request)
        if self.start_gate is not None:
            try:
                await self.start_gate.wait()
            except asyncio.CancelledError:
                self.cancelled_starts += 1
                raise
        if self.start_error is not None:
            raise self.start_error
        self.open += 1
        return ScriptedGeneration(self, request)

    def ready(self) -> bool:
        return self.chain

    def table_seen(self) -> bool:
        return self.table

    def describe(self) -> dict[str, object]:
        return {"shards": []}

    def fingerprint(self) -> str:
        return "fp_scripted"

    async def aclose(self) -> None:
        self.go.set()


class ScriptedGeneration:
    """One generation of a ScriptedBackend."""

    def __init__(self, backend: ScriptedBackend, request: GenerationRequest) -> None:
        self._backend = backend
        self._request = request
        self._closed = False
        self.cached_tokens = backend.cached
        wanted = request.sampling.logprobs
        self.prompt_scores = [backend.scorer(id_, wanted) for id_ in request.prompt] if request.prompt_scores else []

    async def __aiter__(self) -> AsyncIterator[GeneratedToken]:
        request, backend = self._request, self._backend
        ids = list(backend.script(request))
        for index in range(request.max_new_tokens):
            if backend.fail_at == index:
                raise backend.error
            if backend.pause_at == index:
                await backend.go.wait()
            await asyncio.sleep(backend.delay)  # even without a delay, others get their turn, as with a real mesh
            id_ = ids[index % len(ids)]
            backend.said += 1
            stop = id_ in request.stop_ids and index >= request.min_tokens
            last = index + 1 == request.max_new_tokens
            yield GeneratedToken(
                backend.scorer(id_, request.sampling.logprobs), "stop" if stop else "length" if last else None
            )
            if stop:
                return

    async def aclose(self, *, keep: bool = True) -> None:
        self._backend.closes += 1
        if not self._closed:
            # A real one waits for shards here.
            await asyncio.sleep(0.01)
            self._closed = True
            self._backend.open -= 1
