"""The operator's port: clients that say nothing keep no thread."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from prometheus_client import CollectorRegistry

from meshnet_operator import health


def test_a_client_that_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "IDLE_SECONDS", 0.2)
    server = health.serve(health.Health(CollectorRegistry()), "127.0.0.1", 0)
    before = threading.active_count()
    try:
        with socket.create_connection(server.server_address[:2], timeout=10) as idle:
            assert idle.recv(1) == b"", "the server ends the connection"
        end = time.monotonic() + 10
        while threading.active_count() > before and time.monotonic() < end:
            time.sleep(0.01)
        assert threading.active_count() <= before
    finally:
        server.shutdown()
        server.server_close()
