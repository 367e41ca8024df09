"""The way out when the route table is stale: a range without a usable endpoint is looked up by its headless Service.

That works while the operator and the API server are down, since the cluster's DNS follows the pods by itself, also
those that are not ready yet. Addresses that the table does not name are dialled, and used once their hello has proven
token, fingerprint and range. As soon as the table has a usable endpoint again, it rules alone.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from meshnet_node.head.endpoints import Endpoint
from meshnet_node.head.place import Place, range_name
from meshnet_node.head.roster import Endpoints, ranges
from meshnet_node.head.routes import EndpointRoute
from meshnet_node.logs import events

log = events(__name__)

STEP_SECONDS = 0.1
ANSWER_SECONDS = 3.0
AGAIN_SECONDS, LATER_SECONDS = 1.0, 5.0
MOST_ADDRESSES = 64

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""From a Service's `name:port` to addresses `host:port`. Raises OSError where the name has none or nobody answers."""


class Dns:
    """The system's resolver, in threads of its own: one that hangs keeps no other work of the process waiting."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="dns")

    async def resolve(self, service: str) -> Sequence[str]:
        """See Resolve."""
        host, _, port = service.rpartition(":")
        # With its last dot the name is tried as it is, and not under each of the pod's search domains first.
        name = f"{host}." if ".svc." in host and not host.endswith(".") else host
        loop = asyncio.get_running_loop()
        answers = await loop.run_in_executor(self._threads, _ask, name, int(port))
        return list(dict.fromkeys(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in answers))

    def close(self) -> None:
        """Wait for nobody."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _ask(name: str, port: int) -> list[str]:
    return [str(answer[4][0]) for answer in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)]


@dataclass
class _Search:
    """A range that has no usable endpoint in the table since `since`; asked again at `due` (monotonic seconds)."""

    since: float
    due: float
    addresses: int = 0
    fault: str = ""
    task: asyncio.Task[None] | None = None


class ServiceLookup:
    """patience: seconds that a range must be without a usable endpoint before its Service is asked."""

    def __init__(self, endpoints: Endpoints, resolve: Resolve, patience: float) -> None:
        self._endpoints = endpoints
        self._resolve = resolve
        self._patience = patience
        self._searches: dict[str, _Search] = {}

    @property
    def found(self) -> int:
        """Endpoints in use that no table names."""
        return len(self._endpoints.find(lambda endpoint: endpoint.place.found and endpoint.up))

    def describe(self) -> dict[str, object]:
        """The ranges that are looked up now, for GET /mesh."""
        now = time.monotonic()
        return {
            name: {
                "since_seconds": round(now - search.since, 1),
                "addresses": search.addresses,
                "fault": search.fault,
            }
            for name, search in self._searches.items()
            if now - search.since >= self._patience
        }

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                self._look()
                await asyncio.sleep(STEP_SECONDS)
        finally:
            for search in self._searches.values():
                _stop(search)

    def _look(self) -> None:
        now = time.monotonic()
        needy = self._needy()
        for name in self._searches.keys() - needy.keys():
            _stop(self._searches.pop(name))
            for endpoint in self._of_range(name):
                if endpoint.place.found:
                    self._endpoints.drop(endpoint)
        for name, service in needy.items():
            search = self._searches.setdefault(name, _Search(now, now + self._patience))
            if now >= search.due and (search.task is None or search.task.done()):
                search.task = asyncio.create_task(self._ask(search, name, service))

    def _needy(self) -> dict[str, str]:
        """Ranges that have a Service, and no endpoint in the table which takes new sessions."""
        served = {one.place.range for one in self._endpoints.all.values() if one.opens and not one.place.found}
        named = ((range_name(layout, shard), shard.service) for layout, shard in ranges(self._endpoints.table))
        return {name: service for name, service in named if service and name not in served}

    async def _ask(self, search: _Search, name: str, service: str) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                addresses = list(await self._resolve(service))[:MOST_ADDRESSES]
        except (OSError, TimeoutError, ValueError) as error:
            fault = f"{service}: {type(error).__name__}: {error}"
            if fault != search.fault:
                log.info("service not resolved", service=service, reason=fault)
            search.fault, search.due = fault, time.monotonic() + AGAIN_SECONDS
            return
        search.fault, search.addresses = "", len(addresses)
        self._take(name, addresses)
        helped = any(one.place.found and one.opens for one in self._of_range(name))
        search.due = time.monotonic() + (LATER_SECONDS if helped else AGAIN_SECONDS)

    def _take(self, name: str, addresses: Sequence[str]) -> None:
        """Dial what is new; give up what is neither named any more nor up."""
        mine = self._of_range(name)
        # Where somebody else answers at a listed address, its pod is gone and the address may be its successor's.
        tried = {one.place.route.address for one in mine if not one.place.found and not one.mistaken}
        for layout, shard in ranges(self._endpoints.table):
            if range_name(layout, shard) != name:
                continue
            for address in addresses:
                if address not in tried:
                    self._endpoints.add(Place(layout, shard, EndpointRoute("", address), found=True))
        for endpoint in mine:
            if endpoint.place.found and not endpoint.up and endpoint.place.route.address not in addresses:
                self._endpoints.drop(endpoint)

    def _of_range(self, name: str) -> list[Endpoint]:
        return self._endpoints.find(lambda endpoint: endpoint.place.range == name)


def _stop(search: _Search) -> None:
    if search.task is not None:
        search.task.cancel()
