"""A head follows its route table in a ConfigMap of a real API server, with the rights that the operator gives it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cluster.plane import Plane
from cluster.proxy import FaultProxy

from meshnet_node.head.apiserver import Account, find_account
from meshnet_node.head.configmap import ConfigMapRoutes, Timing
from meshnet_node.head.routes import Intake, RouteTable
from meshnet_node.settings import HeadSettings
from meshnet_operator import kinds
from meshnet_operator.children import access
from meshnet_operator.resource import parse

QUICK = Timing(watch=60, margin=5.0, first_delay=0.05, longest_delay=0.3, settled=5.0)


def table(epoch: int, uid: str = "u", address: str = "10.0.0.1:8100") -> str:
    endpoint = {"uid": "p", "address": address, "state": "ready", "deadline": None}
    shard = {"name": "a", "startLayer": 0, "endLayer": 5, "service": "a.ns.svc.x:8100", "endpoints": [endpoint]}
    layout = {"id": "l", "fingerprint": "f", "state": "active", "shards": [shard]}
    return json.dumps({"uid": uid, "epoch": epoch, "layouts": [layout]})


@dataclass
class Followed:
    """A source at work. `seen` are the tables it gave on."""

    routes: ConfigMapRoutes
    task: asyncio.Task[None]
    seen: list[RouteTable]

    @property
    def epochs(self) -> list[int]:
        return [one.epoch for one in self.seen]

    async def until(self, check: Callable[[], bool], seconds: float = 10.0) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while not check():
            assert asyncio.get_running_loop().time() < end, f"{self.routes.describe()} {self.epochs}"
            assert not self.task.done(), self.task
            await asyncio.sleep(0.01)


@dataclass
class Head:
    """What a head's pod finds around it: the folder that the kubelet mounts, and the API server's address."""

    space: Any
    folder: Path
    started: list[Followed] = field(default_factory=list)

    async def token(self, name: str = "demo-head") -> str:
        request = {"spec": {"expirationSeconds": 3600}}
        kind = kinds.Kind("", "v1", f"serviceaccounts/{name}/token", "TokenRequest")
        answer = await self.space.cluster.create(request, kind, self.space.name)
        return str(answer["status"]["token"])

    def renew(self, token: str) -> None:
        """As the kubelet does: the file is another one."""
        new = self.folder / "token.new"
        new.write_text(token)
        new.replace(self.folder / "token")

    async def publish(self, content: str) -> None:
        """Write the ConfigMap, as the operator would."""
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "demo-routes", "namespace": self.space.name},
            "data": {"routes.json": content},
        }
        await self.space.cluster.apply(body, kinds.CONFIGMAP, self.space.name)

    def account(self, url: str = "") -> Account:
        return Account(self.folder, url or self.space.plane.server)

    def follow(self, url: str = "", timing: Timing = QUICK, name: str = "demo-routes") -> Followed:
        seen: list[RouteTable] = []
        routes = ConfigMapRoutes(self.space.name, name, self.account(url), Intake(seen.append), timing)
        made = Followed(routes, asyncio.create_task(routes.run()), seen)
        self.started.append(made)
        return made


@pytest.fixture
async def head(space: Any, meshmodel: Callable[..., Any], tmp_path: Path) -> AsyncIterator[Head]:
    """ServiceAccount, Role and RoleBinding as the operator writes them; no operator runs."""
    model = parse(await space.create(meshmodel()))
    for child, kind in (
        (access.account(model), kinds.ACCOUNT),
        (access.role(model), kinds.ROLE),
        (access.binding(model), kinds.BINDING),
    ):
        await space.create(child, kind)
    made = Head(space, tmp_path / "account")
    made.folder.mkdir()
    (made.folder / "ca.crt").write_bytes(space.plane.authority.read_bytes())
    made.renew(await made.token())
    yield made
    for one in made.started:
        one.task.cancel()
    await asyncio.gather(*(one.task for one in made.started), return_exceptions=True)
    await asyncio.sleep(0.1)


@pytest.fixture
async def secure(plane: Plane) -> AsyncIterator[FaultProxy]:
    """A fault proxy that speaks TLS to the head, as the API server does."""
    made = FaultProxy(plane.server, plane.authority, (plane.pki / "apiserver.crt", plane.pki / "apiserver.key"))
    await made.start()
    yield made
    await made.stop()


async def test_what_is_there_is_read_and_a_change_arrives_at_once(head: Head) -> None:
    await head.publish(table(1))
    followed = head.follow()
    await followed.until(lambda: followed.epochs == [1] and followed.routes.state == "connected")
    began = asyncio.get_running_loop().time()
    await head.publish(table(2, address="10.0.0.2:8100"))
    await followed.until(lambda: followed.epochs == [1, 2])
    assert asyncio.get_running_loop().time() - began < 5.0, "by the watch, not by the next read"
    assert followed.seen[-1].layouts[0].shards[0].endpoints[0].address == "10.0.0.2:8100"


async def test_a_table_that_comes_later_is_awaited(head: Head) -> None:
    followed = head.follow()
    await followed.until(lambda: followed.routes.state == "missing")
    await head.publish(table(1))
    await followed.until(lambda: followed.epochs == [1] and followed.routes.state == "connected", 3)


async def test_deletion_keeps_the_table_and_a_new_meshmodel_resets_it(head: Head) -> None:
    await head.publish(table(7))
    followed = head.follow()
    await followed.until(lambda: followed.routes.state == "connected")
    await head.space.cluster.delete(kinds.CONFIGMAP, head.space.name, "demo-routes")
    await followed.until(lambda: followed.routes.state == "missing")
    assert followed.epochs == [7]
    await head.publish(table(1, uid="another"))
    await followed.until(lambda: followed.epochs == [7, 1] and followed.routes.state == "connected")


async def test_an_older_epoch_is_ignored_and_a_bad_table_is_logged_once(
    head: Head, caplog: pytest.LogCaptureFixture
) -> None:
    await head.publish(table(5))
    followed = head.follow(timing=Timing(watch=1, margin=5.0))
    await followed.until(lambda: followed.epochs == [5])
    await head.publish(table(4))
    await head.publish("{broken")
    await asyncio.sleep(2.5)  # read again by the GET before each watch
    assert followed.epochs == [5]
    assert [record.message for record in caplog.records].count("route table not read") == 1
    await head.publish(table(6))
    await followed.until(lambda: followed.epochs == [5, 6])


async def test_the_operators_role_is_enough_and_no_more(head: Head, caplog: pytest.LogCaptureFixture) -> None:
    await head.publish(table(1))
    allowed, refused = head.follow(), head.follow(name="other-routes")
    await allowed.until(lambda: allowed.routes.state == "connected" and allowed.epochs == [1])
    await refused.until(lambda: refused.routes.state == "broken")
    assert "needs a Role with get and watch of ConfigMap other-routes" in refused.routes.fault
    await asyncio.sleep(1.0)
    warnings = [record for record in caplog.records if record.message == "routes not followed"]
    assert len(warnings) == 1, "said once, however often it is tried"


async def test_a_token_that_is_refused_is_read_again(head: Head) -> None:
    await head.publish(table(1))
    good = (head.folder / "token").read_text()
    followed = head.follow(timing=Timing(watch=1, margin=5.0, first_delay=0.05, longest_delay=0.3))
    await followed.until(lambda: followed.routes.state == "connected")
    head.renew(good[:-20] + "x" * 20)
    await followed.until(lambda: followed.routes.state == "broken")
    assert "token" in followed.routes.fault
    assert followed.epochs == [1]
    head.renew(await head.token())
    await head.publish(table(2))
    await followed.until(lambda: followed.epochs == [1, 2] and followed.routes.state == "connected")


async def test_a_foreign_authority_is_not_trusted(head: Head, tmp_path: Path, plane: Plane) -> None:
    await head.publish(table(1))
    (head.folder / "ca.crt").write_bytes((plane.pki / "admin.crt").read_bytes())
    followed = head.follow()
    await followed.until(lambda: followed.routes.state == "broken")
    assert "CERTIFICATE_VERIFY_FAILED" in followed.routes.fault
    (head.folder / "ca.crt").write_bytes(plane.authority.read_bytes())
    await followed.until(lambda: followed.routes.state == "connected" and followed.epochs == [1])


@pytest.mark.parametrize(("status", "retry_after"), [(429, 1), (409, None), (500, None), (503, None), (504, None)])
async def test_refusals_are_tried_again(head: Head, secure: FaultProxy, status: int, retry_after: int | None) -> None:
    await head.publish(table(1))
    secure.refuse("/configmaps", status, times=3, retry_after=retry_after)
    began = asyncio.get_running_loop().time()
    followed = head.follow(secure.address)
    await followed.until(lambda: followed.routes.state == "broken" or followed.epochs == [1])
    assert str(status) in followed.routes.fault
    await followed.until(lambda: followed.epochs == [1] and followed.routes.state == "connected")
    waited = asyncio.get_running_loop().time() - began
    assert waited >= 3.0 * (retry_after or 0)
    assert followed.routes.fault == ""


async def test_case_40_an_expired_watch_is_read_anew(head: Head, secure: FaultProxy) -> None:
    await head.publish(table(1))
    followed = head.follow(secure.address)
    await followed.until(lambda: followed.routes.state == "connected")
    secure.lose("MODIFIED", "ConfigMap")
    await head.publish(table(2))
    before = len(secure.seen)
    await secure.stream_error("/configmaps", 410)
    await followed.until(lambda: followed.epochs == [1, 2])
    await followed.until(lambda: watches(secure) == 2)
    secure.lost.clear()
    secure.refuse("watch=true", 410, times=2)
    await asyncio.sleep(0.1)
    await secure.stream_error("/configmaps", 504)
    await followed.until(lambda: watches(secure) == 5 and followed.routes.state == "connected")
    await head.publish(table(3))
    await followed.until(lambda: followed.epochs == [1, 2, 3])
    assert len(secure.seen) - before < 20, "an expired watch is no reason to ask without end"


def watches(proxy: FaultProxy) -> int:
    return sum("watch=true" in path for _, path in proxy.seen)


async def test_case_39_a_lost_event_is_found_by_the_next_read(head: Head, secure: FaultProxy) -> None:
    await head.publish(table(1))
    followed = head.follow(secure.address, Timing(watch=2, margin=5.0))
    await followed.until(lambda: followed.routes.state == "connected")
    secure.lose("MODIFIED", "ConfigMap")
    await head.publish(table(2))
    await followed.until(lambda: followed.epochs == [1, 2], 6)


async def test_a_dropped_watch_is_taken_up_again(head: Head, secure: FaultProxy) -> None:
    await head.publish(table(1))
    followed = head.follow(secure.address)
    for epoch in (2, 3, 4):
        await followed.until(lambda: secure.watching == 1)
        secure.cut()
        await head.publish(table(epoch))
        await followed.until(lambda epoch=epoch: followed.epochs[-1:] == [epoch])  # type: ignore[misc]
    assert followed.epochs == [1, 2, 3, 4]


async def test_case_69_a_half_open_watch_is_given_up(head: Head, secure: FaultProxy) -> None:
    """The connection stands, but nothing comes any more, not even the end of the watch."""
    await head.publish(table(1))
    followed = head.follow(secure.address, Timing(watch=1, margin=1.0, first_delay=0.05, longest_delay=0.3))
    await followed.until(lambda: followed.routes.state == "connected")
    secure.silent(True)
    await head.publish(table(2))
    await asyncio.sleep(0.5)
    assert followed.epochs == [1]
    await followed.until(lambda: followed.routes.state == "broken", 15)
    assert "ReadTimeout" in followed.routes.fault
    secure.silent(False)
    await followed.until(lambda: followed.epochs == [1, 2] and followed.routes.state == "connected", 15)


async def test_an_idle_head_asks_twice_a_watch(head: Head, secure: FaultProxy) -> None:
    await head.publish(table(1))
    followed = head.follow(secure.address, Timing(watch=2, margin=5.0))
    await followed.until(lambda: secure.watching == 1)
    await asyncio.sleep(4.0)
    assert len(secure.seen) <= 6
    assert all("timeoutSeconds=2" in path for _, path in secure.seen if "watch" in path)


async def test_the_table_outlives_the_api_server(head: Head, plane: Plane) -> None:
    if plane.external:
        pytest.skip("somebody else's API server is not ours to end")
    await head.publish(table(1))
    followed = head.follow()
    await followed.until(lambda: followed.routes.state == "connected")
    await asyncio.to_thread(plane.end, "kube-apiserver")
    try:
        await followed.until(lambda: followed.routes.state == "broken")
        await asyncio.sleep(0.5)
        assert followed.epochs == [1]
    finally:
        # Here and in no worker: the API server ends with the thread that started it.
        plane.start_apiserver()
        await asyncio.to_thread(plane._wait_ready, 60)
    await followed.until(lambda: followed.routes.state == "connected", 30)
    await head.publish(table(2))
    await followed.until(lambda: followed.epochs == [1, 2])


def test_the_kubelets_variables_and_folder_give_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    (tmp_path / "token").write_text("secret\n")
    settings = HeadSettings(model="m", routes="configmap://ns/demo-routes", account_folder=tmp_path)
    account = find_account(settings)
    assert (account.url, account.token()) == ("https://[fd00::1]:6443", "secret")
