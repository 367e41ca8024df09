"""Where an endpoint stands in the route table, and whether the shard that answers there is the one that is meant.

Pure. An address is not an identity: pods come and go, and addresses are given out again. Who answers is known from the
hello only, after both sides have proven the shard token; what it says there is held against the table here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from meshnet_node.head.routes import EndpointRoute, Layout, ShardRoute
from meshnet_node.wire.frames import Info


@dataclass(frozen=True)
class Place:
    """One endpoint of a range of a layout. found: it is not in the table, the range's Service named its address."""

    layout: Layout
    shard: ShardRoute
    route: EndpointRoute
    found: bool = False

    @property
    def range(self) -> str:
        """Which range of which layout."""
        return range_name(self.layout, self.shard)

    @property
    def key(self) -> tuple[str, str]:
        """Unique among all endpoints: by pod in the table, by address where the pod is not known beforehand."""
        return self.range, f"at {self.route.address}" if self.found else self.route.uid


def range_name(layout: Layout, shard: ShardRoute) -> str:
    """Unique in a table."""
    return f"{layout.id}/{shard.name}"


def refusal(place: Place, info: Info) -> str:
    """Why a shard that says this of itself must not be used here; "" = it may."""
    cut = (info.start_layer, info.end_layer)
    if cut != (place.shard.start_layer, place.shard.end_layer):
        return f"serves layers {cut[0]} to {cut[1]}, the route table says otherwise"
    if place.layout.fingerprint not in ("", info.fingerprint):
        return f"fingerprint {info.fingerprint}, the route table says {place.layout.fingerprint}"
    if not place.found and info.pod_uid not in ("", place.route.uid):
        return f"pod {info.pod_uid} answers at the address of {place.route.uid}"
    return ""


def refusal_of_found(place: Place, info: Info, listed: Mapping[str, EndpointRoute], known: str) -> str:
    """The same for an address that a Service named: nothing vouches for it but what it proves.

    listed: the range's endpoints in the table by pod; known: the fingerprint that the layout's shards have told, for a
    table that does not say one yet.
    """
    if fault := refusal(place, info):
        return fault
    if not place.layout.fingerprint and info.fingerprint != known:
        return f"fingerprint {info.fingerprint}, " + (f"its layout has {known}" if known else "and none is known yet")
    entry = listed.get(info.pod_uid)
    if entry is not None and entry.address == place.route.address:
        return "is in the route table"
    if entry is not None and entry.state == "draining":
        return "is being taken down"
    return ""


def identified(place: Place, info: Info) -> Place:
    """A found place, once it is known which pod answers there."""
    return replace(place, route=structs.replace(place.route, uid=info.pod_uid)) if place.found else place
