"""Which endpoints a generation goes through: pure choices over the endpoints that are known now.

A path covers layers 0..last once: stage k runs start_layer..end_layer, where start_layer is the layer after the
previous stage's end (ranges may overlap: the hop then starts inside its shard's range). All stages are of one layout
and one fingerprint, as their shards told it at the hello: the table may not know it yet.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from meshnet_node.head.endpoints import Endpoint


@dataclass(frozen=True)
class Stage:
    """One hop of a path: layers start_layer..end_layer at this endpoint."""

    endpoint: Endpoint
    start_layer: int
    end_layer: int


def rank(endpoint: Endpoint) -> int:
    """0 = may open and ready, 1 = may open but suspect in the table, 2 = up but leaving or silent, 3 = no link."""
    if endpoint.opens:
        return 0 if endpoint.place.route.state == "ready" else 1
    return 2 if endpoint.up else 3


def pick(candidates: Iterable[Endpoint], worst: int = 1) -> Endpoint | None:
    """The less loaded of two random ones among those of the best rank, None when all are worse than `worst`."""
    usable = [(rank(endpoint), endpoint) for endpoint in candidates]
    best = min((found for found, _ in usable), default=worst + 1)
    if best > worst:
        return None
    peers = [endpoint for found, endpoint in usable if found == best]
    return min(random.sample(peers, min(2, len(peers))), key=lambda endpoint: endpoint.load)


def plan(endpoints: Iterable[Endpoint], fits: Callable[[Endpoint], bool] = lambda _: True) -> list[Stage] | None:
    """A complete path over endpoints that may open, active layouts first; None when there is none."""
    layouts: dict[tuple[str, str], list[Endpoint]] = {}
    for endpoint in endpoints:
        if endpoint.opens and endpoint.link is not None and fits(endpoint):
            layouts.setdefault((endpoint.place.layout.id, endpoint.link.info.fingerprint), []).append(endpoint)
    for members in sorted(layouts.values(), key=lambda found: found[0].place.layout.state != "active"):
        stages = _cover(members)
        if stages is not None:
            return stages
    return None


def _cover(members: list[Endpoint]) -> list[Stage] | None:
    """Greedy interval cover: of the ranges that hold the next layer the one that reaches furthest."""
    last = max(shard.end_layer for endpoint in members for shard in endpoint.place.layout.shards)
    stages: list[Stage] = []
    layer = 0
    while layer <= last:
        holding = [e for e in members if e.place.shard.start_layer <= layer <= e.place.shard.end_layer]
        if not holding:
            return None
        reach = max(endpoint.place.shard.end_layer for endpoint in holding)
        chosen = pick(endpoint for endpoint in holding if endpoint.place.shard.end_layer == reach)
        if chosen is None:
            return None
        stages.append(Stage(chosen, layer, reach))
        layer = reach + 1
    return stages


def replacements(endpoints: Iterable[Endpoint], stage: Stage, fingerprint: str) -> list[Endpoint]:
    """Endpoints that can run exactly this stage's layers with the same model, dtype and schema."""
    return [
        endpoint
        for endpoint in endpoints
        if endpoint.up
        and endpoint.link is not None
        and endpoint.link.info.fingerprint == fingerprint
        and endpoint.place.shard.start_layer <= stage.start_layer
        and endpoint.place.shard.end_layer == stage.end_layer
    ]
