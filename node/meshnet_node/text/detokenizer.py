"""Token ids to text, one at a time, so that the pieces joined are the text of the whole.

A token alone has no text: it may be a part of a character, and its leading space depends on what stands before it. So a
short window of ids is decoded with and without the new one, and only the difference is let out. Characters that are not
complete yet show as U+FFFD at the end; they are held back until the next tokens complete them, but not for more than
`CAP` tokens: no character has more bytes, so by then some of them can never become valid.

The window begins with the end of the prompt, so that spaces between prompt and answer are right. Invariants: what was
let out is never taken back nor repeated; stream and whole answer both use this class, hence have the same text.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

CAP = 4
PRIME = 6
LONGEST = 64
BROKEN = "\ufffd"


class Detokenizer:
    """Feed ids to `decode`, then call `flush` once. Special tokens have no text."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._window = self._prime(prompt)
        self._new = 0  # ids at the end of the window that came since all text was out
        self._stuck = 0  # ids since the last piece, while an incomplete character is held back
        # A prompt that ends inside a character: the answer begins with that character.
        self._out = len(self._text(self._window).rstrip(BROKEN))

    def decode(self, token: int) -> str:
        """The text that `token` completes; empty while it completes none."""
        self._window.append(token)
        self._new += 1
        text = self._text(self._window)
        stable = len(text.rstrip(BROKEN))
        if stable == len(text):
            self._stuck = 0
        else:
            self._stuck = 1 if stable > self._out else self._stuck + 1
        if self._stuck >= CAP:
            # The last U+FFFD may be the beginning of a good character, those before it are broken for good.
            stable = max(self._out + 1, len(text) - 1)
            self._stuck = 1
        piece = text[self._out : stable]
        self._out = max(self._out, stable)
        if self._out >= len(text):
            self._shorten(self._new, 0)
        elif len(self._window) > LONGEST:
            self._shorten(LONGEST // 4, len(text) - self._out)
        return piece

    def flush(self) -> str:
        """What is still held back, broken characters as U+FFFD."""
        piece = self._text(self._window)[self._out :]
        self._out += len(piece)
        return piece

    def _prime(self, prompt: Sequence[int]) -> list[int]:
        """The prompt's last ids, from the beginning of a character on."""
        for size in range(PRIME, PRIME + CAP):
            window = list(prompt[-size:])
            if not self._text(window).startswith(BROKEN):
                return window
        return list(prompt[-PRIME:])

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def _shorten(self, keep: int, held: int) -> None:
        """Forget all but the last `keep` ids; the last `held` characters are not out yet.

        Ids without text (special tokens) give the next one no context: then the window stays as it is.
        """
        text = self._text(self._window[-keep:])
        if text:
            del self._window[:-keep]
            self._out = len(text) - held
            self._new = 0 if not held else keep
        elif not held:
            self._new = 0
