"""From logits to tokens: a pure function of (logits, parameters, token history, seed, choice, position).

Order, as in transformers and vLLM: raw log-softmax (for logprobs) | logit_bias | bans | repetition_penalty over all
tokens | presence and frequency penalties over tokens from gen_start | temperature | top_k | top_p | min_p | inverse
CDF. Everything is float32. Temperature below 1e-5 takes the argmax after the penalties.

Invariants: rows of a batch never influence each other (a seeded answer is the same alone and in company, vllm#51226);
ties at the border of top_k and top_p all stay, so that the chosen token does not depend on a sort's order; minus
infinity never becomes NaN in a logprob (vllm#10234), it is reported as LOWEST.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meshnet_node.shard.philox import uniform
from meshnet_node.wire.frames import Sampling, Score

GREEDY_BELOW = 1e-5
LOWEST = -9999.0
_NUCLEUS_GUESS = 1024


@dataclass(frozen=True)
class Choice:
    """One token to choose, for `position`. `history`: all ids before it; empty where `needs_history` is false."""

    sampling: Sampling
    position: int
    history: array[int]


def needs_history(sampling: Sampling) -> bool:
    """Whether the choice depends on the tokens before it, beyond what the model made of them."""
    return bool(sampling.repetition_penalty != 1.0 or sampling.presence_penalty or sampling.frequency_penalty)


def choose(logits: Tensor, choices: Sequence[Choice]) -> list[Score]:
    """One token per row of `logits` [rows, vocab] float32, which is left unchanged.

    Raises ArithmeticError where a row holds NaN: the model failed, no token of it may be trusted.
    """
    processed = _penalise(logits, choices)
    best, ids = processed.max(dim=-1)
    if bool(best.isnan().any()):
        raise ArithmeticError("the model put out NaN logits")
    tokens: list[int] = ids.tolist()
    drawn = [row for row, choice in enumerate(choices) if choice.sampling.temperature >= GREEDY_BELOW]
    if drawn:
        rows = processed if len(drawn) == len(choices) else processed[drawn]
        for row, token in zip(drawn, _draw(rows, [choices[row] for row in drawn]), strict=True):
            tokens[row] = token
    scores = [Score(id=token) for token in tokens]
    for row, choice in enumerate(choices):
        if choice.sampling.logprobs >= 0:
            scores[row] = score(logits[row : row + 1], [tokens[row]], choice.sampling.logprobs)[0]
    return scores


def score(logits: Tensor, targets: Sequence[int], alternatives: int) -> list[Score]:
    """Raw log-probability of `targets` (one per row of `logits`; -1 = none) with the most likely `alternatives`."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    rows = torch.arange(len(targets), device=logits.device)
    wanted = torch.tensor(targets, device=logits.device).clamp(min=0)
    own: list[float] = _finite(logprobs[rows, wanted]).tolist()
    tops: list[list[tuple[int, float]]] = [[] for _ in targets]
    if alternatives > 0:
        values, ids = logprobs.topk(min(alternatives, logprobs.shape[-1]), dim=-1)
        pairs = zip(ids.tolist(), _finite(values).tolist(), strict=True)
        tops = [list(zip(row_ids, row_values, strict=True)) for row_ids, row_values in pairs]
    return [
        Score(id=target, logprob=value if target >= 0 else None, top=top)
        for target, value, top in zip(targets, own, tops, strict=True)
    ]


def _finite(logprobs: Tensor) -> Tensor:
    return logprobs.clamp(min=LOWEST)


def _penalise(logits: Tensor, choices: Sequence[Choice]) -> Tensor:
    """The rows after bias, bans and penalties; a copy is made only where some row asks for one of them."""
    touched = [row for row, choice in enumerate(choices) if _has_penalty(choice.sampling)]
    if not touched:
        return logits.float()
    processed = logits.to(torch.float32, copy=True)
    for row in touched:
        _penalise_row(processed[row], choices[row])
    return processed


def _has_penalty(sampling: Sampling) -> bool:
    return bool(sampling.logit_bias or sampling.banned or needs_history(sampling))


