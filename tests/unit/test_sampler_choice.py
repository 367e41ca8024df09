"""What the sampler chooses: each parameter has its effect, and nothing else has one."""

from __future__ import annotations

from array import array
from collections import Counter

import pytest
import torch
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.logits_process import MinPLogitsWarper

from meshnet_node.shard.sampler import LOWEST, Choice, choose, needs_history, score
from meshnet_node.wire.frames import Sampling

VOCAB = 300


def random_logits(rows: int, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def choice(sampling: Sampling, position: int = 5, history: list[int] | None = None) -> Choice:
    tokens = array("i", history if history is not None else range(position))
    return Choice(sampling, position, tokens)


def draw(logits: torch.Tensor, sampling: Sampling, count: int) -> Counter[int]:
    """`count` draws from one row of logits, at successive positions."""
    rows = logits.expand(count, -1)
    return Counter(s.id for s in choose(rows, [choice(sampling, position, []) for position in range(count)]))


def test_greedy_takes_the_largest_logit() -> None:
    logits = random_logits(4)
    chosen = choose(logits, [choice(Sampling())] * 4)
    assert [s.id for s in chosen] == logits.argmax(-1).tolist()
    assert all(s.logprob is None and s.top == [] for s in chosen)


def test_temperature_just_below_the_limit_is_greedy() -> None:
    logits = random_logits(1)
    assert choose(logits, [choice(Sampling(temperature=9e-6))])[0].id == int(logits.argmax())


def test_bfloat16_logits_are_compared_as_float32() -> None:
    logits = random_logits(2).to(torch.bfloat16)
    assert [s.id for s in choose(logits, [choice(Sampling())] * 2)] == logits.float().argmax(-1).tolist()


def test_the_token_depends_on_seed_choice_and_position_only() -> None:
    logits = random_logits(1)
    base = Sampling(temperature=2.0, seed=11)

    def token(sampling: Sampling, position: int) -> int:
        return choose(logits, [choice(sampling, position)])[0].id

    assert len({token(base, 40) for _ in range(3)}) == 1
    assert len({token(base, position) for position in range(20)}) > 3
    assert len({token(Sampling(temperature=2.0, seed=seed), 40) for seed in range(20)}) > 3
    assert len({token(Sampling(temperature=2.0, seed=11, choice=c), 40) for c in range(20)}) > 3


def test_company_changes_nothing() -> None:
    samplings = [
        Sampling(),
        Sampling(temperature=1.0, seed=1),
        Sampling(temperature=0.7, top_p=0.9, seed=2),
        Sampling(temperature=1.3, top_k=7, seed=3, logprobs=3),
        Sampling(temperature=1.0, min_p=0.1, repetition_penalty=1.3, seed=4),
        Sampling(presence_penalty=1.0, frequency_penalty=0.5, gen_start=2),
        Sampling(temperature=1.0, top_k=20, top_p=0.5, min_p=0.02, logit_bias={3: 4.0}, banned=(5,), seed=2**64 - 1),
    ]
    logits = random_logits(len(samplings), seed=3)
    choices = [choice(sampling, 9) for sampling in samplings]
    together = choose(logits, choices)
    alone = [choose(logits[row : row + 1], [choices[row]])[0] for row in range(len(samplings))]
    backwards = choose(logits.flip(0), choices[::-1])[::-1]
    assert [s.id for s in together] == [s.id for s in alone] == [s.id for s in backwards]
    assert together[3].top == alone[3].top


def test_logits_are_left_as_they_were() -> None:
    logits = random_logits(2)
    before = logits.clone()
    choose(logits, [choice(Sampling(temperature=1.0, top_p=0.5, banned=(1,), repetition_penalty=2.0))] * 2)
    assert torch.equal(logits, before)


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -20.0]])
    count = 20_000
    found = draw(logits, Sampling(temperature=1.0, seed=5), count)
    for token, p in enumerate(torch.softmax(logits[0], -1).tolist()):
        assert abs(found[token] - p * count) < 4 * (p * count) ** 0.5 + 4


