"""Keys and values of one session in one layer: a buffer that rows are appended to, whole or the last window of it.

Layers that see everything hold every position. Sliding layers hold a linear buffer of window + margin rows; when it
is full its tail moves to the front, which costs one copy in `SLACK` positions and keeps the rows contiguous. At least
DRAFT positions can be taken back after a move, so that a few rejected tokens never cost a replay.

Shapes: keys [1, heads, rows, key_dim], values [1, heads, rows, value_dim]; what a layer calls keys and values may be
anything of one row a position (latents, for instance).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

DRAFT = 16
SLACK = 112


@dataclass(frozen=True)
class KvSpec:
    """Sizes of a row. window: how many positions a position sees, itself included; None = all."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    dtype: torch.dtype
    window: int | None = None

    def rows(self, capacity: int) -> int:
        """Rows that the buffer has for a session of `capacity` positions."""
        return capacity if self.window is None else min(capacity, self.window + DRAFT + SLACK)

    def nbytes(self, capacity: int) -> int:
        """Bytes allocated for a session of `capacity` positions."""
        row = self.key_heads * self.key_dim + self.value_heads * self.value_dim
        return self.rows(capacity) * row * self.dtype.itemsize


class KvState:
    """The buffer. Row r holds position base + r, for `count` rows."""

    def __init__(self, spec: KvSpec, capacity: int, device: torch.device) -> None:
        self.spec = spec
        self.rows = spec.rows(capacity)
        self.base = 0
        self.count = 0
        self.keys = torch.empty((1, spec.key_heads, self.rows, spec.key_dim), dtype=spec.dtype, device=device)
        self.values = torch.empty((1, spec.value_heads, self.rows, spec.value_dim), dtype=spec.dtype, device=device)

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add n positions ([1, heads, n, dim]); returns keys and values of the past that they see and of themselves,
        [1, heads, k, dim], the newest last. The views are good until the next append."""
        n = keys.shape[2]
        if self.count + n > self.rows:
            seen = self._seen()
            if seen + n > self.rows:
                return self._append_long(keys, values, seen)
            self._shift(n)
        end = self.count + n
        self.keys[:, :, self.count : end].copy_(keys)
        self.values[:, :, self.count : end].copy_(values)
        start = self.count - self._seen()
        self.count = end
        return self.keys[:, :, start:end], self.values[:, :, start:end]

    def _seen(self) -> int:
        """How many of the rows held are seen by the next position."""
        return self.count if self.spec.window is None else min(self.count, self.spec.window - 1)

    def _shift(self, n: int) -> None:
        """Make room for n rows that fit beside what they see: move that, and the drafts before it, to the front."""
        keep = min(self.count, (self.spec.window or self.rows) - 1 + DRAFT, self.rows - n)
        start = self.count - keep
        self.keys[:, :, :keep] = self.keys[:, :, start : self.count].clone()
        self.values[:, :, :keep] = self.values[:, :, start : self.count].clone()
        self.base += start
        self.count = keep

    def _append_long(self, keys: torch.Tensor, values: torch.Tensor, seen: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A chunk that does not fit beside the window before it: the buffer keeps its tail only."""
        total = self.base + self.count + keys.shape[2]
        all_keys = torch.cat((self.keys[:, :, self.count - seen : self.count], keys), dim=2)
        all_values = torch.cat((self.values[:, :, self.count - seen : self.count], values), dim=2)
        self.count = min(all_keys.shape[2], self.rows)
        self.base = total - self.count
        self.keys[:, :, : self.count] = all_keys[:, :, -self.count :]
        self.values[:, :, : self.count] = all_values[:, :, -self.count :]
        return all_keys, all_values

    def resumable(self, position: int, filled: int) -> int:
        """The position itself if the rows that it sees are still held, else 0."""
        if position > filled:
            return filled
        needed = 0 if self.spec.window is None else max(0, position - self.spec.window + 1)
        return position if needed >= self.base else 0

    def rewind(self, position: int) -> None:
        """Drop the rows from `position` on."""
        if position <= self.base:
            self.base = position
        self.count = position - self.base

    def take(self, other: KvState, filled: int) -> None:
        """Become a copy of `other`, which holds `filled` positions."""
        self.count = min(other.count, self.rows)
        self.base = filled - self.count
        skip = other.count - self.count
        self.keys[:, :, : self.count] = other.keys[:, :, skip : other.count]
        self.values[:, :, : self.count] = other.values[:, :, skip : other.count]

    def tensors(self) -> list[torch.Tensor]:
        """All that is allocated."""
        return [self.keys, self.values]
