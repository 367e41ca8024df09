"""Cutting a model into layer ranges: pure functions over numbers."""

from __future__ import annotations

import re

from meshnet_node.errors import ConfigError

Range = tuple[int, int]


def split(num_layers: int, shards: int) -> list[Range]:
    """Even ranges [start, end], both inclusive, the first ones a layer longer where it does not come out even."""
    if not 1 <= shards <= num_layers:
        raise ConfigError(
            f"--shards {shards}: the model has {num_layers} layers, so 1 to {num_layers} shards are possible"
        )
    size, longer = divmod(num_layers, shards)
    ranges, start = [], 0
    for index in range(shards):
        end = start + size + (index < longer) - 1
        ranges.append((start, end))
        start = end + 1
    return ranges


def parse(text: str, num_layers: int) -> list[Range]:
    """Ranges from `0-14,15-29`; they must cover layers 0..num_layers-1 without a gap, and may overlap."""
    ranges = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", part)
        if match is None:
            raise ConfigError(f"--layers: {part!r} is not START-END, for example 0-14,15-29")
        start, end = int(match[1]), int(match[2])
        if not start <= end < num_layers:
            raise ConfigError(f"--layers: {part.strip()} is outside the model's layers 0 to {num_layers - 1}")
        ranges.append((start, end))
    reached = -1
    for start, end in sorted(ranges):
        if start > reached + 1:
            raise ConfigError(f"--layers: layer {reached + 1} is in no range")
        reached = max(reached, end)
    if reached != num_layers - 1:
        raise ConfigError(f"--layers: layer {reached + 1} is in no range; the model's last layer is {num_layers - 1}")
    return ranges
