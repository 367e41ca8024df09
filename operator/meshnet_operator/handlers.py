"""kopf's part: the stream of MeshModel events, and the settings that keep it alive. Nothing is decided here.

Only on.event is used: on.create, timers and daemons would put annotations and finalizers on the resource. The handler
hands the event on and returns None, so nothing of kopf's lands in the status. kopf has a thread and an event loop of
its own: at its end it cancels every task of its loop that it does not know.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

import kopf

from meshnet_operator.cluster import Configuration
from meshnet_operator.resource import GROUP, PLURAL, VERSION
from meshnet_operator.settings import OperatorSettings

Deliver = Callable[[str | None, Mapping[str, Any]], None]
END_SECONDS = 5.0
LAST_TURNS = 0.3


async def run(configuration: Configuration, settings: OperatorSettings, deliver: Deliver) -> None:
    """Delivers events in the caller's event loop until cancelled; returns when kopf ends by itself."""
    stop = threading.Event()
    made = _registry(configuration, settings, _across(asyncio.get_running_loop(), deliver))
    namespaces = [settings.namespace] if settings.namespace else []
    # Without one kopf asks for the user's name, which a container's user need not have.
    identity: Any = settings.identity

    async def flow() -> None:
        await kopf.operator(
            registry=made,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=stop,
            identity=identity,
        )
        # TLS connections are taken down in the loop's next turns.
        await asyncio.sleep(LAST_TURNS)

    def work() -> None:
        asyncio.run(flow())

    thread = asyncio.create_task(asyncio.to_thread(work))
    try:
        await asyncio.shield(thread)
    finally:
        stop.set()
        await asyncio.wait([thread], timeout=END_SECONDS)


def _across(loop: asyncio.AbstractEventLoop, deliver: Deliver) -> Deliver:
    def hand_over(kind: str | None, body: Mapping[str, Any]) -> None:
        loop.call_soon_threadsafe(deliver, kind, body)

    return hand_over


def _registry(configuration: Configuration, settings: OperatorSettings, deliver: Deliver) -> kopf.OperatorRegistry:
    made = kopf.OperatorRegistry()
    own = settings

    @kopf.on.startup(registry=made)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        _configure(settings, own)

    @kopf.on.login(registry=made)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return _login(configuration)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=made)
    async def event(type: str | None, body: kopf.Body, **_: Any) -> None:
        deliver(type, dict(body))

    return made


def _configure(settings: kopf.OperatorSettings, own: OperatorSettings) -> None:
    # Without these a half-open connection is a silent stall (kopf issues 698, 585, 787, 957).
    settings.watching.server_timeout = own.watch_seconds
    settings.watching.client_timeout = own.watch_seconds + 10
    settings.watching.connect_timeout = 5
    settings.networking.request_timeout = own.request_timeout
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = own.exit_seconds or None


def _login(configuration: Configuration) -> kopf.ConnectionInfo:
    if configuration.refresh_api_key_hook is not None:
        configuration.refresh_api_key_hook(configuration)
    token = str(configuration.api_key.get("BearerToken", ""))
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        token=token.split(" ", 1)[-1] or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        default_namespace=None,
    )
