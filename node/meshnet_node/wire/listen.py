"""The listening socket of a process, made before anything else: a port that is taken ends it with a sentence."""

from __future__ import annotations

import socket

from meshnet_node.errors import ConfigError


def listen(host: str, port: int, user_timeout_ms: int | None = None) -> socket.socket:
    """Bound, for a server that listens on it. user_timeout_ms: accepted connections inherit that bytes which stay
    unacknowledged for so long end them. Raises ConfigError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if user_timeout_ms is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout_ms)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"MESHNET_HOST, MESHNET_PORT: {host}:{port} can't be used: {error.strerror}") from error
    listener.setblocking(False)
    return listener
