"""The state of one session: what the layers of one range keep of its positions.

A SessionState is a table from the layer's index to the parts that this layer keeps (keys and values, recurrent
states, or both). All tensors are allocated when the state is made, so that bytes accounted are bytes allocated and a
session can't outgrow its reservation. Who computes with the parts (shard/) writes rows into them and then calls
`advance` once for the whole state; nobody else looks inside.

Tensors are made and changed in inference mode here, whatever mode the caller is in.

Invariants: 0 <= filled <= capacity; nbytes never changes; position 0 (nothing held) can always be stood at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from meshnet_node.cache.states_kv import KvSpec, KvState
from meshnet_node.cache.states_recurrent import RecurrentSpec, RecurrentState


class StateError(RuntimeError):
    """The integrity of a session's state is broken: a fault of this program, never of its input."""


class Part(Protocol):
    """What a layer keeps of a session, as seen by SessionState."""

    def resumable(self, position: int, filled: int) -> int: ...
    def rewind(self, position: int) -> None: ...
    def tensors(self) -> list[torch.Tensor]: ...


@dataclass(frozen=True)
class LayerSpec:
    """What one layer keeps: keys and values, recurrent states, both (hybrid layers) or nothing (neither)."""

    kv: KvSpec | None = None
    recurrent: RecurrentSpec | None = None

    def nbytes(self, capacity: int) -> int:
        """Bytes that a session of `capacity` positions allocates for this layer."""
        kv = self.kv.nbytes(capacity) if self.kv else 0
        return kv + (self.recurrent.nbytes if self.recurrent else 0)


@dataclass
class LayerState:
    """The parts of one layer."""

    kv: KvState | None = None
    recurrent: RecurrentState | None = None

    def parts(self) -> list[Part]:
        """Those that exist."""
        return [part for part in (self.kv, self.recurrent) if part is not None]


class SessionState:
    """State of one session for a range of layers. `capacity` is the number of positions that it can hold."""

    @torch.inference_mode()
    def __init__(self, specs: Mapping[int, LayerSpec], capacity: int, device: torch.device) -> None:
        self.capacity = capacity
        self.filled = 0
        self.layers = {
            index: LayerState(
                kv=KvState(spec.kv, capacity, device) if spec.kv else None,
                recurrent=RecurrentState(spec.recurrent, device) if spec.recurrent else None,
            )
            for index, spec in specs.items()
        }
        self._specs = dict(specs)
        self._device = device
        self._parts: list[Part] = [part for layer in self.layers.values() for part in layer.parts()]
        self.nbytes = _bytes_of(self._parts)

    @torch.inference_mode()
    def advance(self, count: int, *, snapshot: bool = False, turn: bool = False) -> None:
        """`count` positions were just written into every layer. snapshot: remember this position where the state can't
        be cut back otherwise; turn: it is the end of a prompt, which is kept longer than other chunk ends."""
        self.filled += count
        if snapshot:
            for layer in self.layers.values():
                if layer.recurrent is not None:
                    layer.recurrent.snapshot(self.filled, turn=turn)

    def resumable(self, position: int) -> int:
        """The largest q <= position at which all layers can stand."""
        current = min(position, self.filled)
        while current > 0:
            lower = min((part.resumable(current, self.filled) for part in self._parts), default=current)
            if lower == current:
                return current
            current = lower
        return 0

    @torch.inference_mode()
    def rewind(self, position: int) -> None:
        """Forget what comes after `position`, which must be resumable."""
        if self.resumable(position) != position:
            raise StateError(f"a state of {self.filled} positions can't be cut back to {position}")
        if position != self.filled:
            for part in self._parts:
                part.rewind(position)
            self.filled = position

    @torch.inference_mode()
    def copy(self, capacity: int) -> SessionState:
        """A state of its own with the same positions. `capacity` must hold them."""
        if capacity < self.filled:
            raise StateError(f"a state of {self.filled} positions does not fit in {capacity}")
        made = SessionState(self._specs, capacity, self._device)
        made.filled = self.filled
        for index, layer in self.layers.items():
            into = made.layers[index]
            if layer.kv is not None and into.kv is not None:
                into.kv.take(layer.kv, self.filled)
            if layer.recurrent is not None and into.recurrent is not None:
                into.recurrent.take(layer.recurrent)
        return made

    def check(self) -> None:
        """Raise StateError unless the bytes accounted are those allocated and the positions fit."""
        allocated = _bytes_of(self._parts)
        if allocated != self.nbytes:
            raise StateError(f"{self.nbytes} bytes are accounted, {allocated} are allocated")
        if not 0 <= self.filled <= self.capacity:
            raise StateError(f"{self.filled} positions are filled of {self.capacity}")


def state_bytes(specs: Mapping[int, LayerSpec], capacity: int) -> int:
    """What SessionState(specs, capacity).nbytes will be."""
    return sum(spec.nbytes(capacity) for spec in specs.values())


def _bytes_of(parts: list[Part]) -> int:
    return sum(tensor.untyped_storage().nbytes() for part in parts for tensor in part.tensors())
