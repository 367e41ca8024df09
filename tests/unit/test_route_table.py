"""A route table is taken by identity (uid, epoch), a bad one changes nothing, and the last one stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshnet_node.errors import ConfigError
from meshnet_node.head.routes import FileRoutes, Intake, RouteTable, newer, parse
from meshnet_node.local.files import write_whole

TABLE = {
    "uid": "u1",
    "epoch": 3,
    "layouts": [
        {
            "id": "a1",
            "fingerprint": "f",
            "state": "active",
            "shards": [
                {
                    "name": "front",
                    "startLayer": 0,
                    "endLayer": 14,
                    "service": "front.ns:8100",
                    "endpoints": [{"uid": "p", "address": "10.0.0.1:8100", "state": "ready", "deadline": None}],
                }
            ],
        }
    ],
}


def test_the_documented_form_is_read() -> None:
    shard = parse(json.dumps(TABLE).encode()).layouts[0].shards[0]
    assert (shard.start_layer, shard.end_layer, shard.endpoints[0].address) == (0, 14, "10.0.0.1:8100")


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"", "truncated"),
        (b"[]", "object"),
        (b'{"epoch": "x"}', "epoch"),
        (b'{"layouts": [{"id": "a"}]}', "shards"),
        (b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
    ],
    ids=["empty", "list", "epoch is text", "no shards", "too deep"],
)
def test_a_wrong_table_says_what_is_wrong(raw: bytes, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        parse(raw)


@pytest.mark.parametrize(
    ("uid", "epoch", "taken"),
    [("u", 5, False), ("u", 4, False), ("u", 6, True), ("v", 1, True)],
    ids=["same", "older", "newer", "another uid resets"],
)
def test_identity_decides(uid: str, epoch: int, taken: bool) -> None:
    assert newer(RouteTable("u", 5), RouteTable(uid, epoch)) is taken


def test_a_bad_table_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    intake = Intake(lambda _: None)
    for content in (b"{", b"{", json.dumps(TABLE).encode(), b"{", b"[]"):
        intake.offer(content)
    assert [record.message for record in caplog.records] == ["route table not read"] * 2
    assert intake.table is not None
    assert intake.table.epoch == 3
    assert 0 < intake.age < 5


def test_the_last_table_stays_when_the_file_goes_or_breaks(tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    seen: list[RouteTable] = []
    routes = FileRoutes(path, Intake(seen.append))
    routes.poll()
    for content in (json.dumps(TABLE), "{", json.dumps({**TABLE, "epoch": 2}), json.dumps({**TABLE, "epoch": 4})):
        write_whole(path, content)
        routes.poll()
    path.unlink()
    routes.poll()
    assert [table.epoch for table in seen] == [3, 4]
