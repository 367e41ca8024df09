"""The challenge of a hello: who is let in, and what can't be replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshnet_node.errors import BadFrame, ConfigError, Unauthorized
from meshnet_node.wire import handshake
from meshnet_node.wire.frames import Challenge, Hello, Proof

NONCE = bytes(range(32))


def hello(instance: str = "head-1") -> Hello:
    return Hello(instance=instance, nonce=NONCE)


def head_proof(token: bytes, first: Hello, asked: Challenge) -> Proof:
    return Proof(handshake.proof(token, "head", first, asked))


def test_both_sides_prove_the_same_token() -> None:
    asked = handshake.challenge([b"secret"], hello(), "shard-1")
    assert handshake.verify(asked.proof, b"secret", "shard", hello(), asked)
    handshake.admit([b"secret"], hello(), asked, head_proof(b"secret", hello(), asked))


def test_any_token_of_the_file_is_accepted_and_the_first_proves() -> None:
    asked = handshake.challenge([b"new", b"old"], hello(), "shard-1")
    assert handshake.verify(asked.proof, b"new", "shard", hello(), asked)
    handshake.admit([b"new", b"old"], hello(), asked, head_proof(b"old", hello(), asked))


@pytest.mark.parametrize("token", [b"other", b"", b"secre", b"secret "], ids=["other", "empty", "shorter", "longer"])
def test_another_token_is_refused(token: bytes) -> None:
    asked = handshake.challenge([b"secret"], hello(), "shard-1")
    assert not handshake.verify(asked.proof, token, "shard", hello(), asked)
    with pytest.raises(Unauthorized):
        handshake.admit([b"secret"], hello(), asked, head_proof(token, hello(), asked))


def test_a_proof_is_of_no_use_elsewhere() -> None:
    first = handshake.challenge([b"secret"], hello(), "shard-1")
    second = handshake.challenge([b"secret"], hello(), "shard-1")
    assert first.nonce != second.nonce
    given = head_proof(b"secret", hello(), first)
    for other_hello, other in ((hello(), second), (hello("head-2"), first)):
        with pytest.raises(Unauthorized):
            handshake.admit([b"secret"], other_hello, other, given)
    with pytest.raises(Unauthorized, match="another token"):
        handshake.admit([b"secret"], hello(), first, Proof(first.proof))


def test_instances_can_not_be_shifted_into_each_other() -> None:
    left = Challenge(instance="bc", nonce=NONCE, proof=b"")
    right = Challenge(instance="c", nonce=NONCE, proof=b"")
    one = handshake.proof(b"t", "head", hello("a"), left)
    other = handshake.proof(b"t", "head", hello("ab"), right)
    assert one != other


@pytest.mark.parametrize(
    "frame",
    [
        Hello(instance="head", nonce=NONCE, wire=2),
        Hello(instance="head", nonce=b"short"),
        Hello(instance="", nonce=NONCE),
        Hello(instance="h" * 129, nonce=NONCE),
    ],
    ids=["wire version", "nonce", "no instance", "long instance"],
)
def test_a_hello_out_of_form_is_a_bad_frame(frame: Hello) -> None:
    with pytest.raises(BadFrame):
        handshake.challenge([b"secret"], frame, "shard-1")


def test_token_file_holds_one_token_a_line(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("new\n\n  old  \n")
    tokens = handshake.TokenFile(path)
    assert tokens.configured
    assert tokens.tokens == (b"new", b"old")
    assert not tokens.reload()
    path.write_text("newer\nnew\n")
    assert tokens.reload()
    assert tokens.tokens == (b"newer", b"new")


def test_reload_keeps_the_tokens_when_the_file_becomes_unusable(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    tokens = handshake.TokenFile(path)
    path.write_text("")
    assert not tokens.reload()
    path.unlink()
    assert not tokens.reload()
    assert tokens.tokens == (b"one",)


@pytest.mark.parametrize("content", [None, "", "\n \n"], ids=["missing", "empty", "blank"])
def test_a_token_file_without_a_token_is_a_config_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match="MESHNET_TOKEN_FILE"):
        handshake.TokenFile(path)


def test_without_a_file_the_key_is_empty() -> None:
    tokens = handshake.TokenFile(None)
    assert not tokens.configured
    assert tokens.tokens == (b"",)
