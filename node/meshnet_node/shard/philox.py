"""Philox4x32-10, the counter-based generator that makes a token a pure function of its position.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); constants of Random123.
`frames.SAMPLER_VERSION` names this function; a change of anything here is another version. No state, no torch.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIER = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Words4 = tuple[int, int, int, int]


def philox4x32(counter: Words4, key: tuple[int, int]) -> Words4:
    """Ten rounds over four 32-bit words of counter under two words of key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIER[0] * c0, _MULTIPLIER[1] * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & _MASK, (first >> 32) ^ c3 ^ k1, first & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int) -> float:
    """u in [0, 1): the top 24 bits of the first word, exact in float32.

    key = the 64 bits of `seed`, low word first; counter = (position, choice, 0, 0). `position` is the one that the
    token to be chosen will have.
    """
    key = (seed & _MASK, (seed >> 32) & _MASK)
    first = philox4x32((position & _MASK, choice & _MASK, 0, 0), key)[0]
    return (first >> 8) / (1 << 24)
