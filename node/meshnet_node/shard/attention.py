"""Attention of a batch whose rows are sessions: each row sees exactly the keys of its own session.

Nothing is padded and nothing is masked in a decode batch: a row is computed by the family's own attention function on
a view of its session's keys and values, so that its result does not depend on who else is in the batch. transformers
looks attention functions up by name in a table of the process; the two names that are put there find the batch
through the attention module they are called with, so that several runners in one process never meet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from meshnet_node.cache.states import SessionState

Views = list[tuple[torch.Tensor, torch.Tensor]]
Inner = Callable[..., tuple[torch.Tensor, Any]]
ATTRIBUTE = "_meshnet_batch"
PREFIX = "meshnet_"
SPECIAL = ("softcap", "position_bias", "is_causal")  # arguments that the plain fused attention does not know


@dataclass
class Batch:
    """What the forward pass that runs now is about. One object per runner, filled anew for each pass.

    states: one per row, empty where nothing is stored. windows: by layer, how many positions a position sees (None =
    all). views: by layer, each row's keys and values, left by the cache and taken by the attention. expanding: layers
    that compute keys from what they store (latents), and so need all of it back from the cache. returned: what the
    cache gave back while shapes are being learnt.
    """

    windows: dict[int, int | None]
    states: list[SessionState] = field(default_factory=list)
    views: dict[int, Views] = field(default_factory=dict)
    expanding: set[int] = field(default_factory=set)
    returned: dict[int, torch.Tensor] = field(default_factory=dict)
    masks: dict[Any, torch.Tensor] = field(default_factory=dict)

    def begin(self, states: list[SessionState]) -> None:
        """A new pass over the rows of these sessions."""
        self.states = states
        self.views.clear()
        self.masks.clear()


def bind(model: Any, batch: Batch) -> bool:
    """Make a model's attention go through `batch`. Returns whether it is of the fused kind (sdpa)."""
    fused: bool = model.config._attn_implementation == "sdpa"
    name = PREFIX + ("sdpa" if fused else "eager")
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            config._attn_implementation = name
        if isinstance(getattr(module, "layer_idx", None), int):
            setattr(module, ATTRIBUTE, batch)
    return fused


def attend(
    inner: Inner, fused: bool, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """query [B, heads, n, dim]; key and value as the layer has them. Returns [B, n, heads, dim] like any attention."""
    batch: Batch = getattr(module, ATTRIBUTE)
    layer: int = module.layer_idx
    if layer in batch.returned and batch.returned.pop(layer) is not key:
        batch.expanding.add(layer)
    views = batch.views.pop(layer, None)
    if views is not None and layer in batch.expanding:
        lengths = [row[0].shape[2] for row in views]
        views = list(zip(torch.split(key, lengths, 2), torch.split(value, lengths, 2), strict=True))
    if views is None or query.shape[2] > 1:
        key, value = (key, value) if views is None else views[0]
        mask = _mask(batch, layer, query, key, fused)
        return inner(module, query, key, value, mask, **kwargs)[0], None
    if fused and not any(kwargs.get(name) is not None for name in SPECIAL):
        return _decode_fused(query, views, kwargs.get("scaling")), None
    rows = [inner(module, query[i : i + 1], k, v, None, **kwargs)[0] for i, (k, v) in enumerate(views)]
    return torch.cat(rows), None


def _decode_fused(query: torch.Tensor, views: Views, scale: float | None) -> torch.Tensor:
    """The fused attention of single positions, without what transformers' wrapper does anew for each row: the heads
    that share keys are taken as so many positions that see the same, and nothing is masked."""
    batch, heads, _, width = query.shape
    shared = views[0][0].shape[1]
    grouped = query.reshape(batch, shared, heads // shared, width)
    rows = [
        nn.functional.scaled_dot_product_attention(grouped[i : i + 1], k, v, scale=scale)
        for i, (k, v) in enumerate(views)
    ]
    return torch.cat(rows).reshape(batch, 1, heads, -1)


def _mask(batch: Batch, layer: int, query: torch.Tensor, key: torch.Tensor, fused: bool) -> torch.Tensor | None:
    """What a chunk of n positions may see of k keys, the last n of which are its own: [1, 1, n, k] bool for the fused
    attention, additive for the other. None where the attention function needs none."""
    n, k = query.shape[2], key.shape[2]
    window = batch.windows.get(layer)
    if window is not None and window >= k:
        window = None
    if n == 1 or (fused and n == k and window is None):
        return None
    found = batch.masks.get((n, k, window))
    if found is None:
        own = torch.arange(k - n, k, device=query.device)[:, None]
        other = torch.arange(k, device=query.device)[None, :]
        seen = other <= own
        if window is not None:
            seen &= other > own - window
        found = seen[None, None]
        if not fused:
            lowest = torch.finfo(query.dtype).min
            found = torch.zeros(found.shape, dtype=query.dtype, device=query.device).masked_fill_(~found, lowest)
        batch.masks[n, k, window] = found
    return found


def _fused(module: Any, query: Any, key: Any, value: Any, _: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    return attend(sdpa_attention_forward, True, module, query, key, value, **kwargs)


def _eager(module: Any, query: Any, key: Any, value: Any, _: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    inner = sys.modules[type(module).__module__].eager_attention_forward
    return attend(inner, False, module, query, key, value, **kwargs)


def register() -> None:
    """Put both functions into transformers' table. No mask function goes with them: the model then builds no masks."""
    ALL_ATTENTION_FUNCTIONS.register(PREFIX + "sdpa", _fused)
    ALL_ATTENTION_FUNCTIONS.register(PREFIX + "eager", _eager)


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """Modules that were bound."""
    return [module for module in model.modules() if hasattr(module, ATTRIBUTE)]
