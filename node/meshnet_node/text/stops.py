"""Stop strings, matched on text across pieces.

Nothing that could still become a stop string is let out, and nothing else is held: what is held back is the longest
suffix that is a proper prefix of some stop string (a fixed-size hold-back would delay every piece; vllm 45636).

The result does not depend on how the text was cut into pieces: of several matches the one that is complete first wins,
and of those the one that began first.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Feed pieces to `decode`, then call `flush` once. After a match `stopped` is true and nothing more comes out."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: non-empty strings; none at all is allowed."""
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self.stopped = False

    def decode(self, text: str) -> str:
        """The text that may be let out now."""
        if self.stopped:
            return ""
        text = self._held + text
        self._held = ""
        cut = self._match(text)
        if cut is not None:
            self.stopped = True
            return text[:cut]
        hold = self._hold(text)
        if hold:
            self._held = text[-hold:]
            return text[:-hold]
        return text

    def flush(self) -> str:
        """What was held back and did not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _match(self, text: str) -> int | None:
        """Where the stop string that is complete first begins."""
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _hold(self, text: str) -> int:
        """Length of the longest suffix of `text` that is a proper prefix of some stop string."""
        return max((_overlap(text, stop) for stop in self._stops), default=0)


def _overlap(text: str, stop: str) -> int:
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
