"""The HTTP API of a head: routes and how errors leave it. All work is in the modules that the routes name."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from meshnet_node.errors import ApiError
from meshnet_node.head.api import Api
from meshnet_node.head.api_metrics import ApiMetrics
from meshnet_node.head.auth import Keys
from meshnet_node.head.backend import Backend
from meshnet_node.head.chat import chat_completions
from meshnet_node.head.completions import completions
from meshnet_node.head.edge import Edge, error_response
from meshnet_node.head.gate import Gate
from meshnet_node.head.replies import model_card
from meshnet_node.head.tokens import detokenize, tokenize, tokenizer_info
from meshnet_node.metrics import exposition, new_registry
from meshnet_node.settings import HeadSettings
from meshnet_node.text.text_model import TextModel

Handler = Callable[[Api, Request], Awaitable[Response]]


def create_app(
    settings: HeadSettings, text: TextModel, backend: Backend, registry: CollectorRegistry | None = None
) -> FastAPI:
    """The app. `registry`: where the mesh has its own metrics. Raises ConfigError (API keys' file).

    The caller owns the backend and closes it after the server has stopped.
    """
    name = served_name(settings)
    metrics = ApiMetrics(registry or new_registry(), name)
    gate = Gate(settings.max_requests, settings.key_max_requests)
    api = Api(settings, text, backend, metrics, Keys(settings.api_keys_file), gate, name, int(time.time()))
    app = FastAPI(title="Meshnet", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.api = api
    for method, path, handler in _ROUTES:
        app.router.routes.append(Route(path, _bound(api, handler), methods=[method]))
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(Edge, metrics=metrics, gate=gate)
    if settings.origins:
        # Outermost, so that errors carry its headers too: a page could not read them otherwise.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after", "x-should-retry"],
        )
    return app


def served_name(settings: HeadSettings) -> str:
    """The setting; else a folder's last name, else the hub id."""
    if settings.served_name:
        return settings.served_name
    path = Path(settings.model).expanduser()
    return path.resolve().name if path.exists() else settings.model


def _bound(api: Api, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await handler(api, request)

    return endpoint


async def _models(api: Api, request: Request) -> Response:
    api.authorize(request)
    return JSONResponse({"object": "list", "data": [model_card(api.name, api.created, api.backend.max_context)]})


async def _model(api: Api, request: Request) -> Response:
    api.authorize(request)
    api.check_model(request.path_params["id"])
    return JSONResponse(model_card(api.name, api.created, api.backend.max_context))


async def _alive(api: Api, request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _ready(api: Api, request: Request) -> Response:
    if api.gate.closed or not api.backend.ready():
        raise _not_ready("no complete chain of shards is ready, or this head is going away")
    return JSONResponse({"status": "ready"})


async def _ready_to_be_routed(api: Api, request: Request) -> Response:
    if api.gate.closed or not api.backend.table_seen():
        raise _not_ready("no route table was read yet, or this head is going away")
    return JSONResponse({"status": "ready"})


def _not_ready(message: str) -> ApiError:
    return ApiError(message, status=503, type="server_error", code="not_ready", retry_after=5)


async def _metrics(api: Api, request: Request) -> Response:
    body, content_type = exposition(api.metrics.registry)
    return Response(body, headers={"content-type": content_type})


async def _version(api: Api, request: Request) -> Response:
    return JSONResponse({"version": version("meshnet-node")})


async def _mesh(api: Api, request: Request) -> Response:
    api.authorize(request)
    return JSONResponse({**api.backend.describe(), "leaving": api.gate.leaving})


_ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/v1/completions", completions),
    ("GET", "/v1/models", _models),
    ("GET", "/v1/models/{id:path}", _model),
    ("GET", "/health", _alive),
    ("GET", "/healthz", _alive),
    ("GET", "/ready", _ready),
    ("GET", "/readyz", _ready_to_be_routed),
    ("GET", "/metrics", _metrics),
    ("GET", "/version", _version),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
    ("GET", "/tokenizer_info", tokenizer_info),
    ("GET", "/mesh", _mesh),
)


async def _api_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    return error_response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    """What the framework itself refuses: unknown routes and methods."""
    if not isinstance(error, HTTPException):
        raise error
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code)
    response = error_response(
        ApiError(f"{error.detail}: this route is not served", status=error.status_code, code=code)
    )
    response.headers.update(error.headers or {})
    return response
