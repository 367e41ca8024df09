"""Load the tensors of a range, and only those, straight in the wanted dtype onto the device.

The model is built without memory (meta device) and gets each tensor as it is read: peak memory is the range's own bytes
and one piece of a file. Large tensors come first, while little else is there. What checkpoints don't hold (rotary
frequencies, embedding scales) is initialised by the model's own code afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from meshnet_node.errors import DtypeError, ModelError, WeightsError
from meshnet_node.model.cut import CutModel, drop_layers, layout_of
from meshnet_node.model.families import boundaries, check_family
from meshnet_node.model.packed import Packer
from meshnet_node.model.pieces import Piece, place, plan_pieces
from meshnet_node.model.ranges import layer_range, wanted_names
from meshnet_node.model.source import ModelFiles
from meshnet_node.model.tensorfiles import StoredTensor, copy_into, scratch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
Progress = Callable[[int, int], None]


def load_range(
    files: ModelFiles,
    start: int,
    end: int | None,
    *,
    dtype: str,
    device: torch.device,
    trust_remote_code: bool = False,
    progress: Progress = lambda done, total: None,
) -> tuple[CutModel, int]:
    """The range of the model, and the bytes of its weights.

    Raises FamilyError, RangeError, DtypeError or WeightsError, each with a sentence that says what is wrong.
    """
    check_family(files.config)
    config = _config(files.folder, trust_remote_code)
    layers = layer_range(start, end, config.num_hidden_layers, boundaries(config.num_hidden_layers))
    wanted = resolve_dtype(dtype, files)
    check_dtype(wanted, device)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=wanted, trust_remote_code=trust_remote_code)
    model.eval()
    layout = layout_of(model)
    drop_layers(model, layers)
    own = model.state_dict()
    targets = {name: own[name] for name in wanted_names(own, layout, layers)}
    _set_dtypes(model, targets, wanted)
    pieces = plan_pieces(model, files.names, targets)
    stored = files.locate(piece.name for group in pieces.values() for piece in group)
    total = sum(target.nbytes for target in targets.values())
    embedding = model.get_input_embeddings()
    packer = Packer(model, wanted, device, total)
    done = 0
    progress(0, total)
    for name in sorted(targets, key=lambda name: -targets[name].nbytes):
        like = targets[name]
        done += like.nbytes
        if packer.wants(name, like, done):
            packer.pack(name, _read(pieces[name], stored, scratch(like.shape, like.dtype)))
        else:
            _put(model, name, _read(pieces[name], stored, torch.empty_like(like, device=device)))
        if name in layout.tied.values():
            model.tie_weights()
            packer.head(embedding, layers.is_first)
        progress(done, total)
    _initialise_buffers(model, device)
    return CutModel(model, layers), total


def resolve_dtype(dtype: str, files: ModelFiles) -> torch.dtype:
    """The dtype of that name; auto is what the checkpoint says, in its config or by its first tensor."""
    if dtype != "auto":
        return DTYPES[dtype]
    named = files.config.get("dtype") or files.config.get("torch_dtype")
    if named is None:
        first = files.names[0]
        named = str(files.locate([first])[first].dtype).removeprefix("torch.")
    if named not in DTYPES:
        raise DtypeError(f"the checkpoint is in {named}; served are {', '.join(DTYPES)}")
    return DTYPES[named]


def check_dtype(dtype: torch.dtype, device: torch.device) -> None:
    """Raise DtypeError unless the device computes in that dtype."""
    name = str(dtype).removeprefix("torch.")
    try:
        sample = torch.ones((1, 1, 2, 8), dtype=dtype, device=device)
        attended = nn.functional.scaled_dot_product_attention(sample, sample, sample)
        result = nn.functional.silu(nn.functional.linear(attended[0, 0], sample[0, 0])).sum().item()
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        raise DtypeError(f"the device {device} can't compute in {name}: {error}") from error
    if not result > 0:
        raise DtypeError(f"the device {device} computes wrongly in {name}")


def _config(folder: Path, trust_remote_code: bool) -> Any:
    try:
        return AutoConfig.from_pretrained(str(folder), trust_remote_code=trust_remote_code)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ModelError(f"the config of {folder} is not understood: {error}") from error


def _set_dtypes(model: Any, targets: dict[str, torch.Tensor], wanted: torch.dtype) -> None:
    """Some families keep certain tensors in float32; others follow what the model was built with."""
    kept = model._get_dtype_plan(wanted)
    for name, tensor in targets.items():
        for pattern, dtype in kept.items():
            if re.search(rf"(^|\.){re.escape(pattern)}(\.|$)", name):
                targets[name] = tensor.to(dtype)


def _read(pieces: list[Piece], stored: dict[str, StoredTensor], target: torch.Tensor) -> torch.Tensor:
    """`target`, filled."""
    counts: dict[int, int] = {}
    for piece in pieces:
        source = piece.merge.source if piece.merge else 0
        counts[source] = counts.get(source, 0) + 1
    expected = max((piece.merge.sources for piece in pieces if piece.merge), default=1)
    if len(counts) != expected or len(set(counts.values())) != 1:
        raise WeightsError(f"the checkpoint lacks some of the parts of the tensor {pieces[0].target}")
    for piece in pieces:
        source = piece.merge.source if piece.merge else 0
        copy_into(stored[piece.name], place(piece, stored[piece.name], target, counts[source]))
    return target


def _put(model: nn.Module, name: str, tensor: torch.Tensor) -> None:
    owner_name, _, leaf = name.rpartition(".")
    owner = model.get_submodule(owner_name)
    if leaf in owner._parameters:
        owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
    else:
        owner._buffers[leaf] = tensor


def _initialise_buffers(model: Any, device: torch.device) -> None:
    """Give the buffers that no checkpoint holds their memory and their values, by the model's own initialisation; the
    mark that transformers looks for keeps it from touching what was read."""
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_meta:
            tensor._is_hf_initialized = True
    for module in model.modules():
        empty = {name: buffer for name, buffer in module._buffers.items() if buffer is not None and buffer.is_meta}
        if not empty:
            continue
        for name, buffer in empty.items():
            module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
        model._init_weights(module)
