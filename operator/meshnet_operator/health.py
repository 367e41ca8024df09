"""/healthz, /readyz and /metrics, answered by a thread of its own.

The event loop says that it is alive by a heartbeat; a loop that is stuck, a watch that is silent, or a MeshModel that
the watch has not delivered in time makes /healthz fail. A standby is healthy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest

BEAT_SECONDS = 15.0
# A client that says nothing gives its thread back.
IDLE_SECONDS = 10.0


class Health:
    """`faults` returns what is wrong now; called from the server's thread, so it only reads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._beat = time.monotonic()
        self.registry = registry
        self.ready = False
        self.faults: Callable[[], list[str]] = list

    def beat(self) -> None:
        self._beat = time.monotonic()

    def wrong(self) -> list[str]:
        late = time.monotonic() - self._beat
        stuck = [f"the event loop has not turned for {late:.0f} s"] if late > BEAT_SECONDS else []
        return stuck + self.faults()


def serve(health: Health, host: str, port: int) -> ThreadingHTTPServer:
    """Starts the thread; `shutdown()` of what is returned ends it."""

    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_SECONDS

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, generate_latest(health.registry))
            elif self.path == "/healthz":
                wrong = health.wrong()
                self._answer(500 if wrong else 200, "; ".join(wrong or ["ok"]).encode())
            elif self.path == "/readyz":
                self._answer(200 if health.ready else 503, b"ok" if health.ready else b"starting")
            else:
                self._answer(404, b"not found")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes are not news."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
