"""Fields that would change the answer and are not honoured: refused by name, never ignored in silence.

Everything else that is unknown is ignored, and its name is logged once. Values that ask for nothing (null, false, 0, an
empty string, list or object) are never refused.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from meshnet_node.errors import ApiError
from meshnet_node.logs import events

_log = events(__name__)

_NOT_YET = "is not supported"

# Values besides the empty ones that change nothing.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("none",),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "best_of": (1,),
    "n": (1,),
    "typical_p": (1, 1.0),
    "tfs_z": (1, 1.0),
    "length_penalty": (1, 1.0),
    "top_a": (0,),
    "mirostat": (0,),
    "truncate_prompt_tokens": (-1,),
}

_REFUSED = frozenset(_HARMLESS) | {
    "tools", "functions", "audio", "web_search_options", "suffix", "documents", "chat_template",
    "continue_final_message", "use_beam_search", "bad_words", "allowed_token_ids", "logits_processors",
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar", "json_schema",
    "dry_multiplier", "xtc_probability", "dynatemp_range", "prompt_logprobs", "include_stop_str_in_output",
    "thinking", "prompt_embeds",
}  # fmt: skip

# Empty, these still ask for something: any JSON.
_SCHEMAS = ("guided_json", "json_schema")

# True is what happens anyway; false would change the answer.
_MUST_NOT_BE_FALSE = ("skip_special_tokens", "add_generation_prompt")


def refuse_unsupported(body: dict[str, Any], known: Container[str], also: frozenset[str] = frozenset()) -> None:
    """Raises ApiError 400 with the field's name for the first field that can't be honoured.

    known: the fields of this route. also: names that this route does not honour, though another does.
    """
    refused = _REFUSED | also
    for name, value in body.items():
        if name in _MUST_NOT_BE_FALSE and value is False and name not in known:
            raise ApiError(f"{name}: false {_NOT_YET}", param=name, code="unsupported_parameter")
        asked = value or (name in _SCHEMAS and value == {})
        if name in refused and asked and not _harmless(name, value):
            raise ApiError(f"{name}: this value {_NOT_YET}", param=name, code="unsupported_parameter")


def _harmless(name: str, value: Any) -> bool:
    # A wrong type or a bad range (n: true, n: -1) is left to the request's model, which says what is wrong.
    if name in ("n", "best_of"):
        return isinstance(value, bool) or not isinstance(value, int) or value < 1 or value == 1
    return any(type(value) is type(allowed) and value == allowed for allowed in _HARMLESS.get(name, ()))


class UnknownFields:
    """Logs the name of each ignored field once; clients choose the names, so their number is bounded."""

    def __init__(self, limit: int = 100) -> None:
        self._seen: set[str] = set()
        self._limit = limit

    def note(self, names: Iterable[str]) -> None:
        """These fields were ignored."""
        for name in names:
            if name not in self._seen and len(self._seen) < self._limit and len(name) <= 64:
                self._seen.add(name)
                _log.info("field_ignored", field=name)
