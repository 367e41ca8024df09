"""From the checkpoint's tensors to the model's: renamings, and experts that are stored one by one but computed as one.

transformers keeps a table of such conversions for each family; this module reads it and turns it into pieces, each a
stored tensor that fills a part of a model's tensor. A piece is read straight into its place, so that fusing experts
needs no second copy of them. Conversions that are more than placing are refused by name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)

from meshnet_node.errors import FamilyError, WeightsError
from meshnet_node.model.tensorfiles import StoredTensor


@dataclass(frozen=True)
class Merge:
    """Where a stored tensor goes in a fused one: which source of `sources`, and the how-manieth of that source."""

    source: int
    sources: int
    index: int


@dataclass(frozen=True)
class Piece:
    """The stored tensor `name` fills the model's tensor `target`: all of it, or the part that `merge` says."""

    name: str
    target: str
    merge: Merge | None = None


def plan_pieces(model: Any, names: Iterable[str], targets: Mapping[str, torch.Tensor]) -> dict[str, list[Piece]]:
    """For each of `targets` (a subset of the model's own tensors, by name) the pieces that fill it.

    `names` are all names of the checkpoint. Raises WeightsError for a target that nothing fills, FamilyError for a
    conversion that is more than placing.
    """
    transforms = get_model_conversion_mapping(model)
    renamings = [transform for transform in transforms if isinstance(transform, WeightRenaming)]
    converters = [transform for transform in transforms if isinstance(transform, WeightConverter)]
    own = model.state_dict()
    pieces: dict[str, list[Piece]] = defaultdict(list)
    merged: dict[tuple[str, int], int] = defaultdict(int)
    for name in sorted(names, key=_natural):
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, own)
        if target not in targets and name in targets:
            target, pattern = name, None
        if target not in targets:
            continue
        if pattern is None:
            pieces[target].append(Piece(name, target))
            continue
        source, sources = _placing(pattern, converters)
        pieces[target].append(Piece(name, target, Merge(source, sources, merged[target, source])))
        merged[target, source] += 1
    for target in targets:
        if target not in pieces:
            raise WeightsError(f"the checkpoint lacks the tensor {target}")
    return pieces


def _placing(pattern: str, converters: list[Any]) -> tuple[int, int]:
    """Which source of its converter a pattern is, and how many there are."""
    converter = next(converter for converter in converters if pattern in converter.source_patterns)
    kinds = [type(operation) for operation in converter.operations]
    dims = [operation.dim for operation in converter.operations if hasattr(operation, "dim")]
    count = len(converter.source_patterns)
    stacked = kinds == [MergeModulelist] and dims == [0] and count == 1
    joined = kinds == [MergeModulelist, Concatenate] and dims == [0, 1]
    if not stacked and not joined:
        raise FamilyError(f"tensors stored as {pattern} need a conversion that is not served: {converter}")
    return converter.source_patterns.index(pattern), count


def place(piece: Piece, stored: StoredTensor, target: torch.Tensor, filled: int) -> torch.Tensor:
    """The part of `target` that the piece fills. `filled` is how many pieces each source has.

    Raises WeightsError where the stored shape is another.
    """
    part = target
    merge = piece.merge
    if merge is not None:
        if filled != target.shape[0]:
            raise WeightsError(
                f"the checkpoint has {filled} parts of {piece.target}, the model wants {target.shape[0]}"
            )
        rows = target.shape[1] // merge.sources
        part = target[merge.index, merge.source * rows : (merge.source + 1) * rows]
    if tuple(part.shape) != stored.shape:
        raise WeightsError(
            f"tensor {piece.name} of the checkpoint has the shape {list(stored.shape)}, "
            f"the model wants {list(part.shape)}"
        )
    return part


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts experts.10 after experts.9."""
    return [(int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"\.", name)]
