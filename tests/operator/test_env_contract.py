"""The environment that the operator gives to head and shard: a closed list, and every name is a setting of the node."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from meshnet_node.settings import HeadSettings, ShardSettings
from meshnet_operator.children import head, shard
from meshnet_operator.resource import parse

Make = Callable[..., Any]

CLOSED = {
    "MESHNET_MODEL", "MESHNET_REVISION", "MESHNET_SERVED_NAME", "MESHNET_MAX_CONTEXT", "MESHNET_DTYPE",
    "MESHNET_START_LAYER", "MESHNET_END_LAYER", "MESHNET_KV_TTL_SECONDS", "MESHNET_KV_MAX_SESSIONS",
    "MESHNET_KV_MAX_BYTES", "MESHNET_TOKEN_FILE", "MESHNET_API_KEYS_FILE", "MESHNET_POD_UID", "MESHNET_ROUTES",
    "MESHNET_HOLD_SECONDS", "MESHNET_REPLAY_BYTES", "MESHNET_DRAIN_SECONDS", "MESHNET_LINGER_SECONDS",
    "MESHNET_DETERMINISM",
    "MESHNET_STATELESS", "MESHNET_ALLOW_CAST", "MESHNET_TRUST_REMOTE_CODE", "HF_HOME", "HF_TOKEN", "HF_HUB_OFFLINE",
}  # fmt: skip
# Beside the contract: where an arbitrary user may write.
PLATFORM = {"HOME"}


def full(meshmodel: Make) -> Any:
    """A MeshModel that sets everything that has a variable."""
    body = meshmodel(
        model={
            "source": "hf://org/name",
            "servedName": "other",
            "maxContext": 100,
            "dtype": "bfloat16",
            "tokenSecret": {"name": "hub", "key": "token"},
            "trustRemoteCode": True,
        },
        sessions={"maxBytes": "1.5Gi"},
        head={"apiKeySecret": {"name": "keys"}},
        recovery={"replayBytes": "1Gi"},
        options={"stateless": True, "allowCast": True},
    )
    body["metadata"] |= {"namespace": "ns", "uid": "u"}
    return parse(body)


def variables(meshmodel: Make) -> dict[str, dict[str, Any]]:
    """Environment of shard and head: name -> entry."""
    model = full(meshmodel)
    made = {
        "shard": shard.template(model, model.shards[0], "i", "c0ffee", "s"),
        "head": head.template(model, "i", "c0ffee", "s"),
    }
    return {role: {e["name"]: e for e in one["spec"]["containers"][0]["env"]} for role, one in made.items()}


def test_the_operator_sets_the_closed_list_and_no_more(meshmodel: Make) -> None:
    found = variables(meshmodel)
    assert set(found["shard"]) | set(found["head"]) == CLOSED | PLATFORM


@pytest.mark.parametrize(("role", "settings"), [("shard", ShardSettings), ("head", HeadSettings)])
def test_the_node_reads_each_of_them(meshmodel: Make, role: str, settings: Any) -> None:
    names = {f"MESHNET_{field.upper()}" for field in settings.model_fields}
    ours = {name for name in variables(meshmodel)[role] if name.startswith("MESHNET_")}
    assert ours <= names


@pytest.mark.parametrize(("role", "settings"), [("shard", ShardSettings), ("head", HeadSettings)])
def test_the_node_accepts_the_values(
    meshmodel: Make, role: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = variables(meshmodel)[role] | {"MESHNET_ALLOW_CAST": {"value": "false"}}
    for name, entry in given.items():
        monkeypatch.setenv(name, entry.get("value", "from-elsewhere"))
    read = settings()
    assert read.model == "org/name"
    assert read.revision == "c0ffee"
    assert read.stateless is True
    assert read.trust_remote_code is True
    if role == "shard":
        assert (read.start_layer, read.end_layer, read.dtype) == (0, 14, "bfloat16")
        assert (read.kv_max_bytes, read.kv_ttl_seconds, read.drain_seconds) == (1610612736, 600, 30)
    else:
        assert (read.served_name, read.replay_bytes, read.drain_seconds) == ("other", 2**30, 600)
        assert read.routes == "configmap://ns/demo-routes"


def test_bytes_are_whole_numbers(meshmodel: Make) -> None:
    for role in variables(meshmodel).values():
        for name, entry in role.items():
            if name.endswith("_BYTES"):
                assert re.fullmatch(r"\d+", entry["value"])


def test_ports_and_commands_are_those_of_the_node(meshmodel: Make) -> None:
    model = full(meshmodel)
    for role, settings, made in (
        ("shard", ShardSettings, shard.template(model, model.shards[0], "i", None, "s")),
        ("head", HeadSettings, head.template(model, "i", None, "s")),
    ):
        box = made["spec"]["containers"][0]
        assert box["ports"][0]["containerPort"] == settings.model_fields["port"].default
        assert box["command"] == ["meshnet", role]
