"""Names, labels and annotations of everything that the operator makes.

A shard's Deployment and Service are named after model, shard and range, with a hash over the three: the name is
stable while the cut is the same, a new cut stands beside the old one, and no two pairs (model, shard) meet in one
name. With a model's name of 35 characters and a shard's of 20 the longest is 63.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from meshnet_operator.resource import MeshModel, Range

PREFIX = "meshnet.dev/"
MODEL = f"{PREFIX}model"
UID = f"{PREFIX}model-uid"
ROLE = f"{PREFIX}role"
WORKLOAD = f"{PREFIX}workload"
SHARD = f"{PREFIX}shard"
START = f"{PREFIX}start-layer"
END = f"{PREFIX}end-layer"
REVISION = f"{PREFIX}revision"
IMAGE = f"{PREFIX}image"
DRAIN = f"{PREFIX}drain-seconds"
APPLIED = f"{PREFIX}applied"
SERVING = f"{PREFIX}serving"
MANAGED = "app.kubernetes.io/managed-by"
MANAGER = "meshnet-operator"
SELECTOR = f"{MANAGED}={MANAGER}"

SHARD_PORT = 8100
HEAD_PORT = 8000


def digest(value: Any, length: int) -> str:
    """A short name for a JSON value: lower-case hex."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def shard_workload(model: str, part: Range) -> str:
    return f"{model}-{part.name}-{digest([model, part.name, part.start, part.end], 6)}"


def head_workload(model: str) -> str:
    return f"{model}-head"


def routes(model: str) -> str:
    return f"{model}-routes"


def secret(model: str) -> str:
    return f"{model}-mesh"


def layout(cut: tuple[Range, ...]) -> str:
    """The id of a layout in the route table: one cut, whatever the order in which it is written."""
    return digest(sorted([part.name, part.start, part.end] for part in cut), 8)


def labels(model: MeshModel, role: str) -> dict[str, str]:
    """What every child carries."""
    return {
        "app.kubernetes.io/name": "meshnet",
        "app.kubernetes.io/instance": model.name,
        "app.kubernetes.io/component": role,
        MANAGED: MANAGER,
        MODEL: model.name,
        UID: model.uid,
        ROLE: role,
    }
