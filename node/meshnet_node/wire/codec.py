"""Frames to bytes and back, with every check that comes before an allocation.

The layout is described in frames.py. Decoding never copies tensor bytes: it returns memoryviews into the message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from math import prod

import msgspec
from typing_extensions import Buffer

from meshnet_node.errors import BadFrame, TooLarge
from meshnet_node.wire.frames import ALIGN, HEADER_LIMIT, MAX_ROWS, Forward, Frame, Result, Row, RowResult, TensorSpec

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4, "int64": 8}
MAX_DIMS = 4
MAX_TENSORS_PER_ROW = 16

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def tensor_bytes(spec: TensorSpec) -> int:
    """Bytes of a tensor of that dtype and shape. Raises BadFrame for an unknown dtype or an impossible shape."""
    item = ITEM_BYTES.get(spec.dtype)
    if item is None:
        raise BadFrame(f"tensor {spec.name!r}: dtype {spec.dtype!r} is not one of {', '.join(ITEM_BYTES)}")
    if len(spec.shape) > MAX_DIMS or any(size < 0 for size in spec.shape):
        raise BadFrame(f"tensor {spec.name!r}: shape {spec.shape} needs 0 to {MAX_DIMS} sizes of at least 0")
    return item * prod(spec.shape)


def encode(frame: Frame, tensors: Iterable[Buffer] = ()) -> bytes:
    """One message. `tensors` are the raw bytes of the rows' tensors, in the order of their specs."""
    header = _encoder.encode(frame)
    parts: list[Buffer] = [_LENGTH.pack(len(header)), header]
    size = _LENGTH.size + len(header)
    for tensor in tensors:
        pad = -size % ALIGN
        parts.append(bytes(pad))
        parts.append(tensor)
        size += pad + memoryview(tensor).nbytes
    return b"".join(parts)


def decode(message: bytes, limit: int) -> tuple[Frame, list[list[memoryview]]]:
    """The frame, and for each row of a Forward or Result the bytes of its tensors.

    `limit` is the most bytes that a message may have here. Raises BadFrame or TooLarge, and nothing else.
    """
    if len(message) > limit:
        raise TooLarge(f"message of {len(message)} bytes, the limit is {limit}")
    if len(message) < _LENGTH.size:
        raise BadFrame(f"message of {len(message)} bytes is shorter than its length field")
    (length,) = _LENGTH.unpack_from(message)
    if length > HEADER_LIMIT or _LENGTH.size + length > len(message):
        raise BadFrame(f"header of {length} bytes does not fit in a message of {len(message)}")
    view = memoryview(message)
    try:
        frame = _decoder.decode(view[_LENGTH.size : _LENGTH.size + length])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"header is not a frame: {error}") from error
    rows: Sequence[Row | RowResult] = frame.rows if isinstance(frame, Forward | Result) else ()
    return frame, _split(rows, view, _LENGTH.size + length)


def _split(rows: Sequence[Row | RowResult], view: memoryview, offset: int) -> list[list[memoryview]]:
    """Each row's tensor bytes; the message must hold exactly what the specs say."""
    if len(rows) > MAX_ROWS:
        raise BadFrame(f"{len(rows)} rows in a frame, at most {MAX_ROWS} are allowed")
    found: list[list[memoryview]] = []
    for row in rows:
        if len(row.tensors) > MAX_TENSORS_PER_ROW:
            raise BadFrame(f"{len(row.tensors)} tensors in a row, at most {MAX_TENSORS_PER_ROW} are allowed")
        buffers: list[memoryview] = []
        for spec in row.tensors:
            offset += -offset % ALIGN
            size = tensor_bytes(spec)
            if offset + size > len(view):
                raise BadFrame(
                    f"tensor {spec.name!r} needs {size} bytes, the message holds {max(0, len(view) - offset)}"
                )
            buffers.append(view[offset : offset + size])
            offset += size
        found.append(buffers)
    if offset != len(view):
        raise BadFrame(f"{len(view) - offset} bytes after the last tensor")
    return found
