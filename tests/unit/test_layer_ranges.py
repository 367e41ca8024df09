"""How `meshnet up` cuts a model."""

from __future__ import annotations

import pytest

from meshnet_node.errors import ConfigError
from meshnet_node.local.layers import parse, split


@pytest.mark.parametrize(
    ("layers", "shards", "ranges"),
    [
        (30, 1, [(0, 29)]),
        (30, 2, [(0, 14), (15, 29)]),
        (5, 3, [(0, 1), (2, 3), (4, 4)]),
        (3, 3, [(0, 0), (1, 1), (2, 2)]),
    ],
)
def test_even_cuts(layers: int, shards: int, ranges: list[tuple[int, int]]) -> None:
    assert split(layers, shards) == ranges


@pytest.mark.parametrize("shards", [0, -1, 31])
def test_more_shards_than_layers_are_refused(shards: int) -> None:
    with pytest.raises(ConfigError, match="1 to 30 shards"):
        split(30, shards)


def test_ranges_may_be_uneven_and_overlap() -> None:
    assert parse("0-3, 2-29", 30) == [(0, 3), (2, 29)]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("0-14", "last layer is 29"),
        ("0-3,5-29", "layer 4 is in no range"),
        ("1-29", "layer 0 is in no range"),
        ("0-30", "outside"),
        ("5-3", "outside"),
        ("a-b", "START-END"),
        ("", "START-END"),
    ],
)
def test_what_does_not_cover_the_model_is_refused(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        parse(text, 30)
