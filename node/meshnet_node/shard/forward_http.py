"""POST /v1/forward: one hop of one session over plain HTTP, readable with curl.

Headers say what a row says on a link; the body is the raw little-endian tensor (int32 token ids for hop 0, else the
boundary's [1, n, hidden]). The answer is the output tensor, or the token sampled by the last hop, always greedily. A
session is created by a prefill at past_len 0, grows as it needs, and is parked between its requests.

A hop after the first gets no token ids here, so it can't compute a content hash: it holds a client to the hashes that
the client itself gave for the same position before.
"""

from __future__ import annotations

import asyncio
import hmac
from array import array
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from meshnet_node.cache.sessions import Session
from meshnet_node.errors import BadFrame, CacheMiss, Unauthorized, wire_error
from meshnet_node.shard.call import Call, parse_call
from meshnet_node.shard.check import check_row
from meshnet_node.shard.items import Item, Reply
from meshnet_node.shard.process import Loaded, Shard
from meshnet_node.wire.content import EMPTY
from meshnet_node.wire.frames import Close, Row, TensorSpec

FIRST_RESERVE = 512


async def forward(shard: Shard, headers: Mapping[str, str], body: AsyncIterator[bytes]) -> tuple[bytes, dict[str, str]]:
    """Body and headers of the answer. Raises WireError, whose status and code are the contract's."""
    authorise(shard, headers)
    loaded = shard.loaded
    call = parse_call(headers, loaded.info)
    raw = await _read(body, call.body_bytes)
    reply = await (_run_alone(loaded, call, raw) if call.cache == "none" else _run_cached(loaded, call, raw))
    error = reply.result.error
    if error is not None:
        raise wire_error(error.code, error.message, error.have)
    return _body(reply), _headers(reply, call, loaded)


def describe(shard: Shard, headers: Mapping[str, str]) -> bytes:
    """The body of GET /v1/info. Raises Unauthorized or Loading."""
    authorise(shard, headers)
    return msgspec.json.encode(_whole(shard.loaded.info))


async def close_session(shard: Shard, headers: Mapping[str, str], session: str) -> None:
    """DELETE /v1/sessions/{id}: end it, whoever it belongs to; unknown ids are fine. Raises Unauthorized or Loading."""
    authorise(shard, headers)
    engine = shard.loaded.engine
    entry = engine.store.find(session)
    await engine.desk.close(Close(session, 0 if entry is None else entry.attempt), None)


def authorise(shard: Shard, headers: Mapping[str, str]) -> None:
    """`Authorization: Bearer <shard token>`, where a token is configured. Raises Unauthorized."""
    tokens = shard.tokens
    if not tokens.configured:
        return
    kind, _, given = headers.get("authorization", "").partition(" ")
    secret = given.strip().encode()
    if kind.lower() == "bearer" and (
        _known(secret, tokens.tokens) or (tokens.reload() and _known(secret, tokens.tokens))
    ):
        return
    raise Unauthorized("Authorization: a bearer token that this shard accepts is needed")


def _known(secret: bytes, tokens: tuple[bytes, ...]) -> bool:
    return any([hmac.compare_digest(secret, token) for token in tokens])


async def _read(body: AsyncIterator[bytes], size: int) -> bytes:
    """Exactly `size` bytes. Raises BadFrame as soon as there are more, or at the end where there are fewer."""
    parts, length = [], 0
    async for part in body:
        length += len(part)
        if length > size:
            raise BadFrame(f"body: more than the {size} bytes that these positions need")
        parts.append(part)
    if length != size:
        raise BadFrame(f"body: {length} bytes, these positions need {size}")
    return b"".join(parts)


class _Answer:
    """A Sink for one row."""

    alive = True

    def __init__(self) -> None:
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def deliver(self, replies: list[Reply]) -> None:
        if not self.reply.done():
            self.reply.set_result(replies[0])


