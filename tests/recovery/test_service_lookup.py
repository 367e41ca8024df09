"""A stale route table: the range's Service leads to the pods that are there now, and only to those."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from meshnet_small import SmallMesh, SmallShard, service_of, small_mesh
from meshnet_testing_models import greedy, prompt, uncut, write_model

from meshnet_node.head.endpoints import Endpoint
from meshnet_node.head.lookup import Dns
from meshnet_node.local.mesh import free_port

NEW = 24
TWO = [(0, 2), (3, 5)]
BACK = service_of(3, 5)
Judge = Callable[[list[int], int], list[int]]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="module")
def judge(llama: Path) -> Judge:
    model = uncut(llama)
    return lambda ids, count: greedy(model, ids, count)


@asynccontextmanager
async def mesh_of_two(llama: Path, folder: Path, **options: Any) -> AsyncIterator[SmallMesh]:
    """Two shards that the table names, and the back one's Service, which names nobody yet."""
    async with small_mesh(llama, folder, **{"lookup_seconds": 0.3, **options}) as small:
        small.services = {BACK: []}
        await small.add("a", TWO)
        small.publish()
        await small.linked()
        yield small


async def successor(small: SmallMesh, model: Path | None = None, layers: tuple[int, int] = (3, 5)) -> SmallShard:
    """A pod that no table names; it is ended with the mesh."""
    shard = SmallShard(model or small.model, *layers)
    await asyncio.to_thread(shard.start)
    return shard


def back(small: SmallMesh) -> list[Endpoint]:
    return small.mesh.context.endpoints.find(lambda endpoint: endpoint.place.shard.start_layer == 3)


async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: bytes) -> None:
    """A server that is no shard: says this, and waits until the other side has had enough."""
    writer.write(words)
    while await reader.read(999):
        pass
    writer.close()


def ids(scores: list[Any]) -> list[int]:
    return [score.id for score in scores]


async def test_a_stream_goes_on_at_the_pods_successor_and_a_newer_table_takes_it_over(
    llama: Path, judge: Judge, tmp_path: Path
) -> None:
    ids_ = prompt(30, 1)
    async with mesh_of_two(llama, tmp_path) as small:
        new = await successor(small)
        old = small.layouts["a"][1]

        async def replace() -> None:
            old.crash()
            small.services[BACK] = [f"127.0.0.1:{old.port}", f"127.0.0.1:{new.port}"]

        got = await small.generate(ids_, NEW, lambda seen: replace() if seen == 7 else None)
        assert ids(got) == judge(ids_, NEW)
        (found,) = [endpoint for endpoint in back(small) if endpoint.up]
        assert (found.uid, found.place.found) == (new.uid, True)
        told: Any = small.mesh.describe()
        assert [one["from"] for one in told["shards"] if one["uid"] == new.uid] == ["service"]
        assert list(told["lookups"]) == ["a/layers-3-5"]
        link = found.link

        small.layouts["a"][1] = new
        small.publish()
        await small.until(lambda: small.mesh.context.endpoints.table.epoch == 2, "the newer table")  # type: ignore[union-attr]
        assert back(small) == [found]
        assert (found.link is link, found.place.found) == (True, False), "its link is the table's now"
        await asyncio.sleep(0.3)
        assert small.mesh.describe()["lookups"] == {}
        assert ids(await small.generate(ids_, NEW)) == judge(ids_, NEW)
        await small.idle()


async def test_the_table_rules_again_when_its_shard_is_back(llama: Path, judge: Judge, tmp_path: Path) -> None:
    ids_ = prompt(20, 2)
    async with mesh_of_two(llama, tmp_path) as small:
        new = await successor(small)
        old = small.layouts["a"][1]
        old.crash()
        small.services[BACK] = [f"127.0.0.1:{new.port}"]
        await small.until(lambda: any(endpoint.opens for endpoint in back(small)), "the successor")

        async def come_back() -> None:
            await asyncio.to_thread(old.start)
            small.publish()
            await small.until(lambda: [endpoint.uid for endpoint in back(small)] == [old.uid], "the table's shard")

        got = await small.generate(ids_, NEW, lambda seen: come_back() if seen == 5 else None)
        assert ids(got) == judge(ids_, NEW)
        assert not small.mesh.context.telemetry.recent, "what works is not moved"
        await small.idle()
        await asyncio.to_thread(new.crash)


async def test_only_what_proves_token_fingerprint_and_range_is_used(llama: Path, judge: Judge, tmp_path: Path) -> None:
    ids_ = prompt(20, 3)
    (tmp_path / "token").write_text("right")
    (tmp_path / "wrong").write_text("wrong")
    other = write_model(tmp_path / "other", "qwen3")
    async with small_mesh(llama, tmp_path / "mesh", lookup_seconds=0.3, token_file=tmp_path / "token") as small:
        small.services = {BACK: []}
        await small.add("a", TWO, token_file=tmp_path / "token")
        small.publish()
        await small.linked()
        small.layouts["a"][1].crash()
        wrong = [
            SmallShard(llama, 3, 5, token_file=tmp_path / "wrong"),
            SmallShard(llama, 0, 2, token_file=tmp_path / "token"),
            SmallShard(other, 3, 5, token_file=tmp_path / "token"),
        ]
        right = SmallShard(llama, 3, 5, token_file=tmp_path / "token")
        await asyncio.gather(*(asyncio.to_thread(shard.start) for shard in (*wrong, right)))
        mute = await asyncio.start_server(lambda reader, writer: say(reader, writer, b""), "127.0.0.1", 0)
        noise = await asyncio.start_server(lambda reader, writer: say(reader, writer, b"\0\xff" * 99), "127.0.0.1", 0)
        ports = [one.sockets[0].getsockname()[1] for one in (mute, noise)]
        ports += [free_port(), *(shard.port for shard in wrong)]
        small.services[BACK] = [f"127.0.0.1:{port}" for port in ports]

        def all_refused() -> bool:
            tried = [endpoint for endpoint in back(small) if endpoint.place.found]
            faults = [endpoint.fault for endpoint in tried if endpoint.fault != "not dialled yet"]
            return len(tried) == len(ports) and len(faults) == len(ports)

        await small.until(all_refused, "all to be refused")
        assert not any(endpoint.up for endpoint in back(small))
        assert not small.mesh.ready()
        small.services[BACK].append(f"127.0.0.1:{right.port}")
        await small.until(lambda: any(endpoint.opens for endpoint in back(small)), "the right one")
        assert [endpoint.uid for endpoint in back(small) if endpoint.up] == [right.uid]
        assert ids(await small.generate(ids_, NEW)) == judge(ids_, NEW)
        small.services[BACK] = [f"127.0.0.1:{right.port}"]
        await small.until(lambda: len(back(small)) == 2, "those that DNS forgot to be given up", 20)
        for server in (mute, noise):
            server.close()
        await asyncio.gather(*(asyncio.to_thread(shard.crash) for shard in (*wrong, right)))


