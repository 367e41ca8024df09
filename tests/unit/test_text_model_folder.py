"""What is read from a model folder, and what is said when it is not right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meshnet_tokenizers import byte_fallback, byte_level
from tokenizers import processors

from meshnet_node.errors import ModelError
from meshnet_node.text.template import TemplateRefused
from meshnet_node.text.text_model import TextModel

SIMPLE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
ONE_SYSTEM = (
    "{% for m in messages if m.role == 'system' %}{% if not loop.first %}{{ raise_exception('one') }}{% endif %}"
)
ONE_SYSTEM += "{% endfor %}" + SIMPLE


def folder(path: Path, template: str | None = None, **files: dict[str, Any]) -> Path:
    """A model folder with a byte-level tokenizer."""
    byte_level().save(str(path / "tokenizer.json"))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return path


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config": {"eos_token_id": 5}}, {5}),
        ({"generation_config": {"eos_token_id": [5, 6]}, "config": {"eos_token_id": 7}}, {5, 6, 7}),
        ({"config": {"text_config": {"eos_token_id": 8, "vocab_size": 9}}}, {8}),
        ({"tokenizer_config": {"eos_token": {"content": "</s>"}}}, {257}),
        ({}, set()),
    ],
)
def test_end_tokens_come_from_all_configs(tmp_path: Path, files: dict[str, Any], expected: set[int]) -> None:
    assert TextModel.load(folder(tmp_path, **files)).eos_ids == expected


def test_defaults_of_the_model(tmp_path: Path) -> None:
    config = {"vocab_size": 999, "max_position_embeddings": 64}
    model = TextModel.load(folder(tmp_path, config=config, generation_config={"temperature": 0.6}))
    assert (model.vocab_size, model.max_positions, model.temperature) == (999, 64, 0.6)


def test_the_templates_file_wins_and_a_list_of_templates_has_a_default(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": SIMPLE}]
    path = folder(tmp_path, tokenizer_config={"chat_template": named})
    assert TextModel.load(path).template_source == SIMPLE
    (path / "chat_template.jinja").write_text("other")
    assert TextModel.load(path).template_source == "other"


def test_without_a_template_chat_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(TemplateRefused, match="/v1/completions"):
        TextModel.load(folder(tmp_path)).encode_chat([{"role": "user", "content": "x"}])


def test_system_messages_are_merged_only_where_the_template_takes_one(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "A"},
        {"role": "user", "content": "B"},
        {"role": "system", "content": "C"},
    ]
    many = TextModel.load(folder(tmp_path, SIMPLE))
    assert many.decode(many.encode_chat(messages)) == "[system]A[user]B[system]C"
    one = TextModel.load(folder(tmp_path, ONE_SYSTEM))
    assert one.decode(one.encode_chat(messages)) == "[system]A\n\nC[user]B"


def test_the_beginning_token_is_never_doubled(tmp_path: Path) -> None:
    tokenizer = byte_fallback()
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    path = folder(tmp_path, "{{ bos_token }}x", tokenizer_config={"bos_token": "<s>"})
    tokenizer.save(str(path / "tokenizer.json"))
    model = TextModel.load(path)
    assert model.encode("a")[0] == bos
    assert model.encode("<s>a").count(bos) == 1
    assert model.encode("a", special=False).count(bos) == 0
    assert model.encode_chat([{"role": "user", "content": ""}]).count(bos) == 1


def test_truncation_and_padding_in_the_file_have_no_effect(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=10)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert len(TextModel.load(tmp_path).encode("abcdef")) == 6


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", "[]", "JSON object"),
        ("tokenizer.json", "{}", "no tokenizer model"),
        ("config.json", "{", "not readable JSON"),
        ("chat_template.jinja", "{% if %}", "not valid"),
    ],
)
def test_a_wrong_folder_is_told_by_file(tmp_path: Path, name: str, content: str | None, words: str) -> None:
    path = folder(tmp_path)
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_text(content)
    with pytest.raises(ModelError, match=words):
        TextModel.load(path)