async def _run_alone(loaded: Loaded, call: Call, raw: bytes) -> Reply:
    return await _submit(loaded, _item(loaded, call, raw, call.session or "http", 0, 0, EMPTY))


async def _run_cached(loaded: Loaded, call: Call, raw: bytes) -> Reply:
    """Run on a session that is entered before and left after, whatever happens between."""
    end = call.past_len + call.n
    reserve = min(loaded.info.max_context, max(FIRST_RESERVE, 1 << (end - 1).bit_length()))
    item = _item(loaded, call, raw, call.session, 0, 0, EMPTY)
    entry = await loaded.engine.desk.enter_plain(
        call.session,
        creates=call.cache == "prefill" and call.past_len == 0,
        start_layer=call.start_layer,
        reserve=reserve,
    )
    try:
        step = entry.step + 1 if call.step is None else call.step
        item = _item(loaded, call, raw, call.session, entry.attempt, step, _content(entry, call))
        reply = await _submit(loaded, item)
    finally:
        loaded.engine.desk.leave_plain(entry)
    if reply.result.error is None and call.content is not None and call.start_layer > 0:
        entry.declared[call.past_len] = call.content
    return reply


async def _submit(loaded: Loaded, item: Item) -> Reply:
    answer = _Answer()
    item.sink = answer
    loaded.engine.submit([item])
    return await asyncio.shield(answer.reply)


def _content(entry: Session[Any], call: Call) -> bytes:
    """The hash to hold the row to: the client's where content is known here, else what the session has anyway."""
    known = entry.tape.hash_at(call.past_len) if call.past_len <= len(entry.tape) else EMPTY
    if call.content is None:
        return known
    if call.start_layer == 0:
        return call.content
    for position in [position for position in entry.declared if position > call.past_len]:
        del entry.declared[position]
    if entry.declared.get(call.past_len, call.content) != call.content:
        raise CacheMiss(f"other content before position {call.past_len}", have=0)
    return known


def _item(loaded: Loaded, call: Call, raw: bytes, session: str, attempt: int, step: int, content: bytes) -> Item:
    """The call as a checked row. Raises BadFrame or TooLarge."""
    later = call.start_layer > 0
    schema = loaded.info.schema[0]
    row = Row(
        session=session,
        attempt=attempt,
        step=step,
        past_len=call.past_len,
        n=call.n,
        hash=content,
        tokens=bytes(4 * call.n) if later else raw,
        want="last",
        mode="none" if call.cache == "none" else "cached",
        tensors=[TensorSpec(schema.name, schema.dtype, [1, call.n, loaded.info.hidden_size])] if later else [],
    )
    tokens, _ = check_row(row, loaded.facts)
    hidden = memoryview(raw) if later else None
    return Item(row, "", _Answer(), tokens, hidden, start_layer=call.start_layer)


def _body(reply: Reply) -> bytes:
    token = reply.result.token
    if token is not None:
        return array("i", [token.id]).tobytes()
    return b"".join(reply.tensors)


def _headers(reply: Reply, call: Call, loaded: Loaded) -> dict[str, str]:
    result = reply.result
    if result.token is not None:
        dtype, shape = "int32", [1, 1]
    else:
        dtype, shape = result.tensors[0].dtype, result.tensors[0].shape
    return {
        "X-Meshnet-Session": call.session,
        "X-Meshnet-Instance": loaded.info.instance,
        "X-Meshnet-Start-Layer": str(call.start_layer),
        "X-Meshnet-End-Layer": str(loaded.info.end_layer),
        "X-Meshnet-Past-Len": str(call.past_len),
        "X-Meshnet-Seq-Len": str(call.n),
        "X-Meshnet-Step": str(result.step),
        "X-Meshnet-Dtype": dtype,
        "X-Meshnet-Shape": ",".join(map(str, shape)),
    }


def _whole(value: object) -> object:
    """A Struct with its defaults, which the wire leaves out and a reader of JSON wants to see."""
    if isinstance(value, msgspec.Struct):
        return {name: _whole(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return value
