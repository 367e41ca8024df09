"""Which tensors a range of layers needs. Pure: names in, names out.

A range is [start, end], both inclusive. The first range has the embedding too, the last one the final norm and the
head; a head that is tied to the embedding is read from the embedding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshnet_node.errors import RangeError


@dataclass(frozen=True)
class Layout:
    """Where a model keeps its parts, as prefixes of tensor names; and which names are tied to which."""

    layers: str
    embedding: str
    tied: Mapping[str, str]


@dataclass(frozen=True)
class LayerRange:
    """Layers [start, end] of `num_layers`."""

    start: int
    end: int
    num_layers: int

    @property
    def is_first(self) -> bool:
        """Whether it embeds the tokens."""
        return self.start == 0

    @property
    def is_last(self) -> bool:
        """Whether it ends in the logits."""
        return self.end == self.num_layers - 1

    def __contains__(self, layer: int) -> bool:
        return self.start <= layer <= self.end


def layer_range(start: int, end: int | None, num_layers: int, boundaries: Collection[int]) -> LayerRange:
    """The range, with end None = the last layer. Raises RangeError that says what is wrong with it."""
    last = num_layers - 1 if end is None else end
    if not 0 <= start <= last:
        raise RangeError(f"layers {start} to {last} are no range: the start must be at least 0 and not after the end")
    if last >= num_layers:
        raise RangeError(f"layers {start} to {last} are outside the model, which has layers 0 to {num_layers - 1}")
    if start not in boundaries:
        raise RangeError(f"this model may not be cut before layer {start}; it may before {_listed(boundaries)}")
    after = last + 1
    if after < num_layers and after not in boundaries:
        raise RangeError(f"this model may not be cut after layer {last}; it may before {_listed(boundaries)}")
    return LayerRange(start, last, num_layers)


def wanted_names(names: Iterable[str], layout: Layout, layers: LayerRange) -> list[str]:
    """Those of the model's tensor names that the range needs, in the given order. Tied names stand for their source."""
    available = list(names)
    needed = {layout.tied.get(name, name) for name in available if _belongs(name, layout, layers)}
    return [name for name in available if name in needed]


def _belongs(name: str, layout: Layout, layers: LayerRange) -> bool:
    if name.startswith(layout.layers):
        return int(name[len(layout.layers) :].split(".", 1)[0]) in layers
    if name.startswith(layout.embedding):
        return layers.is_first
    return layers.is_last


def _listed(boundaries: Collection[int]) -> str:
    ordered: Sequence[int] = sorted(boundaries)
    return ", ".join(map(str, ordered))
