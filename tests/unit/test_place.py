"""Who answers at an address is known from the hello, and held against the route table."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from meshnet_node.head.place import Place, identified, refusal, refusal_of_found
from meshnet_node.head.routes import EndpointRoute, Layout, ShardRoute
from meshnet_node.wire.frames import Info

ROUTE = EndpointRoute("pod-1", "10.0.0.1:8100")
SHARD = ShardRoute("front", 0, 14, (ROUTE, EndpointRoute("pod-2", "10.0.0.2:8100", "draining")), "front.ns:8100")
INFO = Info(
    instance="i",
    pod_uid="pod-1",
    model="m",
    model_hash="h",
    fingerprint="f",
    start_layer=0,
    end_layer=14,
    num_layers=30,
    hidden_size=8,
    vocab_size=16,
    dtype="float32",
    stateful=True,
    boundaries=[],
    schema=[],
    max_context=64,
    max_sessions=8,
    max_bytes=1,
    max_message_bytes=1,
    credits=8,
    chunk=16,
    device="cpu",
    threads=1,
    load_seconds=0.1,
)


def place(fingerprint: str = "f", *, found: bool = False, address: str = "10.0.0.1:8100") -> Place:
    route = EndpointRoute("", address) if found else ROUTE
    return Place(Layout("l", (SHARD,), fingerprint), SHARD, route, found)


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ({}, ""),
        ({"instance": "another"}, ""),
        ({"pod_uid": "pod-9"}, "pod pod-9 answers at the address of pod-1"),
        ({"end_layer": 13}, "serves layers 0 to 13"),
        ({"fingerprint": "g"}, "fingerprint g"),
    ],
    ids=["as the table says", "a new instance of the pod", "another pod", "another range", "another model"],
)
def test_what_the_table_says_must_be_what_answers(told: dict[str, Any], word: str) -> None:
    fault = refusal(place(), structs.replace(INFO, **told))
    assert fault.startswith(word) if word else fault == ""


@pytest.mark.parametrize(
    ("known", "told", "word"),
    [
        ("f", "f", ""),
        ("", "f", "fingerprint f, and none is known yet"),
        ("g", "f", "fingerprint f, its layout has g"),
    ],
    ids=["as other shards told", "never told", "another than told"],
)
def test_a_found_shard_must_prove_the_fingerprint_also_where_the_table_says_none(
    known: str, told: str, word: str
) -> None:
    info = structs.replace(INFO, pod_uid="pod-9", fingerprint=told)
    assert refusal_of_found(place("", found=True), info, {}, known) == word


@pytest.mark.parametrize(
    ("uid", "address", "word"),
    [
        ("pod-9", "10.0.0.9:8100", ""),
        ("pod-9", "10.0.0.1:8100", ""),
        ("pod-1", "10.0.0.1:8100", "is in the route table"),
        ("pod-1", "10.0.0.9:8100", ""),
        ("pod-2", "10.0.0.9:8100", "is being taken down"),
    ],
    ids=["a new pod", "a new pod at an old address", "listed", "listed, its address changed", "draining"],
)
def test_a_found_shard_is_no_second_way_to_a_listed_one(uid: str, address: str, word: str) -> None:
    known = {route.uid: route for route in SHARD.endpoints}
    found = place(found=True, address=address)
    assert refusal_of_found(found, structs.replace(INFO, pod_uid=uid), known, "") == word


def test_a_found_place_keeps_its_key_when_its_pod_is_known() -> None:
    found = place(found=True, address="10.0.0.9:8100")
    known = identified(found, structs.replace(INFO, pod_uid="pod-9"))
    assert (known.route.uid, known.key) == ("pod-9", found.key)
    assert identified(place(), structs.replace(INFO, pod_uid="")) == place()
