"""The shard as a process: tokens, loading, readiness, failures of the model, draining, its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from meshnet_logstate import FakeClock
from meshnet_shard_server import dial, make_row, shard_server
from meshnet_testing_models import prompt

from meshnet_node.errors import ConfigError, LinkLost, Loading, MeshnetError, RangeError, Unauthorized
from meshnet_node.settings import ShardSettings
from meshnet_node.shard.app import serve
from meshnet_node.shard.process import Progress
from meshnet_node.shard.runner import RangeRunner, Work
from meshnet_node.wire.content import pack_tokens
from meshnet_node.wire.dial import dial as dial_link
from meshnet_node.wire.frames import Close, Error, Forward, Open, Opened
from meshnet_node.wire.link import ShardLink

HEADERS = {"X-Meshnet-Session": "s", "X-Meshnet-Cache": "prefill", "X-Meshnet-Past-Len": "0", "X-Meshnet-Seq-Len": "2"}


class SlowLoad:
    """The real loader, held until the test lets it go on."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, settings: ShardSettings, progress: Progress) -> RangeRunner:
        progress(25, 100)
        assert self.go.wait(60)
        return RangeRunner.load(settings, progress)


async def test_while_it_loads_it_lives_and_says_so(model: Path) -> None:
    load = SlowLoad()
    with shard_server(model, load) as server:
        try:
            health = httpx2.get(f"{server.url}/healthz")
            assert (health.status_code, health.json()["status"]) == (200, "loading")
            ready = httpx2.get(f"{server.url}/readyz")
            assert ready.status_code == 503
            assert ready.json() == {"status": "loading", "loaded_bytes": 25, "total_bytes": 100}
            for answer in (
                httpx2.get(f"{server.url}/v1/info"),
                httpx2.post(f"{server.url}/v1/forward", content=pack_tokens([1, 2]), headers=HEADERS),
                httpx2.delete(f"{server.url}/v1/sessions/s"),
            ):
                assert (answer.status_code, answer.json()["error"]) == (503, "loading")
            assert httpx2.get(f"{server.url}/metrics").status_code == 200
            with pytest.raises(Loading):
                await dial_link(f"127.0.0.1:{server.port}", "head-1", (b"",))
        finally:
            load.go.set()
        await asyncio.to_thread(server.wait_ready)
        info = httpx2.get(f"{server.url}/v1/info").json()
        assert (info["start_layer"], info["end_layer"], info["num_layers"], info["stateful"]) == (0, 5, 6, True)
        assert info["schema"] == [{"name": "hidden", "dtype": "float32", "shape": [1, -1, 64]}]


