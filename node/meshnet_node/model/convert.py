"""A GGUF file as an ordinary model folder: float32 safetensors, config, generation defaults, tokenizer, chat template.

Owns the form of the converted folder and that it appears whole or not at all (temporary folder beside it, then a
rename), also when several processes of one mesh ask at once (a lock file beside it). Must not know where the GGUF file
came from or which layers somebody wants: the folder holds the whole model.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from meshnet_node.errors import WeightsError

MARK = "meshnet.json"
FORM = 1  # grows when the folder's content changes for the same source
GGUF_MAGIC = b"GGUF"


def is_gguf(path: Path) -> bool:
    """Whether a file is named like, or begins like, a GGUF file."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(4) == GGUF_MAGIC


def convert_gguf(source: Path, target: Path) -> Path:
    """Write the model of the GGUF file `source` into the folder `target`, unless it is there already; returns `target`.

    Raises WeightsError where the file is damaged or of a kind that transformers can't read, or where `target` holds
    something else.
    """
    if _is_current(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / f".{target.name}.lock"):
        if _is_current(target):
            return target
        if target.exists() and not (target / MARK).is_file() and any(target.iterdir()):
            raise WeightsError(f"{target} exists and is not a folder that was converted from a GGUF file")
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
            made = Path(scratch) / "model"
            _write(source, made)
            if target.exists():
                shutil.rmtree(target)
            made.rename(target)
    return target


def _is_current(target: Path) -> bool:
    try:
        return bool(json.loads((target / MARK).read_bytes())["form"] == FORM)
    except (OSError, ValueError, KeyError):
        return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(source: Path, made: Path) -> None:
    try:
        model = _read_model(source)
        model.save_pretrained(made)
        AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(made)
    except (ValueError, KeyError, IndexError, OSError, RuntimeError, struct.error, NotImplementedError) as error:
        raise WeightsError(f"{source} can't be read as a GGUF model: {error}") from error
    for file in made.iterdir():
        file.chmod(0o644)  # the writer of safetensors files makes them readable by their owner only
    (made / MARK).write_text(json.dumps({"form": FORM, "source": source.name}))


def _read_model(source: Path) -> Any:
    """The whole model in float32, from dequantised tensors. Works without the `accelerate` package, unlike
    from_pretrained, because the model is built without memory and takes the tensors over."""
    config = AutoConfig.from_pretrained(str(source.parent), gguf_file=source.name)
    config.dtype = torch.float32
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(str(source), return_tensors=True, model_to_load=model, torch_dtype=torch.float32)
    model.load_state_dict(tensors["tensors"], assign=True, strict=False)
    model.tie_weights()
    empty = sorted(name for name, tensor in model.state_dict().items() if tensor.is_meta)
    if empty:
        raise ValueError(f"it lacks {len(empty)} tensors, {empty[0]} first")
    if model.generation_config is None:
        model.generation_config = GenerationConfig.from_model_config(config)
    return model
