"""A head process: text model, mesh and API under uvicorn, with a drain on SIGTERM.

After SIGTERM new requests are served for `linger_seconds` more: who sends them learns only afterwards that this head is
going, and has no other one while it is the only one. Then /readyz turns to 503 and new requests are refused; streams
that run go on until they end or `drain_seconds` have passed since the signal. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from prometheus_client import CollectorRegistry

from meshnet_node.errors import ConfigError
from meshnet_node.head.app import create_app
from meshnet_node.head.gate import Gate
from meshnet_node.head.mesh import Mesh
from meshnet_node.head.proof import prove
from meshnet_node.head.pulse import Pulse
from meshnet_node.settings import HeadSettings
from meshnet_node.text.text_model import TextModel
from meshnet_node.wire.listen import listen

TEXT_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]


def text_folder(settings: HeadSettings) -> Path:
    """The folder with config, tokenizer and template: the given one, or what the hub has of these under the id.

    Raises ConfigError.
    """
    folder = Path(settings.model).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_file():
        raise ConfigError(f"MESHNET_MODEL: {folder} is a file; a head needs the folder that it was converted to")
    try:
        return Path(snapshot_download(settings.model, revision=settings.revision, allow_patterns=TEXT_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(f"MESHNET_MODEL: {settings.model} is no folder, and the hub gave: {error}") from error


def context_length(folder: Path, settings: HeadSettings) -> int:
    """The setting, at most the model's own max_position_embeddings. Raises ConfigError."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"MESHNET_MODEL: {folder}/config.json can't be read: {error}") from error
    own = config.get("text_config", config).get("max_position_embeddings") or config.get("n_positions")
    limit = settings.max_context or own
    if limit is None:
        raise ConfigError("MESHNET_MAX_CONTEXT: the model's config states no length; set one")
    return int(min(limit, own or limit))


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: they would cut running streams at once."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: HeadSettings) -> None:
    """Run a head until SIGTERM or SIGINT. Raises ConfigError or ModelError."""
    listener = listen(settings.host, settings.port)
    folder = text_folder(settings)
    text = TextModel.load(folder, fold_system=settings.fold_system)
    registry = CollectorRegistry()
    mesh = Mesh(settings, context_length(folder, settings), registry)
    app = create_app(settings, text, mesh, registry)
    gate: Gate = app.state.api.gate
    config = uvicorn.Config(
        app, host=settings.host, port=settings.port, log_config=None, access_log=False, ws="none", lifespan="off"
    )
    server = _Server(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    proving = asyncio.create_task(prove(mesh))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        deadline = time.monotonic() + settings.drain_seconds
        gate.leaving = True
        stop.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), min(settings.linger_seconds, settings.drain_seconds))
        gate.closed = True
        while (gate.inside or mesh.context.running) and time.monotonic() < deadline and not stop.is_set():
            await Pulse.wait(mesh.context.endpoints.changed.next(), 0.25)
    finally:
        stopping.cancel()
        proving.cancel()
        await asyncio.gather(proving, return_exceptions=True)
        await mesh.aclose()
        server.should_exit = True
        await serving
