"""API keys: who is let in, and changes without a restart."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from meshnet_heads import CHAT, MODEL, Head, Heads, until
from meshnet_serving import raw_request
from openai import AsyncOpenAI, AuthenticationError

from meshnet_node.errors import ConfigError

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


async def guarded(heads: Heads, path: Path, text: str) -> Head:
    await asyncio.to_thread(path.write_text, text)
    return await heads.start(api_keys_file=path)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (bearer("one"), 200),
        (bearer("two"), 200),
        ({"authorization": "bearer one"}, 200),
        (bearer("three"), 401),
        (bearer("on"), 401),
        (bearer(""), 401),
        (bearer("# a comment"), 401),
        ({"authorization": "one"}, 401),
        ({"authorization": "Basic one"}, 401),
        ({"authorization": "Bearer \u00fc"}, 401),
        ({}, 401),
    ],
)
async def test_who_is_let_in(heads: Heads, tmp_path: Path, headers: dict[str, str], status: int) -> None:
    head = await guarded(heads, tmp_path / "keys", "# a comment\none\n\n  two  # of ann\n")
    reply = await head.post(CHAT, BODY, headers)
    assert reply.status == status
    if status == 401:
        assert reply.json()["error"]["code"] == "invalid_api_key"
        assert reply.headers["www-authenticate"] == "Bearer"
        assert not head.backend.requests


async def test_the_real_client_gets_its_own_class_of_error(heads: Heads, tmp_path: Path) -> None:
    head = await guarded(heads, tmp_path / "keys", "one")
    with pytest.raises(AuthenticationError):
        await head.client.models.list()
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{head.port}/v1", api_key="one") as client:
        assert (await client.models.list()).data[0].id == MODEL


async def test_probes_and_metrics_are_open_and_the_rest_is_not(heads: Heads, tmp_path: Path) -> None:
    head = await guarded(heads, tmp_path / "keys", "one")
    for path in ("/health", "/healthz", "/ready", "/readyz", "/metrics"):
        assert (await head.get(path)).status == 200, path
    closed = [("GET", "/v1/models"), ("GET", "/mesh"), ("GET", "/tokenizer_info"), ("POST", "/tokenize")]
    for method, path in [*closed, ("POST", "/detokenize"), ("POST", "/v1/completions"), ("POST", CHAT)]:
        assert (await raw_request(head.port, method, path, b"{")).status == 401, path


async def test_each_key_has_its_own_fingerprint(heads: Heads, tmp_path: Path) -> None:
    head = await guarded(heads, tmp_path / "keys", "one\ntwo")
    for key in ("one", "two", "one"):
        await head.post(CHAT, BODY, bearer(key))
    first, second, third = (request.key for request in head.backend.requests)
    assert first == third != second
    assert "one" not in first


async def test_keys_change_without_a_restart(heads: Heads, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    head = await guarded(heads, path, "old")
    path.write_text("new-key\n")
    assert (await head.post(CHAT, BODY, bearer("old"))).status == 401
    assert (await head.post(CHAT, BODY, bearer("new-key"))).status == 200
    other = tmp_path / "other"
    other.write_text("another\n")
    os.replace(other, path)  # as a mounted secret is exchanged
    assert (await head.post(CHAT, BODY, bearer("another"))).status == 200
    path.unlink()
    assert (await head.post(CHAT, BODY, bearer("another"))).status == 200  # the last keys stay
    path.write_text("")
    assert (await head.post(CHAT, BODY, bearer("another"))).status == 401


async def test_a_file_that_is_not_there_stops_the_start(heads: Heads, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="MESHNET_API_KEYS_FILE"):
        await heads.start(api_keys_file=tmp_path / "absent")


async def test_without_a_file_any_key_or_none_will_do(heads: Heads) -> None:
    head = await heads.start()
    assert (await head.post(CHAT, BODY, bearer("whatever"))).status == 200
    assert head.backend.requests[0].key == ""


async def test_a_key_that_has_its_fill_gets_429_and_the_others_nothing(heads: Heads, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    await asyncio.to_thread(path.write_text, "one\ntwo")
    gate = asyncio.Event()
    head = await heads.start(api_keys_file=path, key_max_requests=1, start_gate=gate)
    first = asyncio.create_task(head.post(CHAT, BODY, bearer("one")))
    await until(lambda: head.api.gate.inside == 1)
    refused = await head.post(CHAT, BODY, bearer("one"))
    other = asyncio.create_task(head.post(CHAT, BODY, bearer("two")))
    await until(lambda: head.api.gate.inside == 2)
    gate.set()
    assert ((await first).status, (await other).status) == (200, 200)
    assert (refused.status, refused.json()["error"]["type"]) == (429, "rate_limit_error")
    assert refused.headers["retry-after"] == "1"
    assert "x-should-retry" not in refused.headers
    assert (await head.post(CHAT, BODY, bearer("one"))).status == 200
    await head.is_idle()
