"""The only module that talks to the API server: raw dictionaries through the official client's connection.

Every call has a time-out and raises a `ClusterError`; nothing is retried here. Lists are paged. A watch yields what
the server sends until its time is over, and raises Gone where the server says so inside the stream or by status; a
server that goes silent ends the watch as Unreachable, since each watch has a server-side end and the client waits
only little longer.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from meshnet_operator.errors import ConfigError, Gone, Unreachable, cluster_error
from meshnet_operator.kinds import Kind
from meshnet_operator.names import MANAGER

Object = dict[str, Any]
__all__ = ["Cluster", "Configuration", "Listing", "WatchEvent", "load_configuration"]

PAGE = 500
GONE = 410
CONNECT_SECONDS = 5.0
# How much longer than the server a watch waits before it calls the connection dead.
WATCH_MARGIN = 10.0
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@dataclass(frozen=True)
class Listing:
    """Items of a list, and the resourceVersion to watch from."""

    items: list[Object]
    version: str


@dataclass(frozen=True)
class WatchEvent:
    """type: ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: Object


async def load_configuration(kubeconfig: Path | None) -> Configuration:
    """From the file, or the pod's service account where none is given. Raises ConfigError."""
    made = Configuration()
    try:
        if kubeconfig is not None:
            await kube_config.load_kube_config(config_file=str(kubeconfig), client_configuration=made)
        else:
            kube_config.load_incluster_config(client_configuration=made)
    except (kube_config.ConfigException, OSError) as error:
        raise ConfigError(f"no way to the API server: {error}; set MESHNET_OPERATOR_KUBECONFIG") from None
    # The client's own retries would hide what this package decides on, and multiply time-outs.
    made.retries = None
    return made