async def test_an_address_that_another_pod_got_is_not_used_until_the_service_names_it(
    llama: Path, judge: Judge, tmp_path: Path
) -> None:
    """The successor has its predecessor's address, but the table still names the predecessor."""
    ids_ = prompt(20, 4)
    async with mesh_of_two(llama, tmp_path) as small:
        old = small.layouts["a"][1]
        gone = old.uid
        old.crash()
        await asyncio.to_thread(old.start)
        assert old.uid != gone
        (listed,) = back(small)
        await small.until(lambda: listed.mistaken, "the other pod to be noticed")
        assert f"pod {old.uid} answers at the address of {gone}" in listed.fault
        assert not small.mesh.ready()
        small.services[BACK] = [f"127.0.0.1:{old.port}"]
        await small.until(small.mesh.ready, "the pod at its own name")
        assert ids(await small.generate(ids_, NEW)) == judge(ids_, NEW)
        assert listed.link is None or not listed.up
        small.publish()
        await small.until(lambda: [one.uid for one in back(small) if one.up] == [old.uid], "the newer table")
        assert ids(await small.generate(ids_, NEW)) == judge(ids_, NEW)
        await small.idle()


async def test_a_link_that_the_newer_tables_fingerprint_excludes_opens_no_sessions(llama: Path, tmp_path: Path) -> None:
    async with mesh_of_two(llama, tmp_path) as small:
        small.fingerprint = "another"
        small.publish()
        await small.until(lambda: any(endpoint.mistaken for endpoint in back(small)), "it to be checked again")
        assert not small.mesh.ready()
        small.fingerprint = ""
        small.publish()
        await small.until(small.mesh.ready, "the links")


async def test_a_new_instance_of_the_same_pod_is_the_same_endpoint_without_its_sessions(
    llama: Path, judge: Judge, tmp_path: Path
) -> None:
    """A container starts again in its pod: uid, address and table stay as they are."""
    ids_ = prompt(30, 6)
    async with mesh_of_two(llama, tmp_path) as small:
        shard = small.layouts["a"][1]
        (listed,) = back(small)
        assert listed.link is not None
        before = listed.link.info.instance

        async def restart() -> None:
            shard.crash()
            await asyncio.to_thread(shard.start, shard.uid)

        got = await small.generate(ids_, NEW, lambda seen: restart() if seen == 7 else None)
        assert ids(got) == judge(ids_, NEW)
        assert back(small) == [listed]
        assert listed.link.info.instance != before
        (recovery,) = small.mesh.context.telemetry.recent
        assert recovery["replayed"] in (36, 37)
        await small.idle()


async def test_no_path_goes_through_two_models_that_the_table_does_not_tell_apart(
    llama: Path, judge: Judge, tmp_path: Path
) -> None:
    """Same cut, same layout, no fingerprint in the table: a rollout that the operator could not look into."""
    ids_ = prompt(20, 5)
    other = write_model(tmp_path / "other", "qwen3")
    async with small_mesh(llama, tmp_path / "mesh") as small:
        await small.add("a", TWO[:1])
        stranger = await successor(small, other)
        small.layouts["a"].append(stranger)
        small.publish()
        await small.linked()
        assert not small.mesh.ready()
        await small.add("a", TWO[1:])
        small.publish()
        await small.linked()
        for _ in range(6):
            assert ids(await small.generate(ids_, 4)) == judge(ids_, 4)
        await small.idle()


async def test_a_resolver_that_fails_or_hangs_disturbs_nobody(llama: Path, tmp_path: Path) -> None:
    async with mesh_of_two(llama, tmp_path) as small:
        small.layouts["a"][1].crash()

        def fault() -> str:
            told: Any = small.mesh.describe()
            return str(told["lookups"].get("a/layers-3-5", {}).get("fault", ""))

        await small.until(lambda: "no such name" in fault(), "the failure to be told")
        began = time.monotonic()
        small.resolve = lambda _: asyncio.sleep(60)  # type: ignore[assignment,method-assign,return-value]
        small.mesh._lookup._resolve = small.resolve
        await small.until(lambda: "TimeoutError" in fault(), "the silence to be told")
        assert time.monotonic() - began < 6


async def test_the_systems_resolver_gives_addresses_with_the_port() -> None:
    dns = Dns()
    assert "127.0.0.1:8100" in await dns.resolve("localhost:8100")
    assert await dns.resolve("::1:8100") == ["[::1]:8100"]
    with pytest.raises(OSError, match="not known"):
        await dns.resolve("nobody.invalid:8100")
    dns.close()
