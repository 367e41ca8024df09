"""The headers of POST /v1/forward, read and checked against what this shard is. Pure.

| header (X-Meshnet-...) | needed | means |
|---|---|---|
| Session | unless Cache is none | id, 1 to 128 printable characters |
| Cache | yes | prefill, decode or none |
| Past-Len, Seq-Len | yes | positions before this payload, and in it |
| Start-Layer, End-Layer | no | must be this shard's (Start-Layer may be inside its range) |
| Hop-Index | no | 0 exactly where the payload is token ids |
| Model, Instance | no | must be this shard's (model: as configured, or its hash) |
| Step | no | the same step again gets the same answer |
| Hash | no | 16 hex digits: content before Past-Len |
| Dtype, Shape | no | must be those of the payload |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from meshnet_node.errors import BadFrame, TooLarge, WrongShard
from meshnet_node.shard.check import COUNT_LIMIT, ID_LIMIT
from meshnet_node.wire.codec import ITEM_BYTES
from meshnet_node.wire.content import HASH_BYTES
from meshnet_node.wire.frames import Info

CacheMode = Literal["prefill", "decode", "none"]


@dataclass(frozen=True)
class Call:
    """What a request asks for. body_bytes: how long its body has to be."""

    session: str
    cache: CacheMode
    past_len: int
    n: int
    start_layer: int
    step: int | None
    content: bytes | None
    body_bytes: int


def parse_call(headers: Mapping[str, str], info: Info) -> Call:
    """Raises BadFrame (which header, why), TooLarge, or WrongShard."""
    reader = _Headers(headers)
    _check_place(reader, info)
    cache = reader.text("Cache")
    if cache not in ("prefill", "decode", "none"):
        raise BadFrame("X-Meshnet-Cache: prefill, decode or none")
    session = headers.get("x-meshnet-session", "")
    if cache != "none" and not (0 < len(session) <= ID_LIMIT and session.isascii() and session.isprintable()):
        raise BadFrame(f"X-Meshnet-Session: 1 to {ID_LIMIT} printable characters")
    past_len, n = reader.number("Past-Len"), reader.number("Seq-Len")
    if n < 1:
        raise BadFrame("X-Meshnet-Seq-Len: at least 1")
    if past_len + n > info.max_context:
        raise TooLarge(f"positions {past_len} to {past_len + n} of at most {info.max_context}")
    start_layer = reader.optional("Start-Layer", info.start_layer)
    _check_payload(reader, info, n, start_layer)
    schema = info.schema[0]
    size = 4 * n if start_layer == 0 else n * info.hidden_size * ITEM_BYTES[schema.dtype]
    if size > info.max_message_bytes:
        raise TooLarge(f"a body of {size} bytes, at most {info.max_message_bytes} are taken")
    return Call(
        session=session,
        cache=cast(CacheMode, cache),
        past_len=past_len,
        n=n,
        start_layer=start_layer,
        step=reader.number("Step") if reader.has("Step") else None,
        content=_content(reader),
        body_bytes=size,
    )


def _check_place(reader: _Headers, info: Info) -> None:
    """Whoever asks for another shard is told so, whatever else is wrong."""
    if reader.has("Instance") and reader.text("Instance") != info.instance:
        raise WrongShard(f"this is instance {info.instance}")
    if reader.has("Model") and reader.text("Model") not in (info.model, info.model_hash):
        raise WrongShard("another model is served here")
    start, end = reader.optional("Start-Layer", info.start_layer), reader.optional("End-Layer", info.end_layer)
    if end != info.end_layer or not info.start_layer <= start <= info.end_layer:
        raise WrongShard(f"layers {info.start_layer} to {info.end_layer} are served here, not {start} to {end}")


def _check_payload(reader: _Headers, info: Info, n: int, start_layer: int) -> None:
    if reader.has("Hop-Index") and (reader.number("Hop-Index") == 0) != (start_layer == 0):
        raise BadFrame("X-Meshnet-Hop-Index: 0 exactly where the layers start at 0")
    wanted = "int32" if start_layer == 0 else info.schema[0].dtype
    if reader.has("Dtype") and reader.text("Dtype") != wanted:
        raise BadFrame(f"X-Meshnet-Dtype: {wanted} is taken here")
    shape = [1, n] if start_layer == 0 else [1, n, info.hidden_size]
    if reader.has("Shape") and reader.text("Shape").strip("[]").replace(" ", "") != ",".join(map(str, shape)):
        raise BadFrame(f"X-Meshnet-Shape: {','.join(map(str, shape))} is needed")


def _content(reader: _Headers) -> bytes | None:
    if not reader.has("Hash"):
        return None
    try:
        content = bytes.fromhex(reader.text("Hash"))
    except ValueError:
        content = b""
    if len(content) != HASH_BYTES:
        raise BadFrame(f"X-Meshnet-Hash: {2 * HASH_BYTES} hex digits")
    return content


class _Headers:
    """Headers by their short name; lookups ignore case by way of the framework's mapping."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    def has(self, name: str) -> bool:
        return f"x-meshnet-{name.lower()}" in self._headers

    def text(self, name: str) -> str:
        value = self._headers.get(f"x-meshnet-{name.lower()}")
        if value is None:
            raise BadFrame(f"X-Meshnet-{name}: is missing")
        return value.strip()

    def number(self, name: str) -> int:
        text = self.text(name)
        if not (text.isascii() and text.isdigit() and len(text) < 20) or int(text) >= COUNT_LIMIT:
            raise BadFrame(f"X-Meshnet-{name}: {text[:20]!r} is not a count")
        return int(text)

    def optional(self, name: str, default: int) -> int:
        return self.number(name) if self.has(name) else default