REFERENCES = {
    "top_k": (Sampling(temperature=1.0, top_k=5), TopKLogitsWarper(5)),
    "top_k beyond the vocabulary": (Sampling(temperature=1.0, top_k=10_000), TopKLogitsWarper(10_000)),
    "top_p": (Sampling(temperature=1.0, top_p=0.6), TopPLogitsWarper(0.6)),
    "top_p near one": (Sampling(temperature=1.0, top_p=0.999), TopPLogitsWarper(0.999)),
    "min_p": (Sampling(temperature=1.0, min_p=0.2), MinPLogitsWarper(0.2)),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_truncation_allows_what_transformers_allows(name: str) -> None:
    sampling, warper = REFERENCES[name]
    logits = random_logits(1, seed=8, vocab=40)
    warped = warper(torch.zeros(1, 1, dtype=torch.long), logits.clone())
    p = torch.softmax(warped, -1)[0]
    count = 8000
    found = draw(logits, sampling, count)
    assert all(p[token] > 0 for token in found)
    for token in range(40):
        assert abs(found[token] - float(p[token]) * count) < 5 * (float(p[token]) * count) ** 0.5 + 5


def test_top_p_reaches_beyond_the_first_guess_in_a_flat_distribution() -> None:
    found = draw(torch.zeros(1, 5000), Sampling(temperature=1.0, top_p=0.9, seed=1), 400)
    assert len(found) > 350


def test_top_p_zero_and_tiny_keep_the_most_likely() -> None:
    logits = random_logits(1)
    for p in (0.0, 1e-6):
        assert set(draw(logits, Sampling(temperature=5.0, top_p=p), 50)) == {int(logits.argmax())}


def test_temperature_scales_before_truncation() -> None:
    logits = random_logits(1, seed=2, vocab=30)
    warped = TopPLogitsWarper(0.7)(torch.zeros(1, 1), TemperatureLogitsWarper(2.5)(torch.zeros(1, 1), logits.clone()))
    allowed = set(torch.nonzero(torch.isfinite(warped[0])).flatten().tolist())
    found = draw(logits, Sampling(temperature=2.5, top_p=0.7), 4000)
    assert set(found) <= allowed
    assert len(found) > 0.8 * len(allowed)


def test_repetition_penalty_is_that_of_transformers() -> None:
    logits = random_logits(1, seed=4)
    history = [*logits[0].topk(6).indices.tolist(), 7, 7, 7]
    expected = RepetitionPenaltyLogitsProcessor(3.0)(torch.tensor([history]), logits.clone())
    found = choose(logits, [choice(Sampling(repetition_penalty=3.0), len(history), history)])[0].id
    assert found == int(expected.argmax())
    assert found != int(logits.argmax())


def test_presence_and_frequency_count_only_generated_tokens() -> None:
    logits = torch.tensor([[3.0, 2.5, 2.0, 0.0]])
    prompt, generated = [0, 0, 0], [1, 1, 2]

    def token(**kwargs: float) -> int:
        sampling = Sampling(gen_start=len(prompt), **kwargs)
        return choose(logits, [choice(sampling, 6, prompt + generated)])[0].id

    assert token(presence_penalty=2.0) == 0
    biased = logits.clone()
    biased[0, 0] = -5
    sampling = Sampling(gen_start=3, frequency_penalty=0.4)
    assert choose(biased, [choice(sampling, 6, prompt + generated)])[0].id == 1
    sampling = Sampling(gen_start=3, frequency_penalty=0.6)
    assert choose(biased, [choice(sampling, 6, prompt + generated)])[0].id == 2


def test_bias_and_bans_apply_to_greedy_and_drawn_tokens() -> None:
    logits = random_logits(1)
    best = int(logits.argmax())
    for temperature in (0.0, 1.0):
        banned = Sampling(temperature=temperature, banned=(best,))
        biased = Sampling(temperature=temperature, logit_bias={best: -100.0})
        forced = Sampling(temperature=temperature, logit_bias={17: 100.0})
        assert best not in draw(logits, banned, 200)
        assert best not in draw(logits, biased, 200)
        assert set(draw(logits, forced, 200)) == {17}


def test_bias_can_not_bring_a_banned_token_back() -> None:
    sampling = Sampling(logit_bias={17: 100.0}, banned=(17,))
    assert choose(random_logits(1), [choice(sampling)])[0].id != 17


def test_logprobs_are_raw_whatever_the_processors_do() -> None:
    logits = random_logits(1)
    raw = torch.log_softmax(logits[0], -1)
    sampling = Sampling(temperature=0.3, top_p=0.3, banned=(int(logits.argmax()),), logprobs=4)
    chosen = choose(logits, [choice(sampling)])[0]
    assert chosen.logprob == pytest.approx(float(raw[chosen.id]))
    assert [token for token, _ in chosen.top] == raw.topk(4).indices.tolist()
    assert [value for _, value in chosen.top] == pytest.approx(raw.topk(4).values.tolist())


def test_zero_alternatives_gives_the_own_logprob_alone() -> None:
    chosen = choose(random_logits(1), [choice(Sampling(logprobs=0))])[0]
    assert chosen.logprob is not None
    assert chosen.top == []


def test_minus_infinity_is_reported_as_a_number() -> None:
    logits = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    top = choose(logits, [choice(Sampling(logprobs=3))])[0].top
    assert [value for _, value in top] == [0.0, LOWEST, LOWEST]
    assert score(logits, [1], 0)[0].logprob == LOWEST


def test_score_gives_each_target_its_raw_logprob() -> None:
    logits = random_logits(3)
    raw = torch.log_softmax(logits, -1)
    scores = score(logits, [4, -1, 9], 2)
    assert [s.id for s in scores] == [4, -1, 9]
    assert scores[0].logprob == pytest.approx(float(raw[0, 4]))
    assert scores[1].logprob is None
    assert len(scores[1].top) == 2
    assert scores[2].logprob == pytest.approx(float(raw[2, 9]))


def test_nan_logits_are_refused() -> None:
    logits = random_logits(2)
    logits[1, 3] = torch.nan
    with pytest.raises(ArithmeticError):
        choose(logits, [choice(Sampling())] * 2)


def test_the_last_possible_draw_lands_on_a_likely_token() -> None:
    """u * total may round up to the total: the clamp then picks the last token that has a probability."""
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, 10:20] = 0.0
    assert set(draw(logits, Sampling(temperature=1.0, seed=3), 3000)) == set(range(10, 20))


def test_history_is_needed_for_penalties_only() -> None:
    assert not needs_history(Sampling(temperature=1.0, top_p=0.5, logit_bias={1: 1.0}, banned=(2,)))
    assert needs_history(Sampling(repetition_penalty=1.1))
    assert needs_history(Sampling(presence_penalty=0.1))
    assert needs_history(Sampling(frequency_penalty=-0.1))
