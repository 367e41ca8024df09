"""Log-probabilities in the two shapes of the API.

Minus infinity is no JSON: it is sent as -9999.0, the API's own sentinel. `bytes` are the token's true bytes, also where
they are a part of a character.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from openai.types.chat import ChatCompletionTokenLogprob as ChatEntry
from openai.types.chat.chat_completion_token_logprob import TopLogprob
from openai.types.completion_choice import Logprobs

from meshnet_node.text.vocabulary import Vocabulary
from meshnet_node.wire.frames import Score

__all__ = ["FLOOR", "ChatEntry", "LegacyLogprobs", "chat_entries"]

FLOOR = -9999.0


def chat_entries(scores: Sequence[Score], vocabulary: Vocabulary, top: int) -> list[ChatEntry]:
    """Entries of choices[].logprobs.content, each with the `top` likeliest alternatives."""
    return [
        ChatEntry(
            token=vocabulary.token_text(score.id),
            logprob=_finite(score.logprob),
            bytes=list(vocabulary.token_bytes(score.id)),
            top_logprobs=[
                TopLogprob(
                    token=vocabulary.token_text(id_), logprob=_finite(value), bytes=list(vocabulary.token_bytes(id_))
                )
                for id_, value in score.top[:top]
            ],
        )
        for score in scores
    ]


class LegacyLogprobs:
    """The older shape: four lists side by side, text offsets counted over all pieces of a choice.

    The chosen token is always among its alternatives. Tokens that are a part of a character are written as their bytes,
    so that two of them do not become one key.
    """

    def __init__(self, vocabulary: Vocabulary, top: int) -> None:
        self._vocabulary = vocabulary
        self._top = top
        self._offset = 0

    def entries(self, scores: Sequence[Score], *, begins: bool = False) -> Logprobs:
        """The next tokens. begins: the first of them has nothing before it, hence no log-probability."""
        tokens, values, tops, offsets = [], [], [], []
        for place, score in enumerate(scores):
            first = begins and place == 0
            token = self._name(score.id)
            tokens.append(token)
            values.append(None if first else _finite(score.logprob))
            tops.append(None if first else self._alternatives(score, token))
            offsets.append(self._offset)
            if not self._vocabulary.is_special(score.id):
                self._offset += len(self._vocabulary.token_text(score.id))
        # The package's types know no null in these lists, though the API sends it for the first token of a prompt.
        fields = {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}
        return Logprobs().model_copy(update=fields)

    def _alternatives(self, score: Score, token: str) -> dict[str, float]:
        found = {self._name(id_): _finite(value) for id_, value in score.top[: self._top]}
        return {**found, token: _finite(score.logprob)}

    def _name(self, id_: int) -> str:
        raw = self._vocabulary.token_bytes(id_)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _finite(value: float | None) -> float:
    return FLOOR if value is None or not math.isfinite(value) else max(value, FLOOR)
