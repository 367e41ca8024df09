"""Revisions become commits by the hub's own address of them."""

from __future__ import annotations

import pytest
from aiohttp import web

from meshnet_operator.hub import Hub
from meshnet_operator.resource import parse

COMMIT = "c" * 40


@pytest.mark.parametrize("revision", ["v1.0", "refs/pr/3", "feature/a#b?c"])
async def test_a_revision_is_one_part_of_the_path_whatever_it_holds(revision: str) -> None:
    asked: list[str] = []

    async def tell(request: web.Request) -> web.Response:
        asked.append(request.match_info["revision"])
        return web.json_response({"sha": COMMIT})

    app = web.Application()
    app.router.add_get("/api/models/org/name/revision/{revision}", tell)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        model = parse(
            {
                "metadata": {"namespace": "ns", "name": "demo", "uid": "u"},
                "spec": {"model": {"source": "hf://org/name", "revision": revision}, "shards": []},
            }
        )
        assert await Hub(f"http://{host}:{port}").pin(model) == COMMIT
        assert asked == [revision]
    finally:
        await runner.cleanup()
