"""Cutting back, copying, company and refusals, on real layers of each kind."""

from __future__ import annotations

from pathlib import Path

import meshnet_testing_models as models
import pytest
import torch
from meshnet_testing_chain import Chain, runner

from meshnet_node.errors import RangeError
from meshnet_node.shard.runner import RangeRunner, Work

# One family for each kind of state: everything, windows beside everything, latents, convolution and recurrence.
KINDS = ("llama", "gemma3_text", "gpt_oss", "deepseek_v3", "qwen3_next", "granitemoehybrid")
IDS = models.prompt(60, seed=4)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=KINDS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RangeRunner:
    """The whole model as one range."""
    return runner(models.write_model(tmp_path_factory.mktemp("kind") / "model", request.param))


def feed(hop: RangeRunner, state: object, start: int, end: int, want: str = "last") -> torch.Tensor:
    (out,) = hop.run([Work(state, start, IDS[start:end], None, want)])  # type: ignore[arg-type]
    return out


def test_after_a_cut_back_the_same_positions_give_the_same_logits(whole: RangeRunner) -> None:
    state = whole.new_state(100)
    feed(whole, state, 0, 20)
    feed(whole, state, 20, 40, "none")
    want = [feed(whole, state, position, position + 1) for position in range(40, 50)]
    at = state.resumable(40)
    assert at == 40
    state.rewind(at)
    feed(whole, state, 40, 41)
    at = state.resumable(30)
    assert at in (20, 30), "anywhere, or at the end of the prompt"
    state.rewind(at)
    feed(whole, state, at, 40, "none")
    again = [feed(whole, state, position, position + 1) for position in range(40, 50)]
    torch.testing.assert_close(again, want, atol=1e-4, rtol=0)


def test_a_copy_goes_on_like_the_original(whole: RangeRunner) -> None:
    state = whole.new_state(100)
    feed(whole, state, 0, 30)
    copied = state.copy(60)
    assert copied.nbytes == whole.state_bytes(60)
    assert torch.equal(feed(whole, state, 30, 45), feed(whole, copied, 30, 45))


def test_alone_and_in_company_a_session_gets_the_same_logits(whole: RangeRunner) -> None:
    def ready() -> object:
        state = whole.new_state(100)
        feed(whole, state, 0, 30)
        return state

    alone, together = ready(), ready()
    others = []
    for length in (3, 50, 17):
        other = whole.new_state(100)
        feed(whole, other, 0, length)
        others.append((other, length))
    for position in range(30, 36):
        want = feed(whole, alone, position, position + 1)
        works = [Work(together, position, [IDS[position]], None, "last")]  # type: ignore[arg-type]
        works += [Work(other, length + position - 30, [7], None, "last") for other, length in others]
        torch.testing.assert_close(whole.run(works)[0], want, atol=1e-4, rtol=0)


def test_bytes_are_those_promised_and_freed_with_the_state(whole: RangeRunner) -> None:
    for positions in (1, 33, 400):
        state = whole.new_state(positions)
        assert state.nbytes == whole.state_bytes(positions)
        assert state.capacity == positions
        state.check()
    assert whole.state_bytes(100, 3) < whole.state_bytes(100)


def test_what_is_wanted_decides_the_rows(whole: RangeRunner) -> None:
    for want, count in (("none", 0), ("last", 1), ("all", 12)):
        out = feed(whole, None, 0, 12, want)
        assert tuple(out.shape) == (count, whole.vocab_size)
        assert out.dtype == torch.float32


def test_fresh_rows_in_a_batch_are_run_on_their_own(whole: RangeRunner) -> None:
    old, fresh, other = (whole.new_state(50) for _ in range(3))
    feed(whole, old, 0, 9)
    outs = whole.run([Work(old, 9, [IDS[9]], None, "last"), Work(fresh, 0, [IDS[0]], None, "last")])
    assert torch.equal(outs[1], feed(whole, other, 0, 1))
    assert (old.filled, fresh.filled) == (10, 1)


def test_work_that_does_not_fit_its_state_is_refused_before_anything_runs(whole: RangeRunner) -> None:
    state = whole.new_state(10)
    feed(whole, state, 0, 4)
    for work, says in (
        (Work(state, 3, [1], None, "last"), "past_len is 3, the state holds 4"),
        (Work(state, 4, [1] * 7, None, "last"), "room for 10 positions only"),
        (Work(None, 4, [1], None, "last"), "from position 0"),
    ):
        with pytest.raises(ValueError, match=says):
            whole.run([work])
    with pytest.raises(ValueError, match="one position each"):
        whole.run([Work(state, 4, [1, 2], None, "last")] * 2)
    with pytest.raises(RangeError, match="layer 6 is not one of 0 to 5"):
        whole.run([Work(state, 4, [1], None, "last")], 6)
    state.check()
    assert state.filled == 4


def test_rows_of_a_window_far_past_it(tmp_path: Path) -> None:
    """Long enough for the window's buffer to be moved, in a batch and in chunks."""
    folder = models.write_model(tmp_path / "model", "gemma3_text")
    ids = models.prompt(420, seed=8)
    sizes = [150, *[1] * 130, 120, 20]
    want = models.logits_by_chunks(models.uncut(folder), ids, sizes)
    chain = Chain.load(folder, [(0, 2), (3, 5)])
    session, company = chain.open(ids, 420), chain.open(ids, 420)
    got = [chain.feed(session, 150, "all")]
    chain.feed(company, 31)
    for _ in range(130):
        got.append(chain.decode([company, session])[1][None])
    got += [chain.feed(session, n, "all") for n in (120, 20)]
    torch.testing.assert_close(torch.cat(got), want, atol=1e-4, rtol=0)
