"""Stop strings: what comes out never depends on how the text was cut, and never holds part of a stop string."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_node.text.stops import StopMatcher


def run(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    out = "".join(matcher.decode(piece) for piece in pieces)
    return (out if matcher.stopped else out + matcher.flush()), matcher.stopped


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        pytest.param("alpha beta gamma delta", ["beta gamma"], ("alpha ", True), id="spans words (mlx-knife 68)"),
        pytest.param("ABCDEFGHIJKL", ["DEFGHIJ"], ("ABC", True), id="alphabet (vllm 3574)"),
        pytest.param("abcd", ["abcd", "bc"], ("a", True), id="complete first wins over begins first"),
        pytest.param("xaab", ["aab"], ("x", True), id="overlaps with its own beginning"),
        pytest.param("ababac", ["abac"], ("ab", True), id="restarts inside"),
        pytest.param("no stop here", ["here!"], ("no stop here", False), id="almost, flushed"),
        pytest.param("end", [], ("end", False), id="no stop strings"),
        pytest.param("你好。再见", ["。再"], ("你好", True), id="wide characters"),
    ],
)
def test_every_cut_gives_the_same(text: str, stops: list[str], expected: tuple[str, bool]) -> None:
    places = range(1, len(text))
    for cuts in itertools.chain([()], itertools.combinations(places, 1), itertools.combinations(places, 2)):
        bounds = [0, *cuts, len(text)]
        assert run([text[a:b] for a, b in itertools.pairwise(bounds)], stops) == expected
    assert run(list(text), stops) == expected


def test_only_true_prefixes_are_held_back() -> None:
    # A hold-back of fixed size delays every piece and cuts markers in two (vllm 45636).
    matcher = StopMatcher(["</answer>"])
    assert matcher.decode("thinking </think") == "thinking </think"
    assert matcher.decode("> so </an") == "> so "
    assert matcher.decode("other") == "</another"


@given(
    st.text("ab", max_size=14),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 3), min_size=14, max_size=14),
)
def test_random_texts_agree_with_one_character_at_a_time(text: str, stops: list[str], sizes: list[int]) -> None:
    pieces, rest = [], text
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    out, stopped = run(pieces, stops)
    assert (out, stopped) == run(list(text), stops)
    assert stopped == any(stop in text for stop in stops)
    assert text.startswith(out)
    assert not any(stop in out for stop in stops)
