"""Linear layers in oneDNN's own weight layout: faster on a CPU, and the same bits for a row in any batch of rows.

Measured on two kinds of CPU: about twice as fast for all sizes with AVX-512. With AVX2 alone a call costs some 20 us
more than it saves for small weights and single rows, and a quarter less for eight rows: only large weights are packed
there.

A layer is packed as soon as its weight was read, and the weight is dropped: packing all at the end would hold the
range twice. A weight is left as it is where packing it would raise the peak, where something else still needs it (an
embedding that is also the head), or where the CPU or the dtype can't do it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

ROWS_HINT = 32  # batch size that the layout is chosen for; a hint above 1 keeps single rows equal to batched ones
PEAK = 1.05
SMALL = 2 * 1024 * 1024  # bytes of a weight below which packing pays with AVX-512 only
DTYPES = (torch.float32, torch.bfloat16)


class PackedLinear(nn.Module):
    """Takes the place of an nn.Linear with that weight. Its bias is found where the linear's was."""

    def __init__(self, linear: nn.Linear, weight: torch.Tensor) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = _pack(weight)
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] to [..., out_features]."""
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out


class Packer:
    """Packs the linear layers of a model while it is loaded. total: bytes that the range will have."""

    def __init__(self, model: Any, dtype: torch.dtype, device: torch.device, total: int) -> None:
        self._model = model
        self._total = total
        self._kept = set(model.all_tied_weights_keys) | set(model.all_tied_weights_keys.values())
        self._able = device.type == "cpu" and _is_able(dtype)
        self._least = 0 if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else SMALL

    def wants(self, name: str, tensor: torch.Tensor, done: int) -> bool:
        """Whether the tensor of that name is to be packed, when `done` bytes are there including its own."""
        owner_name, _, leaf = name.rpartition(".")
        if not self._able or leaf != "weight" or name in self._kept or tensor.dtype not in DTYPES:
            return False
        # Subclasses may do more than a linear layer does.
        return type(self._model.get_submodule(owner_name)) is nn.Linear and self._fits(tensor.nbytes, done)

    def pack(self, name: str, weight: torch.Tensor) -> None:
        """Put the packed layer in the place of the one whose weight this is."""
        owner_name = name.rpartition(".")[0]
        replace(self._model, owner_name, PackedLinear(self._model.get_submodule(owner_name), weight))

    def head(self, embedding: nn.Module, first: bool) -> None:
        """Pack a head that is tied to an embedding which nothing else uses here, and drop the embedding."""
        head = self._model.get_output_embeddings()
        if first or not self._able or type(head) is not nn.Linear or head.weight is not embedding.weight:
            return
        if self._fits(head.weight.nbytes, head.weight.nbytes):
            name = next(name for name, module in self._model.named_modules() if module is head)
            replace(self._model, name, PackedLinear(head, head.weight.data))
            embedding.weight = nn.Parameter(head.weight.to("meta"), requires_grad=False)

    def _fits(self, size: int, done: int) -> bool:
        return size >= self._least and done + size <= PEAK * self._total


def replace(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put `module` where the model has the one called `name`."""
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)


def _is_able(dtype: torch.dtype) -> bool:
    if dtype not in DTYPES or not torch._C._has_mkldnn:
        return False
    try:
        _pack(torch.zeros((16, 16), dtype=dtype))
    except (RuntimeError, AttributeError, NotImplementedError):
        return False  # this CPU lacks the instructions, or this torch the operator
    return True


def _pack(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS_HINT)
    return packed
