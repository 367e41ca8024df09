"""A head on its way out: whoever is inside is served to the end, whoever comes is sent to another head."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from meshnet_small import small_mesh
from meshnet_tiny import write_tiny

from meshnet_node.head.serve import serve
from meshnet_node.local.mesh import free_port
from meshnet_node.settings import HeadSettings

PROMPTS = 12
TOKENS = 30
BODY = {"model": "tiny", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


@pytest.fixture
async def client(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[httpx2.AsyncClient]:
    """Of a head that is ready and ends by itself after SIGTERM. Its parameter: seconds for which it serves on."""
    tiny = write_tiny(tmp_path / "tiny")
    async with small_mesh(tiny, tmp_path / "mesh") as small:
        await small.add("a", [(0, 2), (3, 5)])
        small.publish()
        settings = HeadSettings(
            model=str(tiny),
            routes=str(tmp_path / "mesh" / "routes.json"),
            host="127.0.0.1",
            port=free_port(),
            linger_seconds=getattr(request, "param", 0),
        )
        head = asyncio.create_task(serve(settings))
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{settings.port}", timeout=30) as client:
            async with asyncio.timeout(30):
                while not await ready(client):  # noqa: ASYNC110 - what is waited for has no event
                    await asyncio.sleep(0.05)
            yield client
        await asyncio.wait_for(head, 10)


async def ready(client: httpx2.AsyncClient) -> bool:
    try:
        return (await client.get("/ready")).status_code == 200
    except httpx2.TransportError:
        return False


async def test_all_prompts_of_a_request_that_is_inside_are_answered(client: httpx2.AsyncClient) -> None:
    """Four run at a time: the others begin when the head is already on its way out."""
    body = {**BODY, "prompt": [[index, 7, 9] for index in range(PROMPTS)], "stream": True}
    events: list[Any] = []
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line.removeprefix("data: ")))
            if len(events) == 1:
                os.kill(os.getpid(), signal.SIGTERM)
    assert [event["error"] for event in events if "error" in event] == []
    choices = [event["choices"][0] for event in events]
    assert {one["index"]: one["finish_reason"] for one in choices if one["finish_reason"]} == dict.fromkeys(
        range(PROMPTS), "length"
    )


async def test_who_comes_late_is_sent_away_by_a_connection_that_ends(client: httpx2.AsyncClient) -> None:
    """The next try on a connection that is kept open would come to the same head, for as long as it drains."""
    late: list[httpx2.Response] = []
    last = ""
    body = {**BODY, "prompt": "a", "max_tokens": 400, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and not late:
                os.kill(os.getpid(), signal.SIGTERM)
                while not late or late[-1].status_code == 200:
                    late.append(await client.post("/v1/completions", json={**BODY, "prompt": "b", "max_tokens": 1}))
            last = line or last
    assert last == "data: [DONE]"
    assert (late[-1].status_code, late[-1].json()["error"]["code"]) == (503, "not_ready")
    assert (late[-1].headers["retry-after"], late[-1].headers["connection"]) == ("1", "close")


@pytest.mark.parametrize("client", [3.0], indirect=True)
async def test_who_comes_before_the_services_know_is_served_and_must_connect_anew(client: httpx2.AsyncClient) -> None:
    """A Service sends to a pod that is going until it has learned of it, and on and on while there is no other."""
    endless = {**BODY, "prompt": [[index, 7] for index in range(PROMPTS)], "max_tokens": 1500, "stream": True}
    short = {**BODY, "prompt": "b", "max_tokens": 1}
    async with client.stream("POST", "/v1/completions", json=endless):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(2):
            answer = await client.post("/v1/completions", json=short)
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get("/mesh")).json()["leaving"]
        async with asyncio.timeout(20):
            while (await client.get("/readyz")).status_code == 200:  # noqa: ASYNC110 - it is the probe that is tested
                await asyncio.sleep(0.05)
        assert (await client.post("/v1/completions", json=short)).status_code == 503