async def test_the_token_is_needed_and_any_line_of_its_file_does(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\nsecond\n")
    with shard_server(model, token_file=path) as server:
        address = f"127.0.0.1:{server.port}"
        for tokens in ((b"wrong",), (b"",)):
            with pytest.raises(Unauthorized):
                await dial_link(address, "head-1", tokens)
        link = await dial_link(address, "head-1", (b"first",))
        await link.aclose()
        path.write_text("third\nsecond\n")
        server.look(lambda shard: shard.tokens.reload())
        link = await dial_link(address, "head-1", (b"third",))
        await link.aclose()
        url = f"{server.url}/v1/info"
        assert httpx2.get(url).status_code == 401
        assert httpx2.get(url, headers={"Authorization": "Bearer first"}).json()["error"] == "unauthorized"
        assert httpx2.get(url, headers={"Authorization": "Basic second"}).status_code == 401
        assert httpx2.get(url, headers={"Authorization": "Bearer second"}).status_code == 200
        body = pack_tokens([1, 2])
        assert httpx2.post(f"{server.url}/v1/forward", content=body, headers=HEADERS).status_code == 401
        assert httpx2.delete(f"{server.url}/v1/sessions/s").status_code == 401
        path.write_text("fourth\n")
        assert httpx2.get(url, headers={"Authorization": "Bearer fourth"}).status_code == 200
        for open_route in ("/healthz", "/readyz", "/metrics"):
            assert httpx2.get(f"{server.url}{open_route}").status_code == 200


class Faulty:
    """The real loader; the runner fails, stalls or goes blind while `fault` says so."""

    def __init__(self) -> None:
        self.fault: Callable[[list[Work]], None] | None = None

    def __call__(self, settings: ShardSettings, progress: Progress) -> RangeRunner:
        runner = RangeRunner.load(settings, progress)
        run = runner.run

        def watched(works: Any, start_layer: int | None = None) -> list[torch.Tensor]:
            outputs = run(works, start_layer)
            if self.fault is not None:
                self.fault(works)
            return outputs

        runner.run = watched  # type: ignore[method-assign]
        return runner


async def test_a_model_that_raises_costs_the_session_and_not_the_process(model: Path) -> None:
    load = Faulty()
    with shard_server(model, load) as server:
        await asyncio.to_thread(server.wait_ready)
        head = await dial(server)
        ids = prompt(10, 1)
        for session in ("hit", "spared"):
            assert isinstance(await head.open(session), Opened)
            assert (await head.row(make_row(session, ids, 0, 10))).error is None

        def fail(_: list[Work]) -> None:
            raise RuntimeError("out of memory, says the device")

        load.fault = fail
        result = await head.row(make_row("hit", [*ids, 1], 10, 1, 1, want="last"))
        assert result.error is not None
        assert result.error.code == "shard_fault"
        load.fault = None
        result = await head.row(make_row("hit", [*ids, 1], 10, 1, 1, want="last"))
        assert result.error is not None
        assert (result.error.code, result.error.have) == ("cache_miss", 0)
        assert (await head.row(make_row("spared", [*ids, 1], 10, 1, 1, want="last"))).token is not None
        assert isinstance(await head.open("hit", attempt=2, recovery=True), Opened)
        assert (await head.row(make_row("hit", [*ids, 1], 0, 11, 0, attempt=2, want="last"))).token is not None
        for session in ("hit", "spared"):
            await head.close(Close(session, 2))
        await head.socket.close()
        server.check_idle()


async def test_a_running_batch_shows_in_the_heartbeat_and_never_delays_it(model: Path) -> None:
    load = Faulty()
    with shard_server(model, load) as server:
        await asyncio.to_thread(server.wait_ready)
        head, watcher = await dial(server), await dial(server)
        await head.open("slow")
        started, go = threading.Event(), threading.Event()

        def stall(_: list[Work]) -> None:
            started.set()
            assert go.wait(30)

        load.fault = stall
        running = asyncio.create_task(head.row(make_row("slow", prompt(10, 1), 0, 10)))
        assert await asyncio.to_thread(started.wait, 30)
        began = time.monotonic()
        first = await watcher.ping()
        await asyncio.sleep(0.05)
        second = await watcher.ping()
        assert time.monotonic() - began < 2
        assert 0 < first.busy < second.busy
        assert second.active == 1
        load.fault = None
        go.set()
        assert (await running).error is None
        assert (await watcher.ping()).busy == 0
        await head.close(Close("slow", 1))
        await head.socket.close()
        await watcher.socket.close()


async def test_a_hung_batch_fails_the_health_check(model: Path) -> None:
    load, clock = Faulty(), FakeClock()
    with shard_server(model, load, clock) as server:
        await asyncio.to_thread(server.wait_ready)
        head = await dial(server)
        await head.open("hung")
        started, go = threading.Event(), threading.Event()

        def stall(_: list[Work]) -> None:
            started.set()
            assert go.wait(30)

        load.fault = stall
        running = asyncio.create_task(head.row(make_row("hung", prompt(10, 1), 0, 10)))
        assert await asyncio.to_thread(started.wait, 30)
        clock.now += 59
        assert httpx2.get(f"{server.url}/healthz").status_code == 200
        clock.now += 2
        assert httpx2.get(f"{server.url}/healthz").status_code == 503
        load.fault = None
        go.set()
        assert (await running).error is None
        assert httpx2.get(f"{server.url}/healthz").status_code == 200
        await head.close(Close("hung", 1))
        await head.socket.close()


async def test_queued_rows_of_a_head_that_is_gone_revive_nothing(model: Path) -> None:
    load, clock = Faulty(), FakeClock()
    with shard_server(model, load, clock) as server:
        await asyncio.to_thread(server.wait_ready)
        head, other = await dial(server), await dial(server, "head-2")
        await head.open("gone")
        started, go = threading.Event(), threading.Event()

        def stall(_: list[Work]) -> None:
            started.set()
            assert go.wait(30)

        load.fault = stall
        ids = prompt(40, 1)
        await head.send(Forward([make_row("gone", ids, 0, 10), make_row("gone", ids, 10, 30, 1)]))
        assert await asyncio.to_thread(started.wait, 30)
        await head.socket.close()
        clock.now += 20
        await asyncio.sleep(0.4)
        load.fault = None
        go.set()
        await asyncio.sleep(0.3)
        pong = await other.ping()
        assert (pong.active, pong.queue, pong.sessions) == (0, 0, 1)
        assert server.look(lambda shard: [entry.filled for entry in shard.loaded.engine.store.sessions()]) == [10]
        await other.socket.close()
        server.check_idle()


async def test_draining_refuses_opens_and_lets_sessions_end(model: Path) -> None:
    with shard_server(model, drain_seconds=20) as server:
        head = await dial(server)
        ids = prompt(10, 1)
        await head.open("runs")
        await head.row(make_row("runs", ids, 0, 10))
        draining = asyncio.create_task(asyncio.to_thread(lambda: server.call(server.shard.drain())))
        await asyncio.sleep(0.1)
        assert (await head.ping()).draining
        refused = await head.open("new")
        assert isinstance(refused, Error)
        assert refused.code == "draining"
        assert isinstance(await head.open("runs", attempt=2), Opened), "what runs may be opened again"
        assert httpx2.get(f"{server.url}/readyz").status_code == 503
        assert httpx2.get(f"{server.url}/healthz").status_code == 200
        answer = httpx2.post(f"{server.url}/v1/forward", content=pack_tokens([1, 2]), headers=HEADERS)
        assert (answer.status_code, answer.json()["error"]) == (503, "draining")
        assert (await head.row(make_row("runs", [*ids, 1], 10, 1, 0, attempt=2, want="last"))).token is not None
        assert not draining.done()
        await head.close(Close("runs", 2))
        await asyncio.wait_for(draining, 5)
        await head.socket.close()


def settings(model: Path, **fields: Any) -> ShardSettings:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    return ShardSettings(
        model=str(model), host="127.0.0.1", port=port, device="cpu", threads=1, cache_dir=model / "cache", **fields
    )


async def linked(port: int) -> ShardLink:
    """A link, as soon as the shard takes one."""
    for _ in range(1000):
        try:
            return await dial_link(f"127.0.0.1:{port}", "head-1", (b"",))
        except MeshnetError:
            await asyncio.sleep(0.02)
    raise AssertionError("the shard took no link")


async def test_sigterm_ends_the_server_once_no_session_is_active(model: Path) -> None:
    given = settings(model)
    running = asyncio.create_task(serve(given))
    link = await linked(given.port)
    await link.open(Open("s", 1, 0, 50))
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.3)
    link.ping()
    await asyncio.sleep(0.2)
    assert not link.lost.done(), "the links live while a session is active"
    assert link.pong.draining
    assert not running.done()
    await link.close_session(Close("s", 1))
    await asyncio.wait_for(link.lost, 10)
    await asyncio.wait_for(running, 10)
    await link.aclose()


