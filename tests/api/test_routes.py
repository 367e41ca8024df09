"""The routes beside the answers, and what is said where there is no route."""

from __future__ import annotations

import pytest
from meshnet_heads import CHAT, MODEL, Heads
from meshnet_serving import raw_request

from meshnet_node.errors import ConfigError
from meshnet_node.settings import HeadSettings, load


async def test_models_as_menus_need_them(heads: Heads) -> None:
    head = await heads.start(max_context=123)
    listed = (await head.get("/v1/models")).json()
    assert listed["object"] == "list"
    card = listed["data"][0]
    assert (card["id"], card["object"], card["owned_by"], card["max_model_len"]) == (MODEL, "model", "meshnet", 123)
    assert isinstance(card["created"], int)
    assert (await head.get("/v1/models/" + MODEL)).json() == card
    assert [model.id async for model in head.client.models.list()] == [MODEL]


async def test_a_models_name_may_hold_slashes(heads: Heads) -> None:
    head = await heads.start(served_name="org/some-model")
    assert (await head.client.models.retrieve("org/some-model")).id == "org/some-model"
    assert (await head.get("/v1/models/org/some-model")).status == 200
    reply = await head.get("/v1/models/org/other")
    assert (reply.status, reply.json()["error"]["code"]) == (404, "model_not_found")


async def test_without_a_served_name_the_folders_is_taken(heads: Heads) -> None:
    head = await heads.start(served_name=None)
    assert (await head.get("/v1/models")).json()["data"][0]["id"] == "smollm2"


@pytest.mark.parametrize(
    ("chain", "table", "ready", "readyz"), [(True, True, 200, 200), (False, True, 503, 200), (False, False, 503, 503)]
)
async def test_health_is_the_process_and_ready_the_chain(
    heads: Heads, chain: bool, table: bool, ready: int, readyz: int
) -> None:
    head = await heads.start(chain=chain, table=table)
    assert [(await head.get(path)).status for path in ("/health", "/healthz")] == [200, 200]
    reply = await head.get("/ready")
    assert (reply.status, (await head.get("/readyz")).status) == (ready, readyz)
    if ready == 503:
        assert (reply.json()["error"]["code"], reply.headers["retry-after"]) == ("not_ready", "5")


async def test_version_and_mesh(heads: Heads) -> None:
    head = await heads.start()
    assert (await head.get("/version")).json()["version"]
    assert (await head.get("/mesh")).json() == {"shards": [], "leaving": False}


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/embeddings"), ("GET", "/"), ("GET", "/docs"), ("GET", "/openapi.json"), ("POST", "/v1/responses")],
)
async def test_an_unknown_route_is_404_in_the_apis_own_shape(heads: Heads, method: str, path: str) -> None:
    head = await heads.start()
    reply = await raw_request(head.port, method, path)
    assert (reply.status, reply.json()["error"]["type"]) == (404, "invalid_request_error")
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(("method", "path"), [("GET", CHAT), ("DELETE", "/v1/models"), ("POST", "/health")])
async def test_a_wrong_method_is_405(heads: Heads, method: str, path: str) -> None:
    head = await heads.start()
    reply = await raw_request(head.port, method, path)
    assert (reply.status, reply.json()["error"]["code"]) == (405, "method_not_allowed")
    assert reply.headers["allow"]


@pytest.mark.parametrize("path", ["/v1/models/", "//v1/models", "/v1//models"])
async def test_doubled_and_trailing_slashes_mean_nothing(heads: Heads, path: str) -> None:
    head = await heads.start()
    assert (await head.get(path)).json()["object"] == "list"


async def test_tokens_both_ways(heads: Heads) -> None:
    head = await heads.start(max_context=77)
    text = "Grüße <|im_end|> 😀"
    body = (await head.post("/tokenize", {"model": MODEL, "prompt": text, "return_token_strs": True})).json()
    assert (body["count"], body["max_model_len"]) == (len(body["tokens"]), 77)
    assert body["tokens"] == heads.text.encode(text)
    assert len(body["token_strs"]) == body["count"]
    back = await head.post("/detokenize", {"model": MODEL, "tokens": body["tokens"]})
    assert back.json() == {"prompt": text}


async def test_tokens_of_a_conversation(heads: Heads) -> None:
    head = await heads.start()
    messages = [{"role": "user", "content": "Hi"}]
    asked = (await head.post("/tokenize", {"messages": messages})).json()["tokens"]
    assert asked == heads.text.encode_chat(messages)
    closed = (await head.post("/tokenize", {"messages": messages, "add_generation_prompt": False})).json()["tokens"]
    assert asked[: len(closed)] == closed
    assert len(closed) < len(asked)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}),
        ("/tokenize", {"prompt": 5}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {"tokens": ["a"]}),
    ],
)
async def test_wrong_bodies_of_the_token_routes(heads: Heads, path: str, body: dict[str, object]) -> None:
    assert (await (await heads.start()).post(path, body)).status == 400


async def test_what_evaluation_tools_ask_of_the_tokenizer(heads: Heads) -> None:
    body = (await (await heads.start()).get("/tokenizer_info")).json()
    assert (body["eos_token"], body["bos_token"]) == ("<|im_end|>", "<|im_start|>")
    assert "add_generation_prompt" in body["chat_template"]


@pytest.mark.parametrize(
    ("origins", "allowed"), [("https://a.example, https://b.example:8443", True), ("*", True), ("", False)]
)
async def test_pages_of_named_origins_may_call_and_read_errors(heads: Heads, origins: str, allowed: bool) -> None:
    head = await heads.start(cors_origins=origins)
    asked = {"origin": "https://b.example:8443", "access-control-request-method": "POST"}
    asked["access-control-request-headers"] = "authorization, content-type, x-stainless-os"
    preflight = await raw_request(head.port, "OPTIONS", CHAT, b"", asked)
    assert (preflight.status == 200) is allowed
    refused = await head.post(CHAT, {}, {"origin": "https://b.example:8443"})
    assert refused.status == 400
    for reply in (preflight, refused):
        assert ("access-control-allow-origin" in reply.headers) is allowed
    stranger = await raw_request(head.port, "OPTIONS", CHAT, b"", {**asked, "origin": "https://c.example"})
    assert (stranger.status == 200) is (origins == "*")


def test_an_origin_with_a_path_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"MESHNET_CORS_ORIGINS: .*no origin"):
        load(HeadSettings, {"model": "m", "routes": "r", "cors_origins": "https://a.example/page"})


async def test_clients_are_told_not_to_send_again_what_would_be_refused_again(heads: Heads) -> None:
    head = await heads.start()
    assert (await head.chat(temperature=9)).headers["x-should-retry"] == "false"
    assert (await head.get("/v1/models/another")).headers["x-should-retry"] == "false"