class Cluster:
    """Calls by kind. One per process and event loop; close it."""

    def __init__(
        self,
        configuration: Configuration,
        timeout: float = 15.0,
        connections: int = 32,
        asked: Callable[[str], None] = lambda method: None,
    ) -> None:
        """asked: called with the method of each request."""
        # Watches hold a connection each, beside the calls.
        configuration.connection_pool_maxsize = connections + 16
        self._api = ApiClient(configuration)
        self._api.user_agent = MANAGER
        self._timeout = timeout
        self._slots = asyncio.Semaphore(connections)
        self._asked = asked

    async def close(self) -> None:
        await self._api.close()

    # Reading

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        return await self._call("GET", kind.url(namespace, name))

    async def list(
        self, kind: Kind, namespace: str | None, selector: str = "", fields: str = "", metadata_only: bool = False
    ) -> Listing:
        """All pages. The items carry no apiVersion and kind, as the server sends them."""
        items: list[Object] = []
        query = {"limit": str(PAGE)}
        query |= {name: text for name, text in (("labelSelector", selector), ("fieldSelector", fields)) if text}
        accept = METADATA_ONLY if metadata_only else "application/json"
        while True:
            page = await self._call("GET", kind.url(namespace), query, accept=accept)
            items += page.get("items") or []
            token = page["metadata"].get("continue")
            if not token:
                return Listing(items, page["metadata"]["resourceVersion"])
            query["continue"] = token

    async def served(self, group: str) -> bool:
        """Whether the API server knows this API group."""
        groups = await self._call("GET", "/apis")
        return any(one["name"] == group for one in groups.get("groups", []))

    async def version(self) -> tuple[int, int]:
        """Major and minor of the API server."""
        found = await self._call("GET", "/version")
        return int(found["major"]), int("".join(char for char in found["minor"] if char.isdigit()))

    async def watch(
        self, kind: Kind, namespace: str | None, selector: str, version: str, seconds: int
    ) -> AsyncIterator[WatchEvent]:
        """Events after `version`, for `seconds` at most. Raises Gone, Unreachable or another ClusterError."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        } | ({"labelSelector": selector} if selector else {})
        limit = aiohttp.ClientTimeout(
            total=seconds + WATCH_MARGIN, sock_connect=CONNECT_SECONDS, sock_read=seconds + WATCH_MARGIN
        )
        async with self._open("GET", kind.url(namespace), query, limit) as response:
            if response.status >= 400:
                raise _failure(response.status, await response.read(), response.headers)
            async for line in response.content:
                event = _event(line)
                if event is not None:
                    yield event

    # Writing

    async def apply(self, body: Object, kind: Kind, namespace: str, manager: str = MANAGER) -> Object:
        """Server-side apply by our field manager. A `metadata.uid` in the body makes it hit that very object only."""
        query = {"fieldManager": manager, "force": "true"}
        url = kind.url(namespace, body["metadata"]["name"])
        return await self._call("PATCH", url, query, body, "application/apply-patch+yaml")

    async def create(self, body: Object, kind: Kind, namespace: str | None) -> Object:
        return await self._call("POST", kind.url(namespace), {"fieldManager": MANAGER}, body)

    async def replace(self, body: Object, kind: Kind, namespace: str) -> Object:
        """PUT: a resourceVersion in the body must still be the newest, else Conflict."""
        return await self._call("PUT", kind.url(namespace, body["metadata"]["name"]), {"fieldManager": MANAGER}, body)

    async def patch(
        self, kind: Kind, namespace: str | None, name: str, body: Object, part: str | None = None
    ) -> Object:
        """Merge patch of the object or of a subresource (status, scale)."""
        query = {"fieldManager": MANAGER}
        return await self._call("PATCH", kind.url(namespace, name, part), query, body, "application/merge-patch+json")

    async def delete(
        self, kind: Kind, namespace: str | None, name: str, uid: str | None = None, grace: int | None = None
    ) -> None:
        """Background deletion; with a uid it hits that very object only. grace: seconds in the place of the object's
        own.
        """
        body: Object = {"propagationPolicy": "Background"} | ({"preconditions": {"uid": uid}} if uid else {})
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        await self._call("DELETE", kind.url(namespace, name), None, body)

    # The connection

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> Object:
        limit = aiohttp.ClientTimeout(total=self._timeout, sock_connect=CONNECT_SECONDS)
        async with self._slots, self._open(method, path, query, limit, body, content, accept) as response:
            raw = await response.read()
            if response.status >= 400:
                raise _failure(response.status, raw, response.headers)
            answer: Object = json.loads(raw)
            return answer

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        limit: aiohttp.ClientTimeout,
        body: Object | None = None,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        self._asked(method)
        headers = {"Accept": accept, "Content-Type": content, "User-Agent": MANAGER}
        url = self._api.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        try:
            # Reads the service account's token again when it is a minute old.
            await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
            answer = await self._api.rest_client.request(
                method, url, headers=headers, body=body, _request_timeout=limit
            )
            response: aiohttp.ClientResponse = answer.response
            async with response:
                yield response
        except (aiohttp.ClientError, TimeoutError, ssl.SSLError, OSError, json.JSONDecodeError) as error:
            raise Unreachable(f"{method} {path}: {type(error).__name__}: {error}") from error


def _event(line: bytes) -> WatchEvent | None:
    """One line of a watch. An ERROR object in the stream is the failure that its status says."""
    if not line.strip():
        return None
    raw = json.loads(line)
    body = raw["object"]
    if raw["type"] == "ERROR":
        code = int(body.get("code", 500))
        if code == GONE or body.get("reason") == "Expired":
            raise Gone(body.get("message", ""), GONE, body.get("reason", ""))
        raise cluster_error(code, body.get("reason", ""), body.get("message", ""))
    return WatchEvent(raw["type"], body)


def _failure(status: int, raw: bytes, headers: Mapping[str, str]) -> Exception:
    """The error for an answer; the server's own Status object where it sent one."""
    try:
        body = json.loads(raw)
        reason, message = str(body.get("reason", "")), str(body.get("message", ""))
    except (ValueError, AttributeError):
        reason, message = "", raw[:200].decode(errors="replace")
    after = headers.get("Retry-After", "")
    return cluster_error(status, reason, message, float(after) if after.isdigit() else None)
