"""A causal language model of which only the layers [start, end] exist, run from any of them on.

Nothing here depends on the family. Layers keep their own index and the whole model's config; what is cut is the list
of layers that the base walks, and the per-layer lists of the config that it looks at meanwhile. Two hooks do the
rest: the received hidden states go in before the first layer, whatever the base does with its inputs (some scale
them), and a range that is not the last gives its last layer's output, whatever follows there. The last range goes
through the model's own head, so that its scaling or capping of logits is the model's own.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from meshnet_node.errors import FamilyError, RangeError
from meshnet_node.model.ranges import LayerRange, Layout


def base_of(model: Any) -> Any:
    """The module that walks the layers. Raises FamilyError where the model has another build."""
    base = getattr(model, model.base_model_prefix, None)
    if not isinstance(getattr(base, "layers", None), nn.ModuleList):
        raise FamilyError(f"{type(model).__name__} keeps its layers where they are not looked for")
    return base


def layout_of(model: Any) -> Layout:
    """Prefixes of the model's tensor names."""
    base = base_of(model)
    names = {id(module): name for name, module in model.named_modules()}
    return Layout(
        layers=f"{names[id(base.layers)]}.",
        embedding=f"{names[id(model.get_input_embeddings())]}.",
        tied=dict(model.all_tied_weights_keys),
    )


def drop_layers(model: Any, layers: LayerRange) -> None:
    """Put nothing in the place of the layers outside the range, so that no memory is ever given to them."""
    base = base_of(model)
    for index in range(layers.num_layers):
        if index not in layers:
            base.layers[index] = nn.Identity()


class CutModel:
    """The loaded range. `run` is the whole of a forward pass without state handling, which comes with `cache`."""

    def __init__(self, model: Any, layers: LayerRange) -> None:
        self.model = model
        self.layers = layers
        self.base = base_of(model)
        self.config = model.config
        self._all = list(self.base.layers)
        self._own = self.base.config
        self._cuts: dict[int, tuple[nn.ModuleList, Any]] = {}
        self._inject: torch.Tensor | None = None
        self._start = layers.start
        self._out: torch.Tensor | None = None
        parameters = inspect.signature(type(self.base).forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        if not layers.is_last:
            self._all[layers.end].register_forward_hook(self._take_output)
            self._drop_tail()

    def run(
        self,
        start: int,
        tokens: torch.Tensor,
        hidden: torch.Tensor | None,
        positions: torch.Tensor,
        cache: Any,
        keep: int,
    ) -> torch.Tensor:
        """tokens, positions [B, n] int64; hidden [B, n, hidden], None where start is 0. cache None = no state.

        Returns the last layer's output [B, n, hidden]; for the last range the logits [B, keep, vocabulary] of the
        newest `keep` positions (keep 0: an empty tensor, and the head is not computed).
        """
        self._inject = hidden
        inputs = {"input_ids": tokens} if start == 0 else {"inputs_embeds": hidden}
        inputs |= {"position_ids": positions, "use_cache": cache is not None, self._cache_name: cache}
        with self._cut(start):
            if not self.layers.is_last:
                self.base(**inputs)
                out, self._out = self._out, None
                if out is None:
                    raise RuntimeError("the last layer of the range was not run")
                return out
            if keep == 0:
                self.base(**inputs)
                return torch.empty(0)
            logits: torch.Tensor = self.model(**inputs, logits_to_keep=keep).logits
            return logits

    @contextmanager
    def _cut(self, start: int) -> Iterator[None]:
        """The base sees the layers from `start` on only."""
        if start not in self._cuts:
            self._cuts[start] = self._make_cut(start)
        self._start = start
        self.base.layers, self.base.config = self._cuts[start]
        try:
            yield
        finally:
            self._inject = None

    def _make_cut(self, start: int) -> tuple[nn.ModuleList, Any]:
        if start not in self.layers:
            raise RangeError(f"layer {start} is not one of {self.layers.start} to {self.layers.end}")
        if start > 0:
            self._all[start].register_forward_pre_hook(self._put_input(start), with_kwargs=True)
        chosen = slice(start, self.layers.end + 1)
        return nn.ModuleList(self._all[chosen]), _cut_config(self._own, chosen, self.layers.num_layers)

    def _put_input(self, layer: int) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            if self._start != layer:
                return args, kwargs
            if args:
                return (self._inject, *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": self._inject}

        return hook

    def _take_output(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        self._out = output[0] if isinstance(output, tuple) else output

    def _drop_tail(self) -> None:
        """What the base does after its layers has no weights here, and nothing to do."""
        for name, child in list(self.base.named_children()):
            if child is not self.base.layers and child is not self.model.get_input_embeddings() and _is_empty(child):
                setattr(self.base, name, nn.Identity())


def _is_empty(module: nn.Module) -> bool:
    return any(tensor.is_meta for tensor in module.parameters())


def _cut_config(config: Any, chosen: slice, num_layers: int) -> Any:
    """The config with its lists of one entry a layer cut to the chosen layers."""
    cut = copy.deepcopy(config)
    for name, value in config.to_dict().items():
        if isinstance(value, list | tuple) and len(value) == num_layers and name != "architectures":
            setattr(cut, name, list(value[chosen]))
    cut.num_hidden_layers = len(range(num_layers)[chosen])
    cut._attn_implementation = config._attn_implementation
    return cut
