"""Keeps text of clients from becoming control tokens.

A prompt is rendered as one string, in which the template's own end-of-turn marker and the same characters typed by
a user look alike. So control strings in what clients sent are wrapped in two noncharacters before rendering; then the
unwrapped ones, which the template wrote, are replaced by aliases, and the string is encoded in one go by a twin of the
tokenizer that knows the aliases and not the control tokens. Everything else in the string is tokenized exactly as it
would be otherwise: no piece is encoded apart from its neighbours. Without control strings in the messages nothing of
this happens and the plain rendering is encoded.

The noncharacters (U+FDD0 to U+FDD2) are not text; where a client sends them beside a control string, they are dropped.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizers import AddedToken, Tokenizer

from meshnet_node.errors import MeshnetError
from meshnet_node.text.aside import encode_aside

_OPEN, _SHUT, _ALIAS = "\ufdd0", "\ufdd1", "\ufdd2"
_MARKS = re.compile(f"[{_OPEN}{_SHUT}{_ALIAS}]")


class ControlStringRefused(MeshnetError):
    """The text can't be encoded without making a control token of it."""


class ControlStrings:
    """The control strings of one tokenizer and template, and the twin that does not know them."""

    def __init__(self, tokenizer: Tokenizer, literals: str) -> None:
        """`literals`: the template's own text.

        Special tokens are control tokens, and so are other added tokens that the template writes, save blanks, which
        some vocabularies have as added tokens.
        """
        added = list(tokenizer.get_added_tokens_decoder().values())
        self._special = {token.content for token in added if token.special}
        written = {token.content for token in added if token.content in literals and not token.content.isspace()}
        self._control = sorted(self._special | written, key=len, reverse=True)
        self._control_ids = {tokenizer.token_to_id(content) for content in self._control}
        self._any = _either(self._control)
        self._only_special = _either(sorted(self._special, key=len, reverse=True))
        self._rendered = re.compile(f"{_OPEN}(?:{self._any.pattern}){_SHUT}|{self._any.pattern}|[{_OPEN}{_SHUT}]")
        self._tokenizer = tokenizer
        self._twin: tuple[Tokenizer, dict[str, str], dict[int, int]] | None = None

    def occur_in(self, value: Any) -> bool:
        """True when a string anywhere in `value` (a JSON value) holds a control string."""
        if isinstance(value, str):
            return self._any.search(value) is not None
        if isinstance(value, dict):
            return any(self.occur_in(item) for item in value.values())
        return isinstance(value, list) and any(self.occur_in(item) for item in value)

    def mark(self, value: Any, *, keep_markup: bool = False) -> Any:
        """`value` with the control strings in its strings wrapped.

        keep_markup: only special tokens, for the assistant's own earlier turns, whose thinking or calls may hold the
        template's markup.
        """
        if isinstance(value, str):
            pattern = self._only_special if keep_markup else self._any
            return pattern.sub(lambda match: f"{_OPEN}{match[0]}{_SHUT}", _MARKS.sub("", value))
        if isinstance(value, dict):
            return {key: self.mark(item, keep_markup=keep_markup) for key, item in value.items()}
        if isinstance(value, list):
            return [self.mark(item, keep_markup=keep_markup) for item in value]
        return value

    def encode(self, rendered: str) -> list[int]:
        """Token ids of a string rendered from marked values. Raises ControlStringRefused."""
        if self._twin is None:
            self._twin = self._make_twin()
        twin, aliases, ids = self._twin

        def replace(match: re.Match[str]) -> str:
            found = match[0]
            return found.strip(_OPEN + _SHUT) if found[0] in (_OPEN, _SHUT) else aliases[found]

        encoded = encode_aside(twin, self._rendered.sub(replace, rendered), special=False)
        if not self._control_ids.isdisjoint(id_ for id_ in encoded if id_ not in ids):
            # Some vocabularies hold their control tokens as ordinary words too.
            raise ControlStringRefused("a message holds a control token of the model that can't be written as text")
        return [ids.get(id_, id_) for id_ in encoded]

    def _make_twin(self) -> tuple[Tokenizer, dict[str, str], dict[int, int]]:
        """The twin, alias by control string, and this tokenizer's id by the twin's where the two differ."""
        description = json.loads(self._tokenizer.to_str())
        known = description["added_tokens"]
        description["added_tokens"] = []
        description["post_processor"] = None
        twin = Tokenizer.from_str(json.dumps(description))
        aliases: dict[str, str] = {}
        ids: dict[int, int] = {}
        for number, token in enumerate(known):
            content = token["content"]
            alias = content
            if content in self._control:
                alias = aliases[content] = f"{_ALIAS}{number}{_ALIAS}"
            flags = {name: token[name] for name in ("single_word", "lstrip", "rstrip", "normalized")}
            added = AddedToken(alias, special=token["special"], **flags)
            twin.add_special_tokens([added]) if token["special"] else twin.add_tokens([added])
            twin_id = twin.token_to_id(alias)
            if twin_id is not None:
                ids[twin_id] = token["id"]
        return twin, aliases, ids


def _either(strings: list[str]) -> re.Pattern[str]:
    """Matches any of `strings`, the first in the list where several would match; never, where there is none."""
    return re.compile("|".join(map(re.escape, strings)) or r"(?!)")
