"""Recurrent and convolution states of one session in one layer, with two snapshots to go back to.

Such a state is one tensor per kind and index, overwritten at each position: it can't be cut back, only restored. Two
earlier positions are remembered: the newest end of a prompt, and the newest end of any other chunk. Their room is
allocated with the state, so that taking one never needs memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

Key = tuple[Literal["conv", "recurrent"], int]
SNAPSHOTS = 2
TURN, CHUNK = range(SNAPSHOTS)


@dataclass(frozen=True)
class TensorShape:
    """Shape (without the batch) and dtype of one tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes for one session."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True)
class RecurrentSpec:
    """The tensors that the layer keeps, by kind and index."""

    tensors: Mapping[Key, TensorShape]

    @property
    def nbytes(self) -> int:
        """Bytes allocated for a session, snapshots included."""
        return (1 + SNAPSHOTS) * sum(tensor.nbytes for tensor in self.tensors.values())


class RecurrentState:
    """`current[key]` is [1, *shape]; a snapshot that was not taken is at position 0."""

    def __init__(self, spec: RecurrentSpec, device: torch.device) -> None:
        def made() -> dict[Key, torch.Tensor]:
            return {
                key: torch.zeros((1, *tensor.shape), dtype=tensor.dtype, device=device)
                for key, tensor in spec.tensors.items()
            }

        self.current = made()
        self._saved = [made() for _ in range(SNAPSHOTS)]
        self._at = [0] * SNAPSHOTS

    def snapshot(self, position: int, *, turn: bool) -> None:
        """Remember the current state, which is that after `position` positions."""
        slot = TURN if turn else CHUNK
        _copy(self._saved[slot], self.current)
        self._at[slot] = position

    def resumable(self, position: int, filled: int) -> int:
        """`filled`, or the newest snapshot that is not after `position`."""
        if position >= filled:
            return filled
        return max((at for at in self._at if at <= position), default=0)

    def rewind(self, position: int) -> None:
        """Restore the snapshot of that position; 0 needs none, for whoever computes starts afresh there."""
        if position > 0:
            _copy(self.current, self._saved[self._at.index(position)])
        self._at = [at if at <= position else 0 for at in self._at]

    def take(self, other: RecurrentState) -> None:
        """Become a copy of `other`."""
        _copy(self.current, other.current)
        for mine, theirs in zip(self._saved, other._saved, strict=True):
            _copy(mine, theirs)
        self._at = list(other._at)

    def tensors(self) -> list[torch.Tensor]:
        """All that is allocated."""
        return [tensor for group in (self.current, *self._saved) for tensor in group.values()]


def _copy(into: Mapping[Key, torch.Tensor], source: Mapping[Key, torch.Tensor]) -> None:
    for key, tensor in source.items():
        into[key].copy_(tensor)
