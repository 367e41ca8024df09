"""The token log of one generation: prompt and answer as ids, their content hashes, and the prompt's scores.

It is to the last hop what a boundary log is to the others: what it put out, by position. A token is appended once.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshnet_node.wire.content import EMPTY, extend, pack_tokens
from meshnet_node.wire.frames import Score


class TokenLog:
    """ids: all tokens so far. prompt_scores: empty unless `scored`, else grows to one per prompt position."""

    def __init__(self, prompt: Sequence[int], *, scored: bool) -> None:
        self.ids = list(prompt)
        self.prompt_scores: list[Score] = [Score(id=prompt[0])] if scored else []
        self._prompt = len(prompt)
        self._hashes = [EMPTY, *extend(EMPTY, self.ids)]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def generated(self) -> int:
        """Tokens after the prompt."""
        return len(self.ids) - self._prompt

    @property
    def scoring(self) -> bool:
        """Prompt scores are wanted and not complete yet."""
        return bool(self.prompt_scores) and len(self.prompt_scores) < self._prompt

    @property
    def produced(self) -> int:
        """Positions whose output by the last hop is known: those before the newest token, or before the next score."""
        return len(self.prompt_scores) - 1 if self.scoring else len(self.ids) - 1

    def packed(self, start: int, stop: int) -> bytes:
        """The ids of [start, stop) as they go over the wire."""
        return pack_tokens(self.ids[start:stop])

    def targets(self, start: int, stop: int) -> bytes:
        """For each position of [start, stop) the id that follows it, -1 where none is known yet."""
        return pack_tokens([*self.ids[start + 1 : stop + 1], -1][: stop - start])

    def content(self, position: int) -> bytes:
        """Hash of everything before `position`."""
        return self._hashes[position]

    def append(self, token: int) -> None:
        """The next token."""
        self.ids.append(token)
        self._hashes.extend(extend(self._hashes[-1], [token]))

    def take_scores(self, start: int, scores: Sequence[Score]) -> None:
        """Scores of the tokens after the positions from `start` on; those that are known already are kept."""
        known = len(self.prompt_scores) - 1
        self.prompt_scores.extend(scores[known - start :][: self._prompt - len(self.prompt_scores)])
