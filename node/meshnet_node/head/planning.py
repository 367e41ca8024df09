"""From a validated request and its prompt's ids to a GenerationRequest: the rules that depend on the model.

Pure: values to values. The seed is minted here when the client gives none, once per generation, so that equal prompts
get different answers.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from meshnet_node.errors import ApiError
from meshnet_node.head.backend import GenerationRequest
from meshnet_node.head.requests import ChatRequest, CompletionRequest, GenerationFields
from meshnet_node.text.text_model import TextModel
from meshnet_node.wire.frames import Sampling

COMPLETION_TOKENS = 16
WHOLE_ANSWER_HOLD = 45.0


def plan_chat(
    request: ChatRequest, prompt: Sequence[int], text: TextModel, max_context: int, key: str
) -> GenerationRequest:
    """Raises ApiError 400."""
    wanted = request.max_completion_tokens or request.max_tokens
    logprobs = request.top_logprobs if request.logprobs else -1
    return _plan(request, prompt, text, max_context, key, wanted, logprobs)


def plan_completion(
    request: CompletionRequest, prompt: Sequence[int], text: TextModel, max_context: int, key: str
) -> GenerationRequest:
    """Raises ApiError 400."""
    logprobs = -1 if request.logprobs is None else request.logprobs
    wanted = request.max_tokens or COMPLETION_TOKENS
    scored = request.echo and request.logprobs is not None
    return _plan(request, prompt, text, max_context, key, wanted, logprobs, prompt_scores=scored)


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises ApiError 400 when an id does not exist in the model."""
    if ids and max(ids) >= vocab_size:
        raise ApiError(f"{param}: token ids must be below {vocab_size}, the size of the vocabulary", param=param)


def _plan(
    request: GenerationFields,
    prompt: Sequence[int],
    text: TextModel,
    max_context: int,
    key: str,
    wanted: int | None,
    logprobs: int,
    *,
    prompt_scores: bool = False,
) -> GenerationRequest:
    room = max_context - len(prompt)
    if not prompt:
        raise ApiError("the prompt has no tokens", param="prompt")
    if room < 1:
        raise _overflow(len(prompt), wanted or 1, max_context)
    new_tokens = min(wanted or room, room)
    if request.min_tokens > new_tokens:
        raise ApiError(f"min_tokens: must not exceed the {new_tokens} tokens of the answer", param="min_tokens")
    check_ids(request.stop_token_ids, text.vocab_size, "stop_token_ids")
    eos = frozenset() if request.ignore_eos else text.eos_ids
    return GenerationRequest(
        prompt=tuple(prompt),
        max_new_tokens=new_tokens,
        sampling=_sampling(request, text, len(prompt), logprobs),
        stop_ids=eos | frozenset(request.stop_token_ids),
        min_tokens=request.min_tokens,
        prompt_scores=prompt_scores,
        key=key,
        max_hold=None if request.stream else WHOLE_ANSWER_HOLD,
    )


def _sampling(request: GenerationFields, text: TextModel, start: int, logprobs: int) -> Sampling:
    temperature = request.temperature
    if temperature is None:
        temperature = 1.0 if text.temperature is None else text.temperature
    bias = {int(key): value for key, value in request.logit_bias.items()}
    check_ids(list(bias), text.vocab_size, "logit_bias")
    greedy = request.top_p == 0
    return Sampling(
        temperature=0.0 if greedy else temperature,
        top_p=1.0 if greedy else request.top_p,
        top_k=max(0, request.top_k),
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias=bias,
        seed=secrets.randbits(64) if request.seed is None else request.seed % 2**64,
        gen_start=start,
        logprobs=logprobs,
    )


def _overflow(prompt: int, wanted: int, max_context: int) -> ApiError:
    # Clients recognise the code, or the words of the first sentence: both are part of the contract.
    return ApiError(
        f"This model's maximum context length is {max_context} tokens. However, you requested {prompt + wanted} tokens "
        f"({prompt} in the prompt, {wanted} in the completion). Please reduce the length of the prompt.",
        code="context_length_exceeded",
        param="messages",
    )