def _penalise_row(row: Tensor, choice: Choice) -> None:
    """In place on one row [vocab]."""
    sampling = choice.sampling
    if sampling.logit_bias:
        ids = _ids(list(sampling.logit_bias), row)
        row[ids] += torch.tensor(list(sampling.logit_bias.values()), dtype=torch.float32, device=row.device)
    if sampling.banned:
        row[_ids(sampling.banned, row)] = -torch.inf
    if sampling.repetition_penalty != 1.0 and len(choice.history):
        seen = torch.unique(_ids(choice.history, row))
        values = row[seen]
        row[seen] = torch.where(values < 0, values * sampling.repetition_penalty, values / sampling.repetition_penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        generated = choice.history[sampling.gen_start :]
        if len(generated):
            ids, counts = torch.unique(_ids(generated, row), return_counts=True)
            row[ids] -= sampling.presence_penalty + sampling.frequency_penalty * counts.float()


def _ids(ids: Sequence[int], row: Tensor) -> Tensor:
    return torch.tensor(ids, dtype=torch.long, device=row.device)


def _draw(logits: Tensor, choices: Sequence[Choice]) -> list[int]:
    """Inverse CDF in token-id order of the rows' distributions after temperature and truncation."""
    column = _column([choice.sampling.temperature for choice in choices], logits)
    scaled = logits / column
    scaled = _top_k(scaled, [choice.sampling.top_k for choice in choices])
    probs = torch.softmax(scaled, dim=-1)
    probs = _top_p(probs, [choice.sampling.top_p for choice in choices])
    probs = _min_p(probs, [choice.sampling.min_p for choice in choices])
    cdf = probs.cumsum(dim=-1)
    draws = [uniform(c.sampling.seed, c.sampling.choice, c.position) for c in choices]
    threshold = _column(draws, logits) * cdf[:, -1:]
    # The first id whose CDF exceeds the threshold has a positive probability. Where u * total rounds up to the total
    # there is none: the last positive one is meant.
    found = (cdf <= threshold).sum(dim=-1)
    last = probs.shape[-1] - 1 - (probs > 0).flip(-1).to(torch.uint8).argmax(dim=-1)
    ids: list[int] = torch.minimum(found, last).tolist()
    return ids


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device).unsqueeze(1)


def _top_k(scaled: Tensor, ks: Sequence[int]) -> Tensor:
    """Minus infinity below each row's k-th largest value; k <= 0 or k >= vocab keeps all."""
    vocab = scaled.shape[-1]
    limits = [k if 0 < k < vocab else 0 for k in ks]
    widest = max(limits)
    if widest == 0:
        return scaled
    values = scaled.topk(widest, dim=-1).values
    border = values.gather(1, torch.tensor([[max(k - 1, 0)] for k in limits], device=scaled.device))
    off = torch.tensor([[k == 0] for k in limits], device=scaled.device)
    return scaled.masked_fill((scaled < border) & ~off, -torch.inf)


def _top_p(probs: Tensor, ps: Sequence[float]) -> Tensor:
    """Zero outside the smallest set of most likely tokens whose sum reaches p; the most likely always stays."""
    rows = [row for row, p in enumerate(ps) if p < 1.0]
    if not rows:
        return probs
    kept = probs.clone()
    width = min(_NUCLEUS_GUESS, probs.shape[-1])
    head = probs[rows].topk(width, dim=-1).values
    for values, row in zip(head, rows, strict=True):
        border = _nucleus_border(values, ps[row])
        if border is None:
            border = _nucleus_border(probs[row].sort(descending=True).values, ps[row])
        if border is not None:
            kept[row].masked_fill_(probs[row] < border, 0.0)
    return kept


def _nucleus_border(values: Tensor, p: float) -> Tensor | None:
    """The least probability in the nucleus, from the largest probabilities in order; None when they don't reach p."""
    reached = values.cumsum(dim=0) >= p
    if not bool(reached[-1]):
        return None
    return values[int(reached.to(torch.uint8).argmax())]


def _min_p(probs: Tensor, ratios: Sequence[float]) -> Tensor:
    """Zero below min_p times the most likely token's probability."""
    if not any(ratios):
        return probs
    border = probs.max(dim=-1, keepdim=True).values * _column(ratios, probs)
    return probs.masked_fill(probs < border, 0.0)
