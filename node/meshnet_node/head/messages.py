"""Chat messages: what is accepted, and how each is handed to a template.

Templates differ in what they can take, so they get a normal form: `developer` is `system`, `function` is `tool`, text
parts are one string, absent content is the empty string (never "None"), empty tool_calls are absent, and the arguments
of a call are an object. Must not know templates or HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_ROLES = {"developer": "system", "function": "tool"}
_MAY_BE_SILENT = ("assistant", "tool", "function")


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else value


class FunctionCall(_Part):
    """`arguments` is JSON in a string, as the model wrote it."""

    name: str
    arguments: str = ""


class ToolCall(_Part):
    """A call in an earlier turn of the assistant."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(_Part):
    """One message. `content` is joined text after validation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list)
    tool_call_id: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _joined(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return "".join(_text_of(part) for part in value)

    @model_validator(mode="after")
    def _needs_content(self) -> ChatMessage:
        if self.content is None and self.role not in _MAY_BE_SILENT:
            raise ValueError("a message of this role needs content")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as templates expect it; no value is None."""
        content = self.content if self.content is not None else self.refusal or ""
        message: dict[str, Any] = {"role": _ROLES.get(self.role, self.role), "content": content}
        optional = {
            "name": self.name,
            "reasoning_content": self.reasoning_content or self.reasoning,
            "tool_call_id": self.tool_call_id,
            "tool_calls": [_call(call) for call in self.tool_calls] or None,
        }
        return message | {name: value for name, value in optional.items() if value is not None}


def for_template(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """All messages in the templates' normal form."""
    return [message.for_template() for message in messages]


def _text_of(part: Any) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(part, dict) and part.get("type") == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    raise ValueError("only parts of type text are supported")


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": _arguments(call.function.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _arguments(written: str) -> Any:
    """The object that was written; a string that is no JSON object stays what it is, nothing and null are empty."""
    try:
        value = json.loads(written) if written.strip() else {}
    except (ValueError, RecursionError):
        return written
    if value is None:
        return {}
    return value if isinstance(value, dict) else written
