"""Tensors in safetensors files: headers, checks, and reading straight into a tensor's own memory.

Files are read with pread and never mapped: pages of a mapped checkpoint count as memory of the process, and a shard's
peak must stay near the size of its own range. Reading goes in pieces, so that a conversion (dtype or device) needs one
piece of extra memory, not one tensor.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from meshnet_node.errors import WeightsError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
PIECE = 8 * 1024 * 1024
HEADER_LIMIT = 100 * 1024 * 1024
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file. `offset` is from the beginning of the file, in bytes."""

    name: str
    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return prod(self.shape) * self.dtype.itemsize


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file, by name. Raises WeightsError where the file is not whole."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(_LENGTH.size)
            length = _LENGTH.unpack(prefix)[0] if len(prefix) == _LENGTH.size else size
            if length > min(HEADER_LIMIT, size - _LENGTH.size):
                raise WeightsError(f"{file} is not a safetensors file, or it is cut off within its header")
            header = json.loads(stream.read(length))
        start = _LENGTH.size + length
        return {
            name: _stored(file, name, entry, start, size) for name, entry in header.items() if name != "__metadata__"
        }
    except OSError as error:
        raise WeightsError(f"{file} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"the header of {file} is damaged: {error}") from error


def _stored(file: Path, name: str, entry: Mapping[str, Any], start: int, size: int) -> StoredTensor:
    dtype = DTYPES.get(entry["dtype"])
    if dtype is None:
        raise WeightsError(f"tensor {name} of {file} has the dtype {entry['dtype']}, which is not served")
    begin, end = entry["data_offsets"]
    found = StoredTensor(name, file, dtype, tuple(int(extent) for extent in entry["shape"]), start + begin)
    if end - begin != found.nbytes:
        raise WeightsError(f"tensor {name} of {file} has {end - begin} bytes, its shape needs {found.nbytes}")
    if start + end > size:
        raise WeightsError(f"{file} is cut off: tensor {name} ends at byte {start + end}, the file at {size}")
    return found


def scratch(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the CPU for passing use. Its memory goes back to the system with it: the allocator would keep the
    holes that freed weights leave between kept ones, up to half of the range again."""
    count = prod(shape)
    if count == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    memory = mmap.mmap(-1, count * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(tuple(shape))


def copy_into(source: StoredTensor, target: torch.Tensor) -> None:
    """Fill `target` (same number of elements, contiguous, any dtype and device) from the file."""
    flat = target.view(-1)
    if flat.numel() == 0:
        return
    descriptor = os.open(source.file, os.O_RDONLY)
    try:
        if flat.dtype == source.dtype and flat.device.type == "cpu":
            _read(descriptor, source, flat, source.offset)
            return
        step = max(1, PIECE // source.dtype.itemsize)
        buffer = scratch((min(step, flat.numel()),), source.dtype)
        for begin in range(0, flat.numel(), step):
            piece = buffer[: min(step, flat.numel() - begin)]
            _read(descriptor, source, piece, source.offset + begin * source.dtype.itemsize)
            flat[begin : begin + piece.numel()].copy_(piece)
    finally:
        os.close(descriptor)


def _read(descriptor: int, source: StoredTensor, into: torch.Tensor, offset: int) -> None:
    array: Any = into.view(torch.uint8).numpy()
    memory = memoryview(array)
    done = 0
    while done < len(memory):
        count = os.preadv(descriptor, [memory[done:]], offset + done)
        if count == 0:
            raise WeightsError(f"{source.file} was cut off while tensor {source.name} was read")
        done += count
