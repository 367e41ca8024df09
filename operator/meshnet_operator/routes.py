"""Pods become a route table: one pure function, which owes nothing to anything but the pods and the table before.

    next_table(previous, model's uid and cut, pods) -> Table

States of an endpoint: `ready`; `draining` (its pod is being deleted, `deadline` is when it stops); `suspect` (listed
before, not Ready now, its container still runs, and no ready endpoint of its range is left: a partitioned control
plane marks healthy pods so). All others are out. Nodes are never looked at.

Layouts: the wanted cut is always listed. Another cut stays listed while one of its own pods lives, `active` until the
wanted cut is complete, `retiring` from then on. A cut is split in two where its pods report two fingerprints, so that
a generation never meets a shard that it can't use. `serving` is the id of the cut that was complete last: what must
not be deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, TypeVar

from meshnet_operator import names
from meshnet_operator.identity import Identity
from meshnet_operator.pods import Pod
from meshnet_operator.resource import Range

State = Literal["ready", "draining", "suspect"]
T = TypeVar("T", str, int)


@dataclass(frozen=True)
class Endpoint:
    uid: str
    address: str
    state: State
    deadline: float | None = None


@dataclass(frozen=True)
class RouteShard:
    range: Range
    service: str
    endpoints: tuple[Endpoint, ...] = ()

    @property
    def served(self) -> bool:
        return any(endpoint.state == "ready" for endpoint in self.endpoints)


@dataclass(frozen=True)
class Layout:
    id: str
    fingerprint: str
    state: Literal["active", "retiring"]
    shards: tuple[RouteShard, ...]

    @property
    def cut(self) -> tuple[Range, ...]:
        return tuple(shard.range for shard in self.shards)

    @property
    def complete(self) -> bool:
        """Every range has a ready endpoint."""
        return all(shard.served for shard in self.shards)


@dataclass(frozen=True)
class Table:
    """The route table of one MeshModel. Two tables are the same when all but `epoch` is."""

    uid: str
    epoch: int = 0
    layouts: tuple[Layout, ...] = ()
    serving: str = ""

    def same_as(self, other: Table) -> bool:
        return replace(self, epoch=0) == replace(other, epoch=0)

    @property
    def complete(self) -> bool:
        return any(layout.complete for layout in self.layouts)

    def serves(self, cut: tuple[Range, ...]) -> bool:
        """Whether this cut has a complete path."""
        return any(one.complete and names.layout(one.cut) == names.layout(cut) for one in self.layouts)

    def serving_cut(self) -> tuple[Range, ...]:
        """The cut that was complete last; empty where none ever was."""
        return next((one.cut for one in self.layouts if names.layout(one.cut) == self.serving), ())


@dataclass(frozen=True)
class Target:
    """What of a MeshModel the table depends on."""

    name: str
    namespace: str
    uid: str
    cut: tuple[Range, ...]
    cluster_domain: str = "cluster.local"


NOBODY = Identity()


def next_table(previous: Table, target: Target, pods: Iterable[Pod], identity: Identity = NOBODY) -> Table:
    """The table that these pods call for, with the epoch of `previous` (the writer counts it up when it differs).

    A pod of another model's uid is ignored, one that `identity` refuses is out.
    """
    if previous.uid != target.uid:
        previous = Table(target.uid, previous.epoch)
    mine = [pod for pod in pods if pod.model_uid == target.uid and pod.range and pod.uid not in identity.refused]
    listed = {end.uid for layout in previous.layouts for shard in layout.shards for end in shard.endpoints}
    wanted = names.layout(target.cut)
    cuts = {wanted: target.cut}
    for old in previous.layouts:
        cuts.setdefault(names.layout(old.cut), old.cut)
    made: list[Layout] = []
    for cut in cuts.values():
        made += _layouts(target, cut, mine, listed, identity)
    serving = _serving(made, wanted, previous)
    done = wanted == serving and any(one.complete for one in made if names.layout(one.cut) == wanted)
    kept = [
        replace(layout, state="retiring" if done and names.layout(layout.cut) != wanted else "active")
        for layout in made
        if names.layout(layout.cut) in (wanted, serving) or _alive(layout, target.cut)
    ]
    return Table(target.uid, previous.epoch, tuple(kept), serving)


def _serving(layouts: list[Layout], wanted: str, previous: Table) -> str:
    complete = {names.layout(layout.cut) for layout in layouts if layout.complete}
    return wanted if wanted in complete else previous.serving


def _alive(layout: Layout, target: tuple[Range, ...]) -> bool:
    """Whether a cut that nobody wants still has pods that the wanted cut does not share."""
    return any(shard.endpoints for shard in layout.shards if shard.range not in target)


def _layouts(
    target: Target, cut: tuple[Range, ...], pods: list[Pod], listed: set[str], identity: Identity
) -> list[Layout]:
    """One layout of the cut for each fingerprint among its pods. A pod that has not reported yet counts to the
    first.
    """
    found = {identity.prints.get(pod.uid, "") for pod in pods if pod.range in cut} - {""}
    first = identity.pinned if identity.pinned in found or not found else min(found)
    made = []
    for fingerprint in [first, *sorted(found - {first})]:
        mine = [pod for pod in pods if (identity.prints.get(pod.uid) or first) == fingerprint]
        shards = tuple(_shard(target, part, mine, listed) for part in cut)
        suffix = "" if fingerprint == first else f"-{names.digest(fingerprint, 4)}"
        made.append(Layout(names.layout(cut) + suffix, fingerprint, "active", shards))
    return made


def _shard(target: Target, part: Range, pods: list[Pod], listed: set[str]) -> RouteShard:
    mine = sorted((pod for pod in pods if pod.range == part and pod.address), key=lambda pod: pod.uid)
    ready = [_endpoint(pod, "ready") for pod in mine if pod.ready and not pod.deleting]
    draining = [
        _endpoint(pod, "draining", _deadline(pod)) for pod in mine if pod.deleting and pod.running and pod.uid in listed
    ]
    suspect = []
    if not ready:
        suspect = [
            _endpoint(pod, "suspect")
            for pod in mine
            if pod.uid in listed and pod.running and not pod.ready and not pod.deleting
        ]
    host = f"{names.shard_workload(target.name, part)}.{target.namespace}.svc.{target.cluster_domain}"
    return RouteShard(part, f"{host}:{names.SHARD_PORT}", tuple([*ready, *draining, *suspect]))


def _endpoint(pod: Pod, state: State, deadline: float | None = None) -> Endpoint:
    host = f"[{pod.address}]" if ":" in pod.address else pod.address
    return Endpoint(pod.uid, f"{host}:{names.SHARD_PORT}", state, deadline)


def _deadline(pod: Pod) -> float | None:
    """When the shard stops, in seconds since 1970.

    The API server's deletionTimestamp is the end of the grace period: the drain time and a reserve for the way down.
    """
    if pod.deletion is None:
        return None
    end = datetime.fromisoformat(pod.deletion.replace("Z", "+00:00")).timestamp()
    return end - max(0, pod.grace - pod.drain)


def to_json(table: Table) -> str:
    """The document that heads read."""
    layouts = [
        {
            "id": layout.id,
            "fingerprint": layout.fingerprint,
            "state": layout.state,
            "shards": [
                {
                    "name": shard.range.name,
                    "startLayer": shard.range.start,
                    "endLayer": shard.range.end,
                    "service": shard.service,
                    "endpoints": [vars(endpoint) for endpoint in shard.endpoints],
                }
                for shard in layout.shards
            ],
        }
        for layout in table.layouts
    ]
    return json.dumps({"uid": table.uid, "epoch": table.epoch, "layouts": layouts}, separators=(",", ":"))


def from_json(text: str, serving: str = "") -> Table:
    """The table of a document; an empty one where it can't be read: somebody edited it, and the next write mends it."""
    try:
        raw: dict[str, Any] = json.loads(text)
        layouts = tuple(_layout(one) for one in raw["layouts"])
        return Table(_as(str, raw["uid"]), _as(int, raw["epoch"]), layouts, serving)
    except (ValueError, KeyError, TypeError, RecursionError):
        return Table("")


def _layout(raw: Mapping[str, Any]) -> Layout:
    shards = tuple(
        RouteShard(
            Range(_as(str, shard["name"]), _as(int, shard["startLayer"]), _as(int, shard["endLayer"])),
            shard["service"],
            tuple(_endpoint_of(endpoint) for endpoint in shard["endpoints"]),
        )
        for shard in raw["shards"]
    )
    return Layout(raw["id"], raw["fingerprint"], raw["state"], shards)


def _endpoint_of(raw: Mapping[str, Any]) -> Endpoint:
    return Endpoint(**{**raw, "uid": _as(str, raw["uid"])})


def _as(kind: type[T], found: object) -> T:
    """What tables are sorted and looked up by; anything else that is odd just differs from the table to be."""
    if type(found) is not kind:
        raise TypeError
    return found
