"""All endpoints of a head: those of the route table, brought in line with each newer one, and those found by Service.

An endpoint that is no longer listed but works is kept until its generations have left (absence from the table alone
moves nothing that works). A found one that the table comes to name becomes the table's, with its link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from meshnet_node.head.endpoints import Endpoint, LinkSettings
from meshnet_node.head.place import Place, range_name, refusal, refusal_of_found
from meshnet_node.head.pulse import Pulse
from meshnet_node.head.routes import Layout, RouteTable, ShardRoute
from meshnet_node.wire.frames import Info


class Endpoints:
    """`changed` beats on every change of link, health or table. `all` is by Place.key."""

    def __init__(self, settings: LinkSettings) -> None:
        self.changed = Pulse()
        self.table: RouteTable | None = None
        self.all: dict[tuple[str, str], Endpoint] = {}
        self._settings = settings
        self._told: dict[str, str] = {}
        self._retired: set[Endpoint] = set()
        self._reapers: set[asyncio.Task[None]] = set()

    def apply(self, table: RouteTable) -> None:
        """Take a newer table: start dialling what is new, stop dialling what is no longer listed."""
        if self.table is None or self.table.uid != table.uid:
            self._told.clear()
        self.table = table
        places = {place.key: place for place in listed(table)}
        for key, endpoint in list(self.all.items()):
            place = self._place_in(places, endpoint)
            if place is None or not _stays(endpoint, place):
                self.drop(endpoint)
                continue
            places.pop(place.key, None)
            endpoint.place = place
            if place.key != key:
                del self.all[key]
                self.all[place.key] = endpoint
        for place in places.values():
            self.add(place)
        self.changed.beat()

    def add(self, place: Place) -> None:
        """Start dialling it, unless that is done already."""
        if place.key not in self.all:
            self.all[place.key] = Endpoint(place, self._settings, self.changed, self)

    def drop(self, endpoint: Endpoint) -> None:
        """Stop dialling it; generations that are there stay until they end."""
        self.all.pop(endpoint.place.key, None)
        endpoint.listed = False
        self._retired.add(endpoint)
        task = asyncio.create_task(self._reap(endpoint))
        self._reapers.add(task)
        task.add_done_callback(self._reapers.discard)

    def find(self, wanted: Callable[[Endpoint], bool]) -> list[Endpoint]:
        """Listed endpoints for which `wanted` holds."""
        return [endpoint for endpoint in self.all.values() if wanted(endpoint)]

    def has_alternative(self, suspect: Endpoint) -> bool:
        """See endpoints.Peers."""
        return bool(self.find(lambda other: other is not suspect and other.opens and other.covers_same(suspect)))

    def refusal(self, place: Place, info: Info) -> str:
        """See endpoints.Peers."""
        if not place.found:
            fault = refusal(place, info)
            if not fault:
                self._told[place.layout.id] = info.fingerprint
            return fault
        if self.find(lambda other: _same_pod(other, place, info)):
            return f"is pod {info.pod_uid}, found at another address too"
        known = {route.uid: route for route in place.shard.endpoints}
        return refusal_of_found(place, info, known, self._told.get(place.layout.id, ""))

    async def aclose(self) -> None:
        """End all links."""
        for task in self._reapers:
            task.cancel()
        everyone = [*self.all.values(), *self._retired]
        await asyncio.gather(*(endpoint.aclose() for endpoint in everyone))

    def _place_in(self, places: dict[tuple[str, str], Place], endpoint: Endpoint) -> Place | None:
        """Where this endpoint stands now. A found one whose pod is listed has its place in the table."""
        mine = endpoint.place
        if not mine.found:
            return places.get(mine.key)
        named = places.get((mine.range, endpoint.uid))
        if named is not None and named.route.address == mine.route.address and named.key not in self.all:
            return named
        for layout, shard in ranges(self.table):
            if range_name(layout, shard) == mine.range:
                return Place(layout, shard, mine.route, found=True)
        return None

    async def _reap(self, endpoint: Endpoint) -> None:
        """Forget an endpoint once its link has ended by itself, or nobody uses it."""
        while endpoint.link is not None and endpoint.up and endpoint.users:
            await asyncio.wait({endpoint.link.lost}, timeout=1.0)
        await endpoint.aclose()
        self._retired.discard(endpoint)


def ranges(table: RouteTable | None) -> Iterator[tuple[Layout, ShardRoute]]:
    """Every range of every layout."""
    for layout in table.layouts if table is not None else ():
        for shard in layout.shards:
            yield layout, shard


def listed(table: RouteTable) -> Iterator[Place]:
    """Every endpoint that the table names."""
    for layout, shard in ranges(table):
        for route in shard.endpoints:
            yield Place(layout, shard, route)


def _stays(endpoint: Endpoint, place: Place) -> bool:
    """The address is the same, and a link that is up leads to what the table says now."""
    if endpoint.place.route.address != place.route.address:
        return False
    return endpoint.link is None or not endpoint.up or not refusal(place, endpoint.link.info)


def _same_pod(other: Endpoint, place: Place, info: Info) -> bool:
    mine = other.place
    return mine.found and other.up and mine.key != place.key and mine.range == place.range and other.uid == info.pod_uid
