"""Each token's true bytes: what it adds to the text, also where that is only a part of a character.

Byte-level vocabularies write each byte as a printable character; byte-fallback vocabularies have tokens like <0xE4> and
write a space as U+2581. Added tokens stand for themselves.
"""

from __future__ import annotations

import re
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"


class Vocabulary:
    """Bytes and printable text by token id. Ids outside the vocabulary have neither."""

    def __init__(self, tokenizer: Tokenizer, description: dict[str, Any]) -> None:
        """`description`: the parsed tokenizer.json, which says how tokens are written."""
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._added = {id_: token.content for id_, token in added.items()}
        self._special = frozenset(id_ for id_, token in added.items() if token.special)
        kinds = _kinds(description.get("decoder"))
        self._byte_level = "ByteLevel" in kinds
        self._fallback = "ByteFallback" in kinds
        self._metaspace = "Metaspace" in kinds or self._fallback
        self._bytes_of = _bytes_by_character()

    def token_bytes(self, token: int) -> bytes:
        """The token's own bytes; not valid UTF-8 where it is a part of a character."""
        if token in self._added:
            return self._added[token].encode()
        written = self._tokenizer.id_to_token(token)
        if written is None:
            return b""
        if self._byte_level and all(character in self._bytes_of for character in written):
            return bytes(self._bytes_of[character] for character in written)
        if self._fallback and (match := _BYTE_TOKEN.fullmatch(written)):
            return bytes([int(match[1], 16)])
        return (written.replace(_SPACE, " ") if self._metaspace else written).encode()

    def is_special(self, token: int) -> bool:
        """Special tokens have no place in an answer's text."""
        return token in self._special

    def token_text(self, token: int) -> str:
        """The token as text, with U+FFFD for parts of characters."""
        return self.token_bytes(token).decode(errors="replace")


def _kinds(decoder: Any) -> set[str]:
    """The types of all decoders in a (nested) decoder of tokenizer.json."""
    if not isinstance(decoder, dict):
        return set()
    kinds = {str(decoder.get("type"))}
    for part in decoder.get("decoders", ()):
        kinds |= _kinds(part)
    return kinds


def _bytes_by_character() -> dict[str, int]:
    """The byte-level alphabet: printable bytes are written as themselves, the others, in order, from U+0100 on.

    The rule is that of GPT-2's vocabulary, which all byte-level vocabularies follow.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table
