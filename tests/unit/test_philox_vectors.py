"""The random function against published known answers, and against the vectors that fix this package's use of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshnet_node.shard.philox import philox4x32, uniform
from meshnet_node.wire.frames import SAMPLER_VERSION

VECTORS = json.loads((Path(__file__).parent / "data" / "sampler_vectors.json").read_text())


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
    ids=["zeros", "ones", "digits of pi"],
)
def test_random123_known_answers(counter: str, key: str, expected: str) -> None:
    c0, c1, c2, c3 = (int(word, 16) for word in counter.split())
    k0, k1 = (int(word, 16) for word in key.split())
    assert philox4x32((c0, c1, c2, c3), (k0, k1)) == tuple(int(word, 16) for word in expected.split())


def test_the_vector_file_is_of_the_version_in_hello() -> None:
    assert VECTORS["version"] == SAMPLER_VERSION


@pytest.mark.parametrize(
    "vector", VECTORS["vectors"], ids=lambda v: f"seed={v['seed']} choice={v['choice']} position={v['position']}"
)
def test_uniform_follows_the_vectors(vector: dict[str, int]) -> None:
    u = uniform(vector["seed"], vector["choice"], vector["position"])
    assert u * (1 << 24) == vector["numerator_of_2_24"]


def test_uniform_fills_the_unit_interval_evenly() -> None:
    draws = [uniform(7, choice, position) for choice in range(4) for position in range(5000)]
    assert all(0 <= u < 1 for u in draws)
    assert len(set(draws)) > 19_900
    counts = [sum(1 for u in draws if int(u * 10) == decile) for decile in range(10)]
    assert max(abs(count - 2000) for count in counts) < 200
