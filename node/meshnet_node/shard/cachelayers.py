"""The sessions' states as transformers' cache, so that the model's own code reads and writes them.

`kinds_of` says what each layer of a model keeps. `StateCache` stands between a running batch and the model;
`LearningCache` stands there once, to learn the shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DummyLayer,
    LinearAttentionLayer,
    get_layer_types_and_kwargs,
)

from meshnet_node.cache.states import LayerSpec
from meshnet_node.cache.states_kv import KvSpec
from meshnet_node.cache.states_recurrent import Key, RecurrentSpec, TensorShape
from meshnet_node.shard.attention import Batch

KV_TYPES = {"full_attention", "sliding_attention", "hybrid", "hybrid_sliding"}
RECURRENT_TYPES = {"conv", "linear_attention", "hybrid", "hybrid_sliding"}
KNOWN_TYPES = KV_TYPES | RECURRENT_TYPES | {"dummy"}


@dataclass(frozen=True)
class Kind:
    """What a layer keeps: keys and values (of a window, or of all positions), recurrent states (how many), or both."""

    kv: bool
    window: int | None
    recurrent: int


def kinds_of(config: Any) -> list[Kind] | None:
    """The kind of each layer of the whole model; None if one is of a type whose state can't be held."""
    types, options = get_layer_types_and_kwargs(config.get_text_config(decoder=True))
    if not set(types) <= KNOWN_TYPES:
        return None
    return [
        Kind(
            kv=kind in KV_TYPES,
            window=option.get("sliding_window"),
            recurrent=option.get("number_of_states", 1) if kind in RECURRENT_TYPES else 0,
        )
        for kind, option in zip(types, options, strict=True)
    ]


class _Kv(CacheLayerMixin):  # type: ignore[misc]
    """Appends each row's keys and values to its session, and leaves the views for the attention."""

    is_compileable = False
    is_sliding = False

    def __init__(self, batch: Batch, layer: int) -> None:
        super().__init__()
        self._batch = batch
        self._layer = layer

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        batch = self._batch
        views = []
        for row, state in enumerate(batch.states):
            kv = state.layers[self._layer].kv
            if kv is None:
                raise RuntimeError(
                    f"layer {self._layer} keeps keys and values, the session's state has no room for them"
                )
            views.append(kv.append(keys[row : row + 1], values[row : row + 1]))
        batch.views[self._layer] = views
        if self._layer not in batch.expanding:
            return keys, values
        if len(views) == 1:
            return views[0]
        return torch.cat([k for k, _ in views], dim=2), torch.cat([v for _, v in views], dim=2)

    def lazy_initialization(self, *_: Any) -> None:
        self.is_initialized = True

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class _Recurrent(LinearAttentionLayer):  # type: ignore[misc]
    """Lends the sessions' tensors to the model: one session's own, several gathered and written back."""

    def __init__(self, batch: Batch, layer: int, count: int) -> None:
        super().__init__(number_of_states=count)
        self._batch = batch
        self._layer = layer

    def begin(self, fresh: bool) -> None:
        """Before a pass. fresh: the rows hold no position yet."""
        for (kind, index), tensors in self._gathered().items():
            tensor = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
            if kind == "conv":
                self.conv_states[index] = tensor
                self.is_conv_states_initialized[index] = True
                self.conv_kernel_size[index] = tensor.shape[-1]
            else:
                self.recurrent_states[index] = tensor
                self.is_recurrent_states_initialized[index] = True
        for index in range(self.number_of_states):
            self.has_previous_state[index] = not fresh

    def end(self) -> None:
        """After a pass."""
        for (kind, index), tensors in self._gathered().items():
            group = self.conv_states if kind == "conv" else self.recurrent_states
            if len(tensors) > 1:
                for row, tensor in enumerate(tensors):
                    tensor.copy_(group[index][row : row + 1])
            group[index] = None

    def _gathered(self) -> dict[Key, list[torch.Tensor]]:
        found: dict[Key, list[torch.Tensor]] = {}
        for state in self._batch.states:
            recurrent = state.layers[self._layer].recurrent
            if recurrent is not None:
                for key, tensor in recurrent.current.items():
                    found.setdefault(key, []).append(tensor)
        return found


