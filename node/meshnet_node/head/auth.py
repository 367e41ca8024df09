"""API keys: who may call, told by `Authorization: Bearer`.

Keys stand one a line in a file, `#` begins a comment; the file is read again when it changes, so that keys can be
changed without a restart. Without a file every client may call; a file without keys lets nobody in. Keys are compared
by digest in constant time and never logged.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from meshnet_node.errors import ApiError, ConfigError
from meshnet_node.logs import events

_log = events(__name__)


class Keys:
    """The accepted keys of one head."""

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigError when the file can't be read at the start."""
        self._path = path
        self._digests: tuple[bytes, ...] = ()
        self._version: tuple[int, ...] = ()
        if path is not None:
            try:
                self._read(path)
            except (OSError, ValueError) as error:
                raise ConfigError(f"MESHNET_API_KEYS_FILE: {path} can't be read: {error}") from error

    def check(self, authorization: str | None) -> str:
        """The fingerprint of the key in the header's value; empty when no keys are asked for. Raises ApiError 401."""
        if self._path is None:
            return ""
        self._refresh(self._path)
        scheme, _, key = (authorization or "").partition(" ")
        digest = _digest(key.strip())
        # All are compared, whether or not one has matched.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(
                "the API key is missing or wrong: send it as `Authorization: Bearer KEY`",
                status=401,
                code="invalid_api_key",
            )
        return digest.hex()[:16]

    def _refresh(self, path: Path) -> None:
        try:
            if _version(path) != self._version:
                self._read(path)
        except (OSError, ValueError) as error:
            _log.warning("api_keys_unreadable", error=type(error).__name__)

    def _read(self, path: Path) -> None:
        version = _version(path)
        lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
        self._digests = tuple(_digest(line) for line in lines if line)
        self._version = version


def _version(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
