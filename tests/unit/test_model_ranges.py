"""Which tensors a range needs, and what is no range."""

from __future__ import annotations

import pytest

from meshnet_node.errors import RangeError
from meshnet_node.model.ranges import Layout, layer_range, wanted_names

LAYOUT = Layout(layers="model.layers.", embedding="model.embed_tokens.", tied={})
TIED = Layout(
    layers="model.layers.", embedding="model.embed_tokens.", tied={"lm_head.weight": "model.embed_tokens.weight"}
)
NAMES = [
    "model.embed_tokens.weight",
    *(f"model.layers.{layer}.{part}.weight" for layer in range(12) for part in ("mlp", "attention")),
    "model.norm.weight",
    "lm_head.weight",
]


def names(start: int, end: int, layout: Layout = LAYOUT) -> set[str]:
    return set(wanted_names(NAMES, layout, layer_range(start, end, 12, range(12))))


def test_a_middle_range_needs_its_layers_alone() -> None:
    assert names(1, 1) == {"model.layers.1.mlp.weight", "model.layers.1.attention.weight"}


def test_the_first_range_embeds_and_the_last_has_norm_and_head() -> None:
    assert names(0, 0) == {"model.embed_tokens.weight", "model.layers.0.mlp.weight", "model.layers.0.attention.weight"}
    assert names(11, 11) == {
        "model.layers.11.mlp.weight",
        "model.layers.11.attention.weight",
        "model.norm.weight",
        "lm_head.weight",
    }


def test_a_tied_head_is_read_from_the_embedding() -> None:
    last = names(11, 11, TIED)
    assert "model.embed_tokens.weight" in last
    assert "lm_head.weight" not in last
    assert "model.embed_tokens.weight" not in names(1, 10, TIED)


def test_ranges_share_no_tensor_and_leave_none_out() -> None:
    cut = [(0, 2), (3, 3), (4, 11)]
    parts = [names(start, end) for start, end in cut]
    assert set.union(*parts) == set(NAMES)
    assert sum(map(len, parts)) == len(NAMES)


def test_an_open_end_is_the_last_layer() -> None:
    found = layer_range(4, None, 12, range(12))
    assert (found.start, found.end, found.is_first, found.is_last) == (4, 11, False, True)


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        (0, 12, "outside the model, which has layers 0 to 11"),
        (12, None, "layers 12 to 11 are no range"),
        (5, 4, "layers 5 to 4 are no range"),
    ],
)
def test_a_range_outside_the_model_is_refused_in_a_sentence(start: int, end: int | None, says: str) -> None:
    with pytest.raises(RangeError, match=says):
        layer_range(start, end, 12, range(12))


def test_a_range_must_obey_the_boundaries_at_both_ends() -> None:
    assert layer_range(4, 7, 12, [0, 4, 8]).end == 7
    with pytest.raises(RangeError, match="may not be cut before layer 3; it may before 0, 4, 8"):
        layer_range(3, 7, 12, [0, 4, 8])
    with pytest.raises(RangeError, match="may not be cut after layer 5"):
        layer_range(4, 5, 12, [0, 4, 8])
