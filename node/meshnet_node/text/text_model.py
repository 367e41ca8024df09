"""The text half of a model folder: tokenizer, chat template, end tokens and defaults. Reads no weights.

Files read: tokenizer.json, tokenizer_config.json, special_tokens_map.json, chat_template.jinja, config.json,
generation_config.json; only the first must be there. Must not know HTTP or shards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from meshnet_node.errors import ModelError
from meshnet_node.text.aside import encode_aside
from meshnet_node.text.control import ControlStrings
from meshnet_node.text.detokenizer import Detokenizer
from meshnet_node.text.template import ChatTemplate, Message, TemplateRefused
from meshnet_node.text.vocabulary import Vocabulary

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TextModel:
    """Text to ids and back for one model. All methods may be called from several threads at once.

    eos_ids: each ends an answer. vocab_size: ids below it exist in the model. temperature: the model's own default,
    None where it states none. max_positions: what the model was made for, None where it does not say.
    """

    def __init__(
        self, tokenizer: Tokenizer, files: Mapping[str, Any], template: str | None, *, fold_system: bool = False
    ) -> None:
        """`files`: parsed JSON by file name; use `load` to read a folder."""
        self._fold_system = fold_system
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.tokenizer_config: dict[str, Any] = dict(files["tokenizer_config.json"])
        config = files["config.json"]
        config = {**config, **(config.get("text_config") or {})}
        generation = files["generation_config.json"]
        self.special = _special_tokens(files["special_tokens_map.json"], self.tokenizer_config)
        self.vocab_size = int(config.get("vocab_size") or tokenizer.get_vocab_size())
        self.max_positions: int | None = config.get("max_position_embeddings")
        self.temperature: float | None = generation.get("temperature")
        self.eos_ids = (
            _ids(generation.get("eos_token_id")) | _ids(config.get("eos_token_id")) | self._named("eos_token")
        )
        self._bos = self._named("bos_token")
        self.vocabulary = Vocabulary(tokenizer, files["tokenizer.json"])
        self.template_source = template
        self.template = None if template is None else ChatTemplate(template, self.special)
        self._control = ControlStrings(tokenizer, "" if self.template is None else self.template.literals)

    @classmethod
    def load(cls, folder: Path, *, fold_system: bool = False) -> TextModel:
        """Reads a model folder. fold_system: where the template takes no system message, its text is put before the
        first user message. Raises ModelError that names the file which is missing or wrong.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{folder} has no tokenizer.json: the head needs the fast tokenizer's file")
        names = ("tokenizer_config.json", "special_tokens_map.json", "config.json", "generation_config.json")
        files: dict[str, Any] = {name: _read_json(folder / name) for name in names}
        files["tokenizer.json"] = _read_json(path)
        if not isinstance(files["tokenizer.json"].get("model"), dict):
            raise ModelError(f"{path} describes no tokenizer model")
        tokenizer = Tokenizer.from_file(str(path))
        try:
            template = _template_source(folder, files["tokenizer_config.json"])
            return cls(tokenizer, files, template, fold_system=fold_system)
        except TemplateRefused as error:
            raise ModelError(f"{folder}: {error}") from error

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of raw text. `special`: with the tokens that the tokenizer puts around a text; BOS is never doubled."""
        ids = encode_aside(self.tokenizer, text, special=special)
        doubled = special and len(ids) > 1 and ids[0] == ids[1] and ids[0] in self._bos
        return ids[1:] if doubled else ids

    def encode_chat(
        self, messages: Sequence[Message], options: Mapping[str, Any] | None = None, *, prompt: bool = True
    ) -> list[int]:
        """Ids of a conversation, as the model's template writes it; control strings in messages stay plain text.

        Raises TemplateRefused (also where the model has no template) and ControlStringRefused.
        """
        options = options or {}
        if self.template is None:
            raise TemplateRefused("this model has no chat template; use /v1/completions")
        if not self._control.occur_in([*messages, dict(options)]):
            return encode_aside(self.tokenizer, self._render(messages, options, prompt), special=False)
        marked = [self._control.mark(message, keep_markup=message["role"] == "assistant") for message in messages]
        return self._control.encode(self._render(marked, self._control.mark(dict(options)), prompt))

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of a whole sequence."""
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special)

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer:
        """A decoder for the tokens that follow `prompt`."""
        return Detokenizer(self.tokenizer, prompt)

    def _render(self, messages: Sequence[Message], options: Mapping[str, Any], prompt: bool) -> str:
        if self.template is None:
            raise TemplateRefused("this model has no chat template")
        others = [_one_system_message(messages)]
        if self._fold_system:
            others.append(_folded(others[0]))
        try:
            return self.template.render(messages, options, prompt=prompt)
        except TemplateRefused as refused:
            for other in others:
                if other == list(messages):
                    continue
                with suppress(TemplateRefused):
                    return self.template.render(other, options, prompt=prompt)
            raise refused from None

    def _named(self, name: str) -> frozenset[int]:
        id_ = self.tokenizer.token_to_id(self.special.get(name, ""))
        return frozenset() if id_ is None else frozenset({id_})


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where the file is absent."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return value


def _template_source(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The template's own file wins over the one in tokenizer_config.json, which may be a list of named ones."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source = tokenizer_config.get("chat_template")
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in source}
        source = named.get("default")
    return source if isinstance(source, str) else None


def _special_tokens(*configs: Mapping[str, Any]) -> dict[str, str]:
    """The named special tokens, as templates see them; later configs win."""
    found: dict[str, str] = {}
    for config in configs:
        for name in _NAMED:
            token = config.get(name)
            content = token.get("content") if isinstance(token, dict) else token
            if isinstance(content, str):
                found[name] = content
    return found


def _ids(value: Any) -> frozenset[int]:
    """End tokens as configs state them: an id, a list of ids, or nothing."""
    if isinstance(value, int):
        return frozenset({value})
    return frozenset(value) if isinstance(value, list) else frozenset()


def _folded(messages: Sequence[Message]) -> list[Message]:
    """The system message, which is the first, as the beginning of the first user message."""
    system = [str(message["content"]) for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    at = next((index for index, message in enumerate(rest) if message["role"] == "user"), None)
    if not system or at is None:
        return list(messages)
    rest[at] = {**rest[at], "content": "\n\n".join([*system, str(rest[at]["content"])])}
    return rest


def _one_system_message(messages: Sequence[Message]) -> list[Message]:
    """All system messages as one at the front, for templates that take only one."""
    system = [message for message in messages if message["role"] == "system"]
    if len(system) < 2:
        return list(messages)
    content = "\n\n".join(str(message["content"]) for message in system)
    return [{"role": "system", "content": content}, *(m for m in messages if m["role"] != "system")]
