"""What clients may ask: one strict model per route. Null means absent; unknown fields are ignored.

A description says what a field of several types must be, for the refusal of anything else.
Fields that would change the answer and are not honoured are refused in refusals.py. Ranges that depend on the model
(vocabulary, context) are checked in planning.py. Choices made here:

- top_p 0 is accepted and means greedy (some clients say so); temperature below 1e-5 is greedy too;
- logit_bias values beyond -100..100 are clamped; at most 1,024 of them;
- at most 16 stop strings of at most 1,024 characters;
- a seed is any signed 64-bit integer, -1 included.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from meshnet_node.head.messages import ChatMessage

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_BIASES = 1024
MAX_PROMPTS = 128
MAX_TOP_LOGPROBS = 20
MAX_TOP_K = 2**31 - 1

TokenId = Annotated[int, Field(ge=0)]


class Body(BaseModel):
    """Base of all request bodies and their parts."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else value


class StreamOptions(Body):
    """usage in a chunk of its own at the end; continuous_usage_stats also in every chunk before."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationFields(Body):
    """What chat and plain completions share."""

    model: str
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float = Field(default=1.0, ge=0, le=1)
    top_k: int = Field(default=0, ge=-1, le=MAX_TOP_K)
    min_p: float = Field(default=0.0, ge=0, le=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, gt=0)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    n: int = Field(default=1, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    min_tokens: int = Field(default=0, ge=0)
    stop: str | list[str] = Field(default_factory=list, description="a string or a list of strings")
    stop_token_ids: list[TokenId] = Field(default_factory=list, max_length=MAX_BIASES)
    ignore_eos: bool = False
    logit_bias: dict[str, float] = Field(default_factory=dict, max_length=MAX_BIASES)
    stream: bool = False
    stream_options: StreamOptions | None = None

    @field_validator("stop", mode="after")
    @classmethod
    def _stop_limits(cls, value: str | list[str]) -> list[str]:
        stops = [value] if isinstance(value, str) else value
        if len(stops) > MAX_STOPS:
            raise ValueError(f"at most {MAX_STOPS} stop strings are allowed")
        if any(not 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops):
            raise ValueError(f"a stop string needs 1 to {MAX_STOP_CHARACTERS} characters")
        return stops

    @property
    def stops(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @field_validator("logit_bias", mode="after")
    @classmethod
    def _biases(cls, value: dict[str, float]) -> dict[str, float]:
        if any(not (key.isascii() and key.isdigit() and len(key) < 12) for key in value):
            raise ValueError("each key must be a token id in decimal digits")
        return {key: max(-100.0, min(100.0, bias)) for key, bias in value.items()}

    @model_validator(mode="after")
    def _options_need_stream(self) -> GenerationFields:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed when stream is true")
        return self


class ChatRequest(GenerationFields):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MAX_TOP_LOGPROBS)
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @field_validator("messages", mode="after")
    @classmethod
    def _one_answer_at_most(cls, value: list[ChatMessage]) -> list[ChatMessage]:
        if [message.role for message in value[-2:]] == ["assistant", "assistant"]:
            raise ValueError("the conversation must not end with two assistant messages")
        return value

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs is only allowed when logprobs is true")
        return self


class CompletionRequest(GenerationFields):
    """POST /v1/completions; `prompts` gives the one or many prompts as a list.

    return_token_ids: each choice also carries `token_ids`, the ids whose text it holds (vLLM's extension).
    """

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]] = Field(
        description="a string, a list of strings, a list of token ids, or a list of such lists"
    )
    best_of: int = Field(default=1, ge=1)
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    return_token_ids: bool = False

    @property
    def prompts(self) -> list[str | list[int]]:
        """One entry per choice of the answer."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[id_ for id_ in self.prompt if isinstance(id_, int)]]
        return [prompt for prompt in self.prompt if not isinstance(prompt, int)]

    @field_validator("prompt", mode="after")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        if not value or any(prompt in ("", []) for prompt in value):
            raise ValueError("a prompt must not be empty")
        if not isinstance(value, str) and not isinstance(value[0], int) and len(value) > MAX_PROMPTS:
            raise ValueError(f"at most {MAX_PROMPTS} prompts are allowed in a request")
        return value


class TokenizeRequest(Body):
    """POST /tokenize: a text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(default=None, min_length=1)
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeRequest(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[TokenId]
