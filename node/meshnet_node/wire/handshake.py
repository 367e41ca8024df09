"""The hello of a link: each side proves that it holds the shard token, which itself never crosses the wire.

head -> Hello(instance, nonce); shard -> Challenge(instance, nonce, proof); head -> Proof; shard -> Welcome(info).
A proof is HMAC-SHA256 under the token over the wire version, the prover's role, both instance ids and both nonces, each
part with its length in front: a proof can't be replayed on another connection, for another pod or for the other role.

Invariants: comparison takes constant time; the first token of a file proves, any of them is accepted, so that tokens
can be changed without a gap (add the new one last everywhere, then put it first, then drop the old). Where no token is
configured the key is empty: the frames stay the same and whoever reaches the port is trusted.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from meshnet_node.errors import BadFrame, ConfigError, Unauthorized
from meshnet_node.wire.frames import WIRE_VERSION, Challenge, Hello, Proof

NONCE_BYTES = 32
INSTANCE_LIMIT = 128

Role = Literal["head", "shard"]

CLOSE_BAD_HELLO = 4400
CLOSE_UNAUTHORIZED = 4401
CLOSE_TOO_LARGE = 4413
CLOSE_LOADING = 4503


class TokenFile:
    """The shard tokens of a file, one a line; `path` None = no token is configured.

    Raises ConfigError where the file can't be read or holds no token. `reload` is for a proof that was refused: it
    keeps what was known when the new content is unusable.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._tokens: tuple[bytes, ...] = (b"",)
        if path is not None:
            self._read(path)

    @property
    def configured(self) -> bool:
        return self._path is not None

    @property
    def tokens(self) -> tuple[bytes, ...]:
        """At least one token; the first is the one to prove with."""
        return self._tokens

    def reload(self) -> bool:
        """Read the file again if it changed; True when the tokens are others than before."""
        before = self._tokens
        if self._path is not None:
            try:
                self._read(self._path)
            except ConfigError:
                return False
        return self._tokens != before

    def _read(self, path: Path) -> None:
        try:
            status = os.stat(path)
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise ConfigError(f"MESHNET_TOKEN_FILE: {path} can't be read: {error.strerror}") from None
        tokens = tuple(line.strip() for line in lines if line.strip())
        if not tokens:
            raise ConfigError(f"MESHNET_TOKEN_FILE: {path} holds no token")
        self._stamp, self._tokens = stamp, tokens


def challenge(tokens: Sequence[bytes], hello: Hello, instance: str) -> Challenge:
    """The shard's answer to a hello. Raises BadFrame where the hello is of another wire version or misses its form."""
    if hello.wire != WIRE_VERSION:
        raise BadFrame(f"wire version {hello.wire}, this side speaks {WIRE_VERSION}")
    if len(hello.nonce) != NONCE_BYTES:
        raise BadFrame(f"nonce of {len(hello.nonce)} bytes, {NONCE_BYTES} are needed")
    if not 0 < len(hello.instance) <= INSTANCE_LIMIT:
        raise BadFrame(f"instance id of {len(hello.instance)} characters, 1 to {INSTANCE_LIMIT} are allowed")
    asked = Challenge(instance=instance, nonce=secrets.token_bytes(NONCE_BYTES), proof=b"")
    asked.proof = proof(tokens[0], "shard", hello, asked)
    return asked


def admit(tokens: Sequence[bytes], hello: Hello, asked: Challenge, given: Proof) -> None:
    """The shard's last check. Raises Unauthorized where the head did not prove any of `tokens`."""
    matches = [verify(given.proof, token, "head", hello, asked) for token in tokens]
    if not any(matches):
        raise Unauthorized("the head holds another token")


def verify(given: bytes, token: bytes, role: Role, hello: Hello, asked: Challenge) -> bool:
    """True when `given` is what `role` proves with `token` in this hello."""
    return hmac.compare_digest(proof(token, role, hello, asked), given)


def proof(token: bytes, role: Role, hello: Hello, asked: Challenge) -> bytes:
    """What `role` sends to show that it holds `token`; the challenge's own proof is not part of it."""
    parts = (f"meshnet link {WIRE_VERSION} {role}".encode(), hello.instance.encode(), asked.instance.encode())
    message = b"".join(len(part).to_bytes(4, "little") + part for part in (*parts, hello.nonce, asked.nonce))
    return hmac.digest(token, message, "sha256")
