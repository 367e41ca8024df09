"""Pieces of text joined are the text of the whole, for every kind of tokenizer and every awkward character."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshnet_tokenizers import byte_fallback, byte_ids, byte_level, byte_written
from tokenizers import Tokenizer, decoders, models

from meshnet_node.text.detokenizer import CAP, Detokenizer

TEXTS = [
    pytest.param("你是谁？我是一个助手。", id="chinese (vllm 931)"),
    pytest.param("👩‍👩‍👧‍👦 🇫🇷 ❤️ 👍🏽", id="joined emoji, flags, selectors (mlx-swift-lm 612)"),
    pytest.param("안녕하세요 😀", id="korean and emoji (text-generation-inference 131)"),
    pytest.param("e\u0301 a\u0308 n\u0303", id="combining marks"),
    pytest.param("नमस्ते दुनिया", id="devanagari"),
    pytest.param("a\u00a0b\u2028c\ufffd d", id="odd blanks and a true U+FFFD"),
    pytest.param("  two  spaces\n\n\tand lines\n", id="blanks"),
]


def pieces(tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt or [])
    return [*(detokenizer.decode(id_) for id_ in ids), detokenizer.flush()]


@pytest.fixture(scope="module")
def smollm(demo_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(demo_folder / "tokenizer.json"))


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_joined_are_the_text_of_a_real_tokenizer(smollm: Tokenizer, text: str) -> None:
    found = pieces(smollm, smollm.encode(text, add_special_tokens=False).ids)
    assert "".join(found) == text
    assert sum("\ufffd" in piece for piece in found) == text.count("\ufffd")


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@pytest.mark.parametrize("text", TEXTS)
def test_one_byte_a_token(make: type[Tokenizer], text: str) -> None:
    tokenizer = make()
    prompt = byte_ids(tokenizer, b"x")
    assert "".join(pieces(tokenizer, byte_ids(tokenizer, text.encode()), prompt)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_a_prompt_may_end_anywhere_even_inside_a_character(text: str) -> None:
    tokenizer = byte_level()
    ids = byte_ids(tokenizer, text.encode())
    for cut in range(1, len(ids)):
        whole = text.encode()[:cut].decode(errors="ignore")
        if whole.endswith("\ufffd"):
            continue  # can't be told from half a character; the answer then begins with it again
        assert "".join(pieces(tokenizer, ids[cut:], ids[:cut])) == text[len(whole) :]


def test_the_space_before_the_first_word_depends_on_the_prompt() -> None:
    tokenizer = byte_fallback()
    paris, is_ = tokenizer.token_to_id("\u2581Paris"), tokenizer.token_to_id("\u2581is")
    prompt = tokenizer.encode("Hi").ids
    assert pieces(tokenizer, [paris, is_], prompt)[:2] == [" Paris", " is"]
    assert pieces(tokenizer, [paris, is_])[:2] == ["Paris", " is"]
    end = tokenizer.token_to_id("</s>")
    assert "".join(pieces(tokenizer, [paris, end, end, is_])) == "Paris is"


def test_broken_bytes_are_given_up_after_a_few_tokens() -> None:
    tokenizer = byte_level()
    detokenizer = Detokenizer(tokenizer)
    found = [detokenizer.decode(id_) for id_ in byte_ids(tokenizer, b"a" + b"\x80" * 12)]
    waits = [index for index, piece in enumerate(found) if piece]
    assert found[0] == "a"
    assert all(b - a <= CAP for a, b in itertools.pairwise(waits))
    assert len("".join(found)) >= 12 - CAP


def test_a_good_character_after_broken_bytes_survives() -> None:
    tokenizer = byte_level()
    data = b"a\xff" + "😀".encode() + b"b"
    assert "".join(pieces(tokenizer, byte_ids(tokenizer, data))) == "a\ufffd😀b"


def test_special_tokens_between_do_not_use_up_the_patience() -> None:
    tokenizer = byte_level()
    end = tokenizer.token_to_id("</s>")
    ids = [end] * 9 + byte_ids(tokenizer, "😀".encode())
    assert "".join(pieces(tokenizer, ids)) == "😀"


def test_an_answer_cut_inside_a_character_ends_in_a_replacement() -> None:
    tokenizer = byte_level()
    assert pieces(tokenizer, byte_ids(tokenizer, b"a\xe4\xbd"))[-1] == "\ufffd"


def test_tokens_that_all_end_inside_a_character_are_right_and_do_not_pile_up() -> None:
    # Each token holds the end of one character and the beginning of the next.
    first, second = byte_written("é".encode())
    vocab = {first: 0, second: 1, second + first: 2, "a": 3}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[(second, first)]))
    tokenizer.decoder = decoders.ByteLevel()
    detokenizer = Detokenizer(tokenizer)
    found = [detokenizer.decode(id_) for id_ in [0, *[2] * 500, 1]]
    assert found == ["", *["é"] * 501]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=24))
def test_any_bytes_give_the_same_text_as_all_at_once(data: bytes) -> None:
    tokenizer = byte_level()
    ids = byte_ids(tokenizer, data)
    assert len(ids) == len(data)
    assert "".join(pieces(tokenizer, ids)) == data.decode(errors="replace")
