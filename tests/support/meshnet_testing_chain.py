"""A mesh without a wire: runners called one after the other, with what each boundary carried kept for replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch

from meshnet_node.cache.states import SessionState
from meshnet_node.settings import ShardSettings
from meshnet_node.shard.runner import RangeRunner, Work

Want = Literal["none", "last", "all"]
Cut = Sequence[tuple[int, int]]


def runner(model: Path, start: int = 0, end: int | None = None, **options: Any) -> RangeRunner:
    """A loaded range on the CPU."""
    return RangeRunner.load(ShardSettings(model=str(model), start_layer=start, end_layer=end, device="cpu", **options))


def even_cut(layers: int, shards: int) -> list[tuple[int, int]]:
    """Ranges of about the same size."""
    edges = [layers * k // shards for k in range(shards + 1)]
    return [(a, b - 1) for a, b in pairwise(edges)]


@dataclass
class Session:
    """tokens: all ids so far; states: one per hop; logs: per hop, the hidden states that it was sent."""

    tokens: list[int]
    states: list[SessionState]
    logs: list[list[torch.Tensor]] = field(default_factory=list)
    start_layers: list[int] | None = None

    @property
    def filled(self) -> int:
        return self.states[0].filled


class Chain:
    """Runners that cover a model. start_layers: where each hop begins, where its range begins earlier."""

    def __init__(self, runners: Sequence[RangeRunner], start_layers: Sequence[int] | None = None) -> None:
        self.runners = list(runners)
        self.starts = list(start_layers or [runner.start_layer for runner in runners])

    @classmethod
    def load(cls, model: Path, cut: Cut, **options: Any) -> Chain:
        return cls([runner(model, start, end, **options) for start, end in cut])

    def open(self, tokens: Sequence[int], capacity: int) -> Session:
        """A session whose prompt is `tokens`; nothing is computed yet."""
        states = [hop.new_state(capacity, start) for hop, start in zip(self.runners, self.starts, strict=True)]
        return Session(list(tokens), states, [[] for _ in self.runners])

    def feed(self, session: Session, n: int, want: Want = "last") -> torch.Tensor:
        """Compute the next n positions of one session as one chunk; the last hop's logits."""
        past = session.filled
        tokens = session.tokens[past : past + n]
        hidden = None
        for k, (hop, state) in enumerate(zip(self.runners, session.states, strict=True)):
            if hidden is not None:
                session.logs[k].append(hidden.clone())
            (hidden,) = hop.run([Work(state, past, tokens, hidden, want)], self.starts[k])
        assert hidden is not None
        return hidden

    def decode(self, sessions: Sequence[Session]) -> list[torch.Tensor]:
        """The newest token of each session, as one batch; logits [vocabulary] of each."""
        outs: list[torch.Tensor | None] = [None] * len(sessions)
        pasts = [session.filled for session in sessions]
        for k, hop in enumerate(self.runners):
            for session, out in zip(sessions, outs, strict=True):
                if out is not None:
                    session.logs[k].append(out.clone())
            works = [
                Work(session.states[k], past, [session.tokens[past]], out, "last")
                for session, past, out in zip(sessions, pasts, outs, strict=True)
            ]
            outs = list(hop.run(works, self.starts[k]))
        return [out[-1] for out in outs if out is not None]

    def lose(self, session: Session, k: int) -> None:
        """Hop k forgets the session and is brought up again by one chunk of what its boundary carried."""
        hop, lost = self.runners[k], session.states[k]
        session.states[k] = hop.new_state(lost.capacity, self.starts[k])
        hidden = torch.cat(session.logs[k], dim=1) if k else None
        hop.run([Work(session.states[k], 0, session.tokens[: lost.filled], hidden, "none")], self.starts[k])
        session.states[k].check()
        assert session.states[k].filled == lost.filled

    def generate(self, session: Session, count: int, chunk: int = 128) -> list[int]:
        """`count` greedy tokens after the prompt, which is computed in chunks."""
        length = len(session.tokens)
        while length - session.filled > chunk:
            self.feed(session, chunk, "none")
        logits = self.feed(session, length - session.filled)[-1]
        session.tokens.append(int(logits.argmax()))
        while len(session.tokens) - length < count:
            (logits,) = self.decode([session])
            session.tokens.append(int(logits.argmax()))
        return session.tokens[length:]
