"""The rolling content hash: what a position's past consists of, in 8 bytes.

h(0) = zeros; h(p+1) = blake2b-64(h(p) || token[p] as int32 little-endian). A row carries h(past_len); the shard keeps h
per position, so that equal length with other content can't pass (docs/architecture.md, Sessions).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from hashlib import blake2b

HASH_BYTES = 8
EMPTY = bytes(HASH_BYTES)


def extend(start: bytes, tokens: Iterable[int]) -> list[bytes]:
    """Hashes after each of `tokens`, beginning from `start` (the hash before the first of them)."""
    hashes = []
    current = start
    for token in tokens:
        current = blake2b(current + token.to_bytes(4, "little", signed=True), digest_size=HASH_BYTES).digest()
        hashes.append(current)
    return hashes


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Token ids as they go over the wire: int32 little-endian."""
    return array("i", tokens).tobytes()


def unpack_tokens(raw: bytes) -> list[int]:
    """The inverse of pack_tokens; `raw` must be a multiple of four bytes long."""
    ids = array("i")
    ids.frombytes(raw)
    return ids.tolist()
