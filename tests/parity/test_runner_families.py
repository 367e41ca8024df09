"""Every proven family, cut in two and three, says what the uncut model says: ragged batches, chunks, a loss,
overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import meshnet_testing_models as models
import pytest
import torch
from meshnet_testing_chain import Chain, Session, even_cut

from meshnet_node.shard.runner import Work

LENGTHS = (5, 23, 40, 11, 17)
NEW = 24
TIE = 1e-4
Make = Callable[[str], Path]
# Each family in one of the two cuts by default, in both in the long runs.
CASES = [
    pytest.param(family, shards, marks=() if shards == 2 + number % 2 else pytest.mark.parity)
    for number, family in enumerate(models.FAMILIES)
    for shards in (2, 3)
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """The folder of a family's tiny model, written once."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = models.write_model(tmp_path_factory.mktemp(family) / "model", family)
        return made[family]

    return make


@pytest.fixture(scope="module")
def expected(model_of: Make) -> Callable[[str], list[list[int]]]:
    """What the uncut model generates after each of the five prompts."""
    made: dict[str, list[list[int]]] = {}

    def make(family: str) -> list[list[int]]:
        if family not in made:
            reference = models.uncut(model_of(family))
            made[family] = [models.greedy(reference, ids, NEW) for ids in prompts()]
        return made[family]

    return make


def tolerance(folder: Path, ids: list[int], sizes: Sequence[int]) -> float:
    """1e-4, or what rounding alone does to this model's logits, four times over."""
    return max(TIE, 4 * models.rounding_noise(folder, ids, sizes))


def prompts() -> list[list[int]]:
    return [models.prompt(length, seed) for seed, length in enumerate(LENGTHS)]


def run_together(chain: Chain, losses: dict[int, tuple[int, int]]) -> list[list[int]]:
    """Five sessions, joined two steps apart in two chunks each, decoded as one batch. losses: at a step, (session,
    hop)."""
    waiting = prompts()
    live: list[Session] = []
    step = 0
    while waiting or any(remaining(session, i) for i, session in enumerate(live)):
        if step in losses:
            which, hop = losses[step]
            chain.lose(live[which], hop)
        active = [session for i, session in enumerate(live) if remaining(session, i)]
        if active:
            for session, logits in zip(active, chain.decode(active), strict=True):
                session.tokens.append(int(logits.argmax()))
        if waiting and step % 2 == 0:
            session = chain.open(waiting.pop(0), 80)
            chain.feed(session, len(session.tokens) // 2, "none")
            logits = chain.feed(session, len(session.tokens) - session.filled)
            session.tokens.append(int(logits[-1].argmax()))
            live.append(session)
        step += 1
    for session in live:
        for state in session.states:
            state.check()
    return [session.tokens[length:] for session, length in zip(live, LENGTHS, strict=True)]


def remaining(session: Session, index: int) -> bool:
    return len(session.tokens) - LENGTHS[index] < NEW


@pytest.mark.parametrize(("family", "shards"), CASES)
def test_five_ragged_sessions_with_one_loss_get_the_uncut_models_tokens(
    family: str, shards: int, model_of: Make, expected: Callable[[str], list[list[int]]]
) -> None:
    want = expected(family)
    assert len({token for tokens in want for token in tokens}) >= 24, "too few distinct tokens to prove anything"
    chain = Chain.load(model_of(family), even_cut(models.LAYERS, shards))
    got = run_together(chain, losses={12: (1, shards - 1)})
    assert got == want


@pytest.mark.parametrize("family", models.FAMILIES)
def test_logits_are_those_of_the_uncut_model_in_the_same_chunks(family: str, model_of: Make) -> None:
    """Equal tokens would not show a scale of the logits that was left out."""
    ids = models.prompt(60, seed=9)
    sizes = (1, 1, 20, 37, 1)
    want = models.logits_by_chunks(models.uncut(model_of(family)), ids, sizes)
    chain = Chain.load(model_of(family), [(0, 2), (3, 5)])
    session = chain.open(ids, 60)
    got = torch.cat([chain.feed(session, n, "all") for n in sizes])
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, atol=tolerance(model_of(family), ids, sizes), rtol=0)


@pytest.mark.parametrize("family", models.FAMILIES)
def test_a_range_that_overlaps_the_one_before_runs_nothing_twice(
    family: str, model_of: Make, expected: Callable[[str], list[list[int]]]
) -> None:
    whole = Chain.load(model_of(family), [(0, 3), (1, 5)])
    chain = Chain(whole.runners, start_layers=[0, 4])
    session = chain.open(prompts()[1], 80)
    assert set(session.states[1].layers) == {4, 5}
    assert session.states[1].nbytes == chain.runners[1].state_bytes(80, 4)
    assert chain.generate(session, NEW, chunk=16) == expected(family)[1]


@pytest.mark.parametrize("family", models.FAMILIES)
def test_without_state_each_pass_gives_the_same_logits(family: str, model_of: Make) -> None:
    ids = models.prompt(40, seed=3)
    want = models.logits_by_chunks(models.uncut(model_of(family)), ids, [40])
    hidden = None
    for hop in Chain.load(model_of(family), [(0, 1), (2, 5)]).runners:
        (hidden,) = hop.run([Work(None, 0, ids, hidden, "all")])
    torch.testing.assert_close(hidden, want, atol=tolerance(model_of(family), ids, [40]), rtol=0)
