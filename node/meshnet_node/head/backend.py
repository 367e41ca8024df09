"""The seam between the HTTP API and the mesh: what the API asks for, and what it is given token by token.

The API side (app, chat, completions, stream) knows text and HTTP; the side behind `Backend` knows hops, routes and
recovery. Neither knows the other's. Tokens cross here as ids with their scores, never as text.

Invariants: `Backend.start` returns only when the request can be promised (all hops open, first chunk accepted), so that
everything before it can still be answered with a status; every `Generation` that was returned gets at least one
`aclose`; a token is yielded once, also after a recovery.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

from meshnet_node.wire.frames import Sampling, Score


@dataclass(frozen=True)
class GenerationRequest:
    """One generation.

    prompt: token ids, at least one. max_new_tokens: at least 1, already clamped to the context. sampling: its seed is
    already minted and gen_start = len(prompt). stop_ids: each ends the generation, and is yielded as its last token;
    empty with ignore_eos. min_tokens: stop ids are banned until so many tokens came. prompt_scores: a score is wanted
    for each prompt position. key: fingerprint of the API key, so that state is reused only within a key. max_hold: most
    seconds that a recovery may hold this client (45 for one that waits for a whole answer; None = the head's own
    bound).
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    stop_ids: frozenset[int]
    min_tokens: int = 0
    prompt_scores: bool = False
    key: str = ""
    max_hold: float | None = None


@dataclass(frozen=True)
class GeneratedToken:
    """A new token; `finish` is set on the last one. Its score has a log-probability only when that was asked for."""

    score: Score
    finish: Literal["stop", "length"] | None


class Generation(Protocol):
    """A running generation. Iterating may raise ApiError when recovery is spent.

    prompt_scores: one per prompt position, filled before the first token where they were asked for; the first has no
    log-probability (nothing comes before it). cached_tokens: prompt positions that no hop had to compute.
    """

    cached_tokens: int

    @property
    def prompt_scores(self) -> list[Score]: ...

    def __aiter__(self) -> AsyncIterator[GeneratedToken]: ...

    async def aclose(self, *, keep: bool = True) -> None:
        """End it at every shard that was reached. Idempotent, safe at any moment, also while another task iterates.

        keep: the answer is whole, park its state for the conversation's next turn; else free it (what was adopted from
        an earlier turn is parked again).
        """


class Backend(Protocol):
    """The mesh as the API sees it. max_context: most positions (prompt and answer) that a generation may have."""

    max_context: int

    async def start(self, request: GenerationRequest) -> Generation:
        """Returns when all hops are open and the first chunk is accepted.

        Raises ApiError, for example 503 `overloaded`. When it is cancelled, it leaves nothing behind.
        """
        ...

    def ready(self) -> bool:
        """True when a complete chain of shards exists."""
        ...

    def table_seen(self) -> bool:
        """True once a route table was read."""
        ...

    def describe(self) -> dict[str, object]:
        """The body of GET /mesh: JSON-able."""
        ...

    def fingerprint(self) -> str:
        """Short hash of weights, dtype, software and plan, for `system_fingerprint`; empty when no chain is known."""
        ...

    async def aclose(self) -> None:
        """End everything."""
