"""What a row must look like before it is queued: every check that needs only the row and the shard's own facts.

Raises BadFrame or TooLarge that name the field; each is answered for its row alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from meshnet_node.errors import BadFrame, TooLarge
from meshnet_node.wire.content import HASH_BYTES
from meshnet_node.wire.frames import HEADER_LIMIT, Open, Row, Sampling, TensorSpec

ID_LIMIT = 128
COUNT_LIMIT = 2**62
SCORE_BYTES = 24


@dataclass(frozen=True)
class Facts:
    """What rows are checked against. end_layer is inclusive; schema is the boundary's single tensor."""

    start_layer: int
    end_layer: int
    vocab_size: int
    hidden_size: int
    max_context: int
    stateful: bool
    schema: TensorSpec


def check_open(frame: Open, facts: Facts) -> None:
    """The reservation must be possible here at all."""
    _identity(frame.session, frame.attempt, 0)
    if not facts.start_layer <= frame.start_layer <= facts.end_layer:
        raise BadFrame(f"start_layer {frame.start_layer} is not one of {facts.start_layer} to {facts.end_layer}")
    if not 0 < frame.max_positions <= facts.max_context:
        raise TooLarge(f"max_positions {frame.max_positions}: 1 to {facts.max_context} are possible")
    if frame.at < 0 or (frame.source is not None and not 0 < len(frame.source) <= ID_LIMIT):
        raise BadFrame("source and at: an id and a position")


def check_row(row: Row, facts: Facts) -> tuple[array[int], array[int] | None]:
    """The row's token ids and, where it scores, its targets. Tensor bytes fit their specs already."""
    _identity(row.session, row.attempt, row.step)
    if row.n < 1 or row.past_len < 0:
        raise BadFrame(f"past_len {row.past_len} and n {row.n}: at least 0 and 1")
    if row.past_len + row.n > facts.max_context:
        raise TooLarge(f"positions {row.past_len} to {row.past_len + row.n} of at most {facts.max_context}")
    if len(row.hash) != HASH_BYTES:
        raise BadFrame(f"hash of {len(row.hash)} bytes, {HASH_BYTES} are needed")
    if row.mode == "none" and row.past_len:
        raise BadFrame("mode none runs from past_len 0")
    if row.mode == "cached" and not facts.stateful:
        raise BadFrame("mode cached: this model's state can't be held, use none")
    tokens = _ids("tokens", row.tokens, row.n, 0, facts.vocab_size)
    _check_tensors(row, facts)
    targets = None
    if row.want == "all":
        targets = _ids("targets", row.targets, row.n, -1, facts.vocab_size)
        alternatives = row.sampling.logprobs if row.sampling else 0
        if row.n * (2 + max(0, alternatives)) * SCORE_BYTES > HEADER_LIMIT:
            raise TooLarge(f"{row.n} positions with {alternatives} alternatives do not fit in one answer")
    if row.sampling is not None:
        check_sampling(row.sampling, facts.vocab_size)
    return tokens, targets


def check_sampling(sampling: Sampling, vocab: int) -> None:
    """Parameters inside their domains; token ids inside the vocabulary (vllm#16529)."""
    numbers = (sampling.temperature, sampling.top_p, sampling.min_p, sampling.repetition_penalty)
    penalties = (sampling.presence_penalty, sampling.frequency_penalty, *sampling.logit_bias.values())
    if not all(map(isfinite, (*numbers, *penalties))):
        raise BadFrame("sampling: a parameter is not a finite number")
    if sampling.temperature < 0 or not 0 <= sampling.top_p <= 1 or not 0 <= sampling.min_p <= 1 or sampling.top_k < 0:
        raise BadFrame("sampling: temperature and top_k from 0 on, top_p and min_p from 0 to 1")
    if sampling.repetition_penalty <= 0:
        raise BadFrame("sampling: repetition_penalty must be above 0")
    _inside("sampling.logit_bias", sampling.logit_bias, vocab)
    _inside("sampling.banned", sampling.banned, vocab)
    if len(set(sampling.banned)) >= vocab:
        raise BadFrame("sampling.banned: no token is left")
    if sampling.gen_start < 0 or sampling.choice < 0 or not -1 <= sampling.logprobs <= vocab:
        raise BadFrame("sampling: gen_start and choice from 0 on, logprobs from -1 to the vocabulary's size")


def _identity(session: str, attempt: int, step: int) -> None:
    if not 0 < len(session) <= ID_LIMIT:
        raise BadFrame(f"session id of {len(session)} characters, 1 to {ID_LIMIT} are allowed")
    if not 0 <= attempt < COUNT_LIMIT or not 0 <= step < COUNT_LIMIT:
        raise BadFrame("attempt and step count from 0 on")


def _ids(field: str, raw: bytes, n: int, least: int, vocab: int) -> array[int]:
    if len(raw) != 4 * n:
        raise BadFrame(f"{field}: {len(raw)} bytes, {n} ids of four bytes are needed")
    ids = array("i")
    ids.frombytes(raw)
    if min(ids) < least or max(ids) >= vocab:
        raise BadFrame(f"{field}: an id is outside the vocabulary of {vocab}")
    return ids


def _inside(field: str, ids: Iterable[int], vocab: int) -> None:
    if any(not 0 <= token < vocab for token in ids):
        raise BadFrame(f"{field}: an id is outside the vocabulary of {vocab}")


def _check_tensors(row: Row, facts: Facts) -> None:
    """None, or exactly the boundary's tensor for these positions (whether it is needed depends on the session)."""
    if not row.tensors:
        return
    if len(row.tensors) != 1:
        raise BadFrame(f"tensors: {len(row.tensors)} given, the boundary has 1")
    (given,) = row.tensors
    wanted = facts.schema
    if (given.name, given.dtype) != (wanted.name, wanted.dtype):
        raise BadFrame(f"tensors: {given.name} {given.dtype}, {wanted.name} {wanted.dtype} is needed")
    if given.shape != [1, row.n, facts.hidden_size]:
        raise BadFrame(f"tensors: shape {given.shape}, {[1, row.n, facts.hidden_size]} is needed")
