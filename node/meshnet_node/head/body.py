"""Request bodies: bytes limited while they are read, then parsed by one strict JSON parser.

One parser decides all edge cases: NaN, lone surrogates, numbers without bound, nesting without end, bytes that are not
UTF-8. The content type is not looked at (curl's default is form-encoded). What was sent is never repeated in an error.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from meshnet_node.errors import ApiError
from meshnet_node.head.disconnect import ClientGone

CHUNK_SECONDS = 30.0
DISCARD_SECONDS = 5.0
DISCARD_TIMES = 8

M = TypeVar("M", bound=BaseModel)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises ClientGone, ApiError 413 beyond `limit` bytes and 408 when nothing more comes in time."""
    chunks: list[bytes] = []
    size = 0
    stream = request.stream()
    try:
        while True:
            async with asyncio.timeout(CHUNK_SECONDS):
                chunk = await anext(stream, None)
            if chunk is None:
                return b"".join(chunks)
            size += len(chunk)
            if size > limit:
                break
            chunks.append(chunk)
        chunks.clear()
        await _discard(stream, limit * DISCARD_TIMES)
    except ClientDisconnect:
        raise ClientGone from None
    except TimeoutError:
        raise ApiError("the request's body did not arrive in time", status=408) from None
    raise ApiError(f"the request's body is larger than {limit} bytes", status=413, code="request_too_large")


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`. Raises ApiError 400."""
    try:
        value = from_json(raw, allow_inf_nan=False, cache_strings=False)
    except ValueError as error:
        raise ApiError(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError("the body must be a JSON object")
    return value


def validate(model: type[M], value: dict[str, Any]) -> M:
    """`value` as a request of that kind. Raises ApiError 400 that names the first wrong field."""
    try:
        return model.model_validate(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    reason = first["msg"].removeprefix("Value error, ")
    param = str(first["loc"][0]) if first["loc"] else None
    if param in model.model_fields and len(first["loc"]) > 1 and (wanted := model.model_fields[param].description):
        where, reason = param, f"must be {wanted}"  # the parser speaks of one type of several
    raise ApiError(f"{where}: {reason}" if where else reason, param=param)


async def _discard(stream: Any, limit: int) -> None:
    """Read on for a while without keeping anything: a client that still sends would not see the answer."""
    deadline = time.monotonic() + DISCARD_SECONDS
    size = 0
    try:
        async with asyncio.timeout(DISCARD_SECONDS):
            async for chunk in stream:
                size += len(chunk)
                if size > limit or time.monotonic() > deadline:
                    return
    except TimeoutError:
        return
