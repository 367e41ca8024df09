"""What the benches compute from times and tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from meshnet_tokenizers import byte_level

from meshnet_node.bench import concurrency, decode, recovery
from meshnet_node.bench.client import Timed, checked
from meshnet_node.bench.command import table, text
from meshnet_node.bench.machine import cpu_model, describe
from meshnet_node.bench.numbers import flatness, rate
from meshnet_node.bench.prompts import prompt_maker
from meshnet_node.errors import ConfigError


def timed(began: float, steps: list[float], ids: list[int] | None = None) -> Timed:
    """An answer whose first token took a second."""
    times = [began + 1.0]
    for step in steps:
        times.append(times[-1] + step)
    return Timed(began, ids or list(range(len(times))), times, done=True)


def test_the_rate_counts_steps_and_not_the_prompt() -> None:
    answer = timed(100.0, [0.1] * 40)
    assert answer.first == pytest.approx(1.0)
    assert rate(answer.steps) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [([0.1] * 40, 1.0), ([0.1] * 10 + [9.0] * 20 + [0.2] * 10, 2.0), ([0.1, 0.1, 0.3, 0.3], 3.0)],
    ids=["flat", "only the first and last ten", "few steps: halves"],
)
def test_flatness(steps: list[float], expected: float) -> None:
    assert flatness(steps) == pytest.approx(expected)


def test_streams_together_are_timed_from_the_first_request_to_the_last_token() -> None:
    answers = [timed(10.0, [0.5, 0.5]), timed(11.0, [1.0, 1.0])]
    assert concurrency.together(answers) == pytest.approx(6 / 4)


def test_decode_gives_medians_and_their_ratios() -> None:
    def runs(*steps: float) -> list[Timed]:
        return [timed(0.0, [step] * 20) for step in steps]

    found = decode.result(
        decode.Sizes(),
        {"mesh": runs(0.05, 0.1, 0.9), "stateless": runs(0.4, 0.4, 0.4), "generate": runs(0.01, 0.05, 0.05)},
    )
    assert (found["mesh"]["tokens_per_s"], found["generate"]["tokens_per_s"]) == (10.0, 20.0)
    assert found["ratios"] == {"mesh_to_generate": 0.5, "stateless_to_generate": 0.125, "mesh_to_stateless": 4.0}
    assert found["identical"] is True


def test_decode_does_not_hide_other_tokens() -> None:
    good, bad = timed(0.0, [0.1] * 20), timed(0.0, [0.1] * 20, [7] * 21)
    found = decode.result(decode.Sizes(), {"mesh": [bad], "stateless": [good], "generate": [good]})
    assert (found["identical"], found["stateless_identical"]) == (False, True)


def test_a_stall_is_the_longest_pause_after_the_fault_less_the_usual_one() -> None:
    answer = timed(0.0, [0.1] * 5 + [3.0] + [0.1] * 4 + [1.1] + [0.1] * 9)
    healed = [{"cause": "link_lost", "kind": "moved", "replayed": 40, "stall_ms": 900.0}]
    found = recovery.figures(answer, timed(0.0, [0.1] * 20), healed, at=10)
    assert found["stall_ms"] == pytest.approx(1000.0), "the pause of 3 s was before the fault"
    assert found["start_over_ms"] == pytest.approx(1900.0)
    assert found["stall_to_start_over"] == pytest.approx(0.526)
    assert (found["identical"], found["errors"], found["replayed_rows"]) == (True, 0, 40)


def test_a_broken_answer_is_an_error_and_not_identical() -> None:
    answer = timed(0.0, [0.1] * 12)
    answer.error, answer.done = "gone", False
    found = recovery.figures(answer, timed(0.0, [0.1] * 20), [], at=10)
    assert (found["identical"], found["errors"], found["head_stall_ms"]) == (False, 1, None)


@pytest.mark.parametrize(
    "answer",
    [Timed(0.0, error="no"), Timed(0.0, [1], [1.0]), Timed(0.0, [1], [1.0], done=True, cached_tokens=3)],
    ids=["refused", "cut off", "its prompt was not computed"],
)
def test_an_answer_that_proves_nothing_is_not_measured(answer: Timed) -> None:
    with pytest.raises(ConfigError):
        checked("mesh", answer)


def test_prompts_have_their_length_and_differ_from_the_first_token_on(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    make = prompt_maker(tmp_path / "tokenizer.json")
    prompts = [make(length, number) for number, length in enumerate([1, 44, 1000, 5000])]
    assert [len(prompt) for prompt in prompts] == [1, 44, 1000, 5000]
    starts = {tuple(make(8, number)) for number in range(40)}
    assert len(starts) == 40, "a shared start could be adopted from a parked conversation"
    with pytest.raises(ConfigError, match=r"none\.json is needed"):
        prompt_maker(tmp_path / "none.json")


def test_the_machine_is_named(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n\nprocessor\t: 1\nmodel name\t: Other\n")
    assert cpu_model(cpuinfo) == "Some CPU @ 3 GHz"
    cpuinfo.write_text("processor\t: 0\n")
    assert cpu_model(cpuinfo)
    found = describe()
    assert found["cores"]
    assert str(found["torch"])[0].isdigit()
    json.dumps(found)


def test_tables_line_up() -> None:
    assert table([["", "a"], ["long name", 1.5], ["x", None]]) == "             a\nlong name  1.5\nx            -"
    assert table([["same"], [True], [False]]).split() == ["same", "yes", "no"]


def test_the_text_names_machine_load_and_notes() -> None:
    result = {
        "bench": "decode",
        "model": "tiny",
        "dtype": "float32",
        "machine": {"cpu": "Some CPU", "cores": 2, "torch": "2", "transformers": "5"},
        "load_average": {"before": 0.5, "after": 2.0},
        "notes": ["a note"],
    }
    lines = text(result, [["", "tokens/s"], ["mesh", 3]])
    for part in ("decode: tiny, float32", "on Some CPU, 2 cores", "load average 0.5 before, 2.0 after", "a note"):
        assert part in lines
