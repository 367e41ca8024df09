"""The Kubernetes API server as a pod reaches it: one object by path, a watch as lines. It knows no object's meaning.

Everything is read anew for each connection: the token, which the kubelet renews in place, and the authority's file.
Every wait is bounded, also the one for the next line: a connection whose other end vanished never ends by itself.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import msgspec

from meshnet_node.errors import ApiServerError, ConfigError
from meshnet_node.settings import HeadSettings

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
LONGEST_LINE = 8 * 1024**2
LONGEST_WAIT = 60.0
# The kernel asks a silent peer whether it is there, so that a machine that vanished is noticed within half a minute.
KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]


class _Status(msgspec.Struct):
    """What the API server says with an error."""

    message: str = ""
    reason: str = ""
    code: int = 0


@dataclass(frozen=True)
class Account:
    """The pod's ServiceAccount: `folder` holds token and ca.crt; `url` is where the API server is."""

    folder: Path
    url: str

    def token(self) -> str:
        """Raises ApiServerError."""
        try:
            return (self.folder / "token").read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ApiServerError(f"the token in {self.folder} can't be read: {error}") from error

    def authority(self) -> ssl.SSLContext:
        """Trusts the cluster's own authority and nobody else. Raises ApiServerError."""
        try:
            return ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        except OSError as error:
            raise ApiServerError(f"ca.crt in {self.folder} can't be read: {error}") from error


def find_account(settings: HeadSettings) -> Account:
    """Raises ConfigError where this process has none: it does not run in a pod, or the pod mounts no token."""
    folder = settings.account_folder
    if not (folder / "token").is_file():
        raise ConfigError(
            f"MESHNET_ROUTES: {settings.routes} can be read inside a cluster only, and there is no ServiceAccount "
            f"folder here ({folder}): name the route table's file, or let the pod mount its token"
        )
    host = settings.kubernetes_service_host
    if not host:
        raise ConfigError(
            "KUBERNETES_SERVICE_HOST: not set, so the API server's address is not known; the kubelet sets it in pods"
        )
    host = f"[{host}]" if ":" in host else host
    return Account(folder, f"https://{host}:{settings.kubernetes_service_port}")


class Connection:
    """One client, with the token that was in the folder when it was made. Errors are ApiServerError."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def get(self, path: str) -> bytes:
        """The object's JSON."""
        try:
            answer = await self._client.get(path)
        except (httpx2.HTTPError, OSError) as error:
            raise _unreached(error) from error
        if answer.status_code != httpx2.codes.OK:
            raise refusal(answer.status_code, answer.content, answer.headers)
        return answer.content

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], silence: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a watch that has begun; silence: seconds without a byte after which it is called dead."""
        timeout = httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, read=silence)
        try:
            async with self._client.stream("GET", path, params=dict(query), timeout=timeout) as answer:
                if answer.status_code != httpx2.codes.OK:
                    raise refusal(answer.status_code, await answer.aread(), answer.headers)
                yield _lines(answer)
        except (httpx2.HTTPError, OSError) as error:
            raise _unreached(error) from error


@asynccontextmanager
async def connect(account: Account) -> AsyncIterator[Connection]:
    """A connection of its own. Proxies of the environment are for the hub, never for the API server."""
    transport = httpx2.AsyncHTTPTransport(verify=account.authority(), trust_env=False, socket_options=KEEPALIVE)
    headers = {"Authorization": f"Bearer {account.token()}", "Accept": "application/json", "User-Agent": "meshnet-head"}
    timeout = httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    async with httpx2.AsyncClient(
        base_url=account.url, headers=headers, transport=transport, timeout=timeout, trust_env=False
    ) as client:
        yield Connection(client)


class LineBuffer:
    """Bytes in pieces of any size become whole lines. Only a line feed ends one: JSON may hold other separators."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that are whole now, without empty ones. Raises ApiServerError where one has no end."""
        self._rest += piece
        *lines, rest = self._rest.split(b"\n") if b"\n" in piece else [self._rest]
        if len(rest) > LONGEST_LINE:
            raise ApiServerError(f"a line of more than {LONGEST_LINE} bytes in a watch")
        self._rest = rest
        return [bytes(line) for line in lines if line.strip()]


def refusal(status: int, body: bytes, headers: Mapping[str, str]) -> ApiServerError:
    """The error for an answer, with the server's own words where it sent some."""
    try:
        said = msgspec.json.decode(body, type=_Status)
        words = said.message or said.reason
    except msgspec.MsgspecError:
        words = body[:200].decode(errors="replace")
    after = headers.get("retry-after", "")
    wait = min(float(after), LONGEST_WAIT) if after.isdecimal() else None
    return ApiServerError(f"status {status}: {words}", status=status, retry_after=wait)


def told_in_stream(raw: bytes) -> ApiServerError:
    """The error for an ERROR object inside a watch."""
    try:
        said = msgspec.json.decode(raw, type=_Status)
    except msgspec.MsgspecError as error:
        return ApiServerError(f"an unreadable error in a watch: {error}")
    return ApiServerError(f"the watch ended: {said.message or said.reason}", status=said.code)


async def _lines(answer: httpx2.Response) -> AsyncIterator[bytes]:
    buffer = LineBuffer()
    async for piece in answer.aiter_bytes():
        for line in buffer.feed(piece):
            yield line


def _unreached(error: Exception) -> ApiServerError:
    return ApiServerError(f"the API server was not reached: {type(error).__name__}: {error}")
