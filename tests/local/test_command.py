"""A wrong start of any command ends with one sentence and a code, never with a traceback."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from meshnet_node.__main__ import main
from meshnet_node.settings import HeadSettings, NodeSettings, ShardSettings
from meshnet_operator.__main__ import main as operator_main

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["head"], "meshnet: MESHNET_MODEL: is needed; MESHNET_ROUTES: is needed\n"),
        (["shard"], "meshnet: MESHNET_MODEL: is needed\n"),
        (
            ["head", "--model", "m", "--routes", "configmap://x"],
            "meshnet: MESHNET_ROUTES: write configmap://NAMESPACE/NAME, for example configmap://default/demo-routes\n",
        ),
    ],
    ids=["head", "shard", "half a ConfigMap's name"],
)
def test_what_is_missing_or_wrong_is_named(arguments: list[str], sentence: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == sentence


def test_a_wrong_variable_of_the_kubelet_goes_by_its_own_name(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "tcp")
    assert main(["head", "--model", "m", "--routes", "r"]) == 2
    assert capsys.readouterr().err.startswith("meshnet: KUBERNETES_SERVICE_PORT: ")


def test_a_head_whose_port_is_taken_ends_with_a_sentence(demo_folder: Path, capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["head", "--model", str(demo_folder), "--routes", "r", "--host", "127.0.0.1", "--port", port]) == 2
    assert f"MESHNET_HOST, MESHNET_PORT: 127.0.0.1:{port} can't be used: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "name"), [(main, "meshnet"), (operator_main, "meshnet-operator")], ids=["node", "operator"]
)
def test_help_is_given_without_any_setting(
    command: Callable[[list[str]], int], name: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.delenv("MESHNET_OPERATOR_NODE_IMAGE", raising=False)
    with pytest.raises(SystemExit) as ended:
        command(["--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {name} ")


def test_the_operator_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.delenv("MESHNET_OPERATOR_NODE_IMAGE", raising=False)
    monkeypatch.setattr(sys, "argv", ["meshnet-operator"])
    assert operator_main() == 1
    assert capsys.readouterr().err == "meshnet-operator: MESHNET_OPERATOR_NODE_IMAGE: is needed\n"


@pytest.mark.parametrize("kind", [HeadSettings, ShardSettings])
def test_every_setting_is_told_in_operations(kind: type[NodeSettings]) -> None:
    told = OPERATIONS.read_text().split("## What to look at")[0]
    own = {f"MESHNET_{name.upper()}" for name, field in kind.model_fields.items() if field.validation_alias is None}
    assert not [name for name in sorted(own) if not re.search(rf"{name}\b", told)]
