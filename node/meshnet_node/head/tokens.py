"""POST /tokenize, POST /detokenize, GET /tokenizer_info: the tokenizer as a service, as evaluation tools ask for it."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from meshnet_node.head.api import Api
from meshnet_node.head.messages import for_template
from meshnet_node.head.planning import check_ids
from meshnet_node.head.requests import DetokenizeRequest, TokenizeRequest


async def tokenize(api: Api, request: Request) -> Response:
    """Ids of a text or of a conversation, and how many they are."""
    api.authorize(request)
    fields = await api.read(request, TokenizeRequest)
    api.check_model(fields.model)
    return JSONResponse(await asyncio.to_thread(_tokenized, api, fields))


async def detokenize(api: Api, request: Request) -> Response:
    """The text of ids, special tokens included."""
    api.authorize(request)
    fields = await api.read(request, DetokenizeRequest)
    api.check_model(fields.model)
    check_ids(fields.tokens, api.text.vocab_size, "tokens")
    return JSONResponse({"prompt": api.text.decode(fields.tokens, skip_special=False)})


async def tokenizer_info(api: Api, request: Request) -> Response:
    """The tokenizer's configuration, its named special tokens and the chat template."""
    api.authorize(request)
    found = {**api.text.tokenizer_config, **api.text.special}
    return JSONResponse({**found, "chat_template": api.text.template_source})


def _tokenized(api: Api, fields: TokenizeRequest) -> dict[str, Any]:
    ids = _encode(api, fields)
    body: dict[str, Any] = {"count": len(ids), "max_model_len": api.backend.max_context, "tokens": ids}
    if fields.return_token_strs:
        body["token_strs"] = [api.text.vocabulary.token_text(id_) for id_ in ids]
    return body


def _encode(api: Api, fields: TokenizeRequest) -> list[int]:
    if fields.messages is not None:
        messages = for_template(fields.messages)
        return api.encode_chat(messages, dict(fields.chat_template_kwargs), prompt=fields.add_generation_prompt)
    return api.text.encode(fields.prompt or "", special=fields.add_special_tokens)
