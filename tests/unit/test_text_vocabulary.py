"""Each token's true bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from meshnet_tokenizers import byte_fallback, byte_ids, byte_level
from tokenizers import Tokenizer

from meshnet_node.text.vocabulary import Vocabulary

TEXT = "Ünïcode 你好 😀 the end\n"


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer, json.loads(tokenizer.to_str()))


def test_bytes_of_a_real_tokenizers_tokens_join_to_the_text(demo_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(demo_folder / "tokenizer.json"))
    words = vocabulary(tokenizer)
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert b"".join(words.token_bytes(id_) for id_ in ids) == TEXT.encode()


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_every_byte_is_itself(make: type[Tokenizer]) -> None:
    tokenizer = make()
    words = vocabulary(tokenizer)
    everything = bytes(range(256))
    assert b"".join(words.token_bytes(id_) for id_ in byte_ids(tokenizer, everything)) == everything


def test_blanks_and_added_tokens_stand_for_what_they_show() -> None:
    tokenizer = byte_fallback()
    words = vocabulary(tokenizer)
    assert words.token_bytes(tokenizer.token_to_id("\u2581Paris")) == b" Paris"
    assert words.token_bytes(tokenizer.token_to_id("</s>")) == b"</s>"
    assert words.is_special(tokenizer.token_to_id("</s>"))
    assert not words.is_special(tokenizer.token_to_id("<think>"))


def test_a_part_of_a_character_shows_as_a_replacement_and_an_unknown_id_as_nothing() -> None:
    tokenizer = byte_level()
    words = vocabulary(tokenizer)
    assert words.token_text(byte_ids(tokenizer, b"\xe4")[0]) == "\ufffd"
    assert words.token_bytes(10**6) == b""