class _Hybrid(_Recurrent, _Kv):
    """A layer that keeps both."""

    is_compileable = False

    def __init__(self, batch: Batch, layer: int, count: int) -> None:
        _Kv.__init__(self, batch, layer)
        _Recurrent.__init__(self, batch, layer, count)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Everything is there already."""

    def get_max_length(self) -> int:
        return -1


class StateCache(Cache):  # type: ignore[misc]
    """One for each runner; the batch says whose states the next pass reads and writes."""

    def __init__(self, batch: Batch, kinds: Mapping[int, Kind], num_layers: int) -> None:
        made = [self._layer(batch, index, kinds.get(index)) for index in range(num_layers)]
        super().__init__(layers=made)
        self._recurrent = [layer for layer in made if isinstance(layer, _Recurrent)]
        self._inside: list[_Recurrent] = []

    @staticmethod
    def _layer(batch: Batch, index: int, kind: Kind | None) -> Any:
        if kind is None or not (kind.kv or kind.recurrent):
            return DummyLayer()
        if kind.kv and kind.recurrent:
            return _Hybrid(batch, index, kind.recurrent)
        return _Recurrent(batch, index, kind.recurrent) if kind.recurrent else _Kv(batch, index)

    def begin(self, start: int, fresh: bool) -> None:
        """Before a pass over the layers from `start` on."""
        self._inside = [layer for layer in self._recurrent if layer._layer >= start]
        for layer in self._inside:
            layer.begin(fresh)

    def end(self) -> None:
        """After the pass."""
        for layer in self._inside:
            layer.end()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Not asked: positions are always given."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Not used: the model builds no masks."""
        return query_length, 0


class _LearningKv(_Kv):
    """Remembers shapes, and what it gave back."""

    shapes: tuple[torch.Size, torch.Size, torch.dtype] | None = None

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.shapes = (keys.shape, values.shape, keys.dtype)
        self._batch.returned[self._layer] = keys
        return keys, values

    def spec(self, window: int | None) -> KvSpec:
        """What was learnt."""
        if self.shapes is None:
            raise RuntimeError(f"layer {self._layer} was not run, or does not keep keys and values")
        keys, values, dtype = self.shapes
        return KvSpec(keys[1], keys[3], values[1], values[3], dtype, window)


class _LearningHybrid(LinearAttentionLayer, _LearningKv):  # type: ignore[misc]
    is_compileable = False

    def __init__(self, batch: Batch, layer: int, count: int) -> None:
        _LearningKv.__init__(self, batch, layer)
        LinearAttentionLayer.__init__(self, number_of_states=count)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        LinearAttentionLayer.lazy_initialization(self, **kwargs)

    def get_max_length(self) -> int:
        return -1


class LearningCache(StateCache):
    """Takes one prompt through the model, and then knows the shapes of what each layer keeps."""

    def __init__(self, batch: Batch, kinds: Mapping[int, Kind], num_layers: int) -> None:
        super().__init__(batch, kinds, num_layers)
        self._kinds = kinds

    @staticmethod
    def _layer(batch: Batch, index: int, kind: Kind | None) -> Any:
        if kind is None or not (kind.kv or kind.recurrent):
            return DummyLayer()
        if kind.kv and kind.recurrent:
            return _LearningHybrid(batch, index, kind.recurrent)
        return LinearAttentionLayer(number_of_states=kind.recurrent) if kind.recurrent else _LearningKv(batch, index)

    def specs(self) -> dict[int, LayerSpec]:
        """By layer, what a session keeps there."""
        return {index: self._spec(self.layers[index], kind) for index, kind in self._kinds.items()}

    def _spec(self, layer: Any, kind: Kind) -> LayerSpec:
        return LayerSpec(
            kv=layer.spec(kind.window) if kind.kv else None,
            recurrent=_recurrent_spec(layer) if kind.recurrent else None,
        )


def _recurrent_spec(layer: Any) -> RecurrentSpec:
    tensors: dict[Key, TensorShape] = {}
    for index in range(layer.number_of_states):
        for kind, group in (("conv", layer.conv_states), ("recurrent", layer.recurrent_states)):
            tensor = group[index]
            if tensor is not None:
                key: Key = ("conv", index) if kind == "conv" else ("recurrent", index)
                tensors[key] = TensorShape(tuple(tensor.shape[1:]), tensor.dtype)
    return RecurrentSpec(tensors)