async def test_the_drain_ends_at_its_limit(model: Path) -> None:
    given = settings(model, drain_seconds=0.4)
    running = asyncio.create_task(serve(given))
    link = await linked(given.port)
    await link.open(Open("s", 1, 0, 50))
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 10)
    assert link.lost.done()
    await link.aclose()


async def test_sigint_ends_the_server_at_once(model: Path) -> None:
    given = settings(model)
    running = asyncio.create_task(serve(given))
    link = await linked(given.port)
    await link.open(Open("s", 1, 0, 50))
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(running, 10)
    await link.aclose()


async def test_a_range_that_can_not_be_loaded_ends_the_server_with_a_sentence(model: Path) -> None:
    with pytest.raises(RangeError, match="layers 9"):
        await serve(settings(model, start_layer=9))


async def test_a_port_that_is_taken_is_a_config_error(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = settings(model).model_copy(update={"port": taken.getsockname()[1]})
        with pytest.raises(ConfigError, match="MESHNET_PORT"):
            await serve(given)


async def test_a_token_file_that_can_not_be_read_is_a_config_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"MESHNET_TOKEN_FILE: .* can't be read"):
        await serve(settings(model, token_file=tmp_path / "none"))


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "[::1", "\0:80", f"{'x' * 300}:80", ""])
async def test_what_is_no_address_is_a_link_that_is_lost(address: str) -> None:
    with pytest.raises(LinkLost):
        await dial_link(address, "head-1", (b"",))
