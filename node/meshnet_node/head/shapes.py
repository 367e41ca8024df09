"""In what pieces positions are computed where determinism is strict (docs/architecture.md, What a client may rely on):
the prompt in whole chunks, each answer token alone, in a replay as for the first time. The last bits of a sum depend on
the shapes it is computed in, and in bfloat16 they decide on tokens.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shapes:
    """prompt, chunk: positions."""

    prompt: int
    chunk: int

    def end(self, begin: int) -> int:
        """Where the piece that begins there ends."""
        if begin >= self.prompt:
            return begin + 1
        return min((begin // self.chunk + 1) * self.chunk, self.prompt)

    def begin(self, filled: int) -> int:
        """From where to go on at a shard that holds so many positions: all of them where they end with a piece, else
        from nothing, since the rest of a piece is another shape."""
        return filled if filled >= self.prompt or filled % self.chunk == 0 else 0
