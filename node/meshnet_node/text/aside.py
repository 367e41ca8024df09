"""Encoding that lets the other threads of the process run.

A tokenizer's `encode` keeps the interpreter to itself until it is done: seconds for a prompt of some megabytes, in
which a head would serve nobody and look hung. Its batch calls give it away.
"""

from __future__ import annotations

from tokenizers import Tokenizer


def encode_aside(tokenizer: Tokenizer, text: str, *, special: bool) -> list[int]:
    """Ids of a text. `special`: with the tokens that the tokenizer puts around it."""
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=special)
    ids: list[int] = encoding.ids
    return ids
