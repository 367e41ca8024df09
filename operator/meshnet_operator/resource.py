"""A typed view of the MeshModel: what the rest of the package reads instead of raw keys.

Defaults here and in the CRD are the same values (a test walks both). Values of core types (affinity, env, volumes
...) stay the dictionaries that the API server has checked. Nothing here knows Deployments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from meshnet_operator.errors import ResourceError
from meshnet_operator.quantity import to_bytes

Object = dict[str, Any]
Strategy = Literal["Surge", "OneByOne", "Recreate"]

GROUP = "meshnet.dev"
VERSION = "v1alpha1"
PLURAL = "meshmodels"
KIND = "MeshModel"
# The user and group of the node image's files.
USER = 10001

# What an absent field means; the CRD's defaults are the same values where it states one.
DEFAULTS: dict[str, Object] = {
    "model": {"dtype": "auto", "trustRemoteCode": False},
    "sessions": {"ttlSeconds": 600, "maxSessions": 8},
    "head": {"replicas": 1, "drainSeconds": 600, "allowUnauthenticated": False},
    "service": {"type": "ClusterIP", "port": 8000},
    "recovery": {"holdSeconds": 120, "replayBytes": "2Gi"},
    "rollout": {"strategy": "Surge", "surgeTimeoutSeconds": 600, "drainSeconds": 30},
    "weights": {"loadTimeoutSeconds": 1800},
    "networkPolicy": {"enabled": True},
    "security": {"runAsUser": USER, "fsGroup": USER, "readOnlyRootFilesystem": True},
    "options": {"determinism": "fast", "stateless": False, "allowCast": False},
}


@dataclass(frozen=True, order=True)
class Range:
    """A shard's name and its layers [start, end], both inclusive: the part of a shard that makes a layout."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Shard:
    """One entry of spec.shards. `raw` holds the fields that go to the pod as they are."""

    range: Range
    replicas: int | None
    gpu: str | None
    raw: Object

    @property
    def name(self) -> str:
        return self.range.name


@dataclass(frozen=True)
class Key:
    """Namespace and name: what the queues carry."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class MeshModel:
    """One MeshModel. `spec` and `status` are as the API server sent them; `section` reads an optional part of the
    spec.
    """

    key: Key
    uid: str
    generation: int
    deleting: bool
    spec: Object
    status: Object
    shards: tuple[Shard, ...]
    version: int = 0

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def namespace(self) -> str:
        return self.key.namespace

    @property
    def cut(self) -> tuple[Range, ...]:
        return tuple(shard.range for shard in self.shards)

    @property
    def suspended(self) -> bool:
        return bool(self.spec.get("suspend", False))

    @property
    def paused(self) -> bool:
        return bool(self.spec.get("paused", False))

    @property
    def strategy(self) -> Strategy:
        strategy: Strategy = self.section("rollout")["strategy"]
        return strategy

    @property
    def service(self) -> Object:
        """spec.head.service with its defaults."""
        return {**DEFAULTS["service"], **self.section("head").get("service", {})}

    @property
    def served_name(self) -> str:
        return str(self.spec["model"].get("servedName") or self.name)

    @property
    def api_keys(self) -> str | None:
        """Name of the Secret that holds the accepted API keys."""
        name: str | None = self.section("head").get("apiKeySecret", {}).get("name")
        return name

    def section(self, name: str) -> Object:
        """One part of the spec, with the defaults of what is absent."""
        return {**DEFAULTS.get(name, {}), **(self.spec.get(name) or {})}

    def stated(self, name: str) -> Object:
        """One part of the spec without what equals its default: what a change of defaults can't change."""
        defaults = DEFAULTS.get(name, {})
        part: Object = self.spec.get(name) or {}
        return {key: value for key, value in part.items() if key not in defaults or value != defaults[key]}

    def number(self, section: str, name: str) -> int:
        return int(self.section(section)[name])

    def size(self, section: str, name: str) -> int | None:
        """A quantity of the spec in bytes."""
        text = self.section(section).get(name)
        return None if text is None else to_bytes(text)


def parse(body: Mapping[str, Any]) -> MeshModel:
    """The view of an object as the API server sends it. Raises ResourceError where the schema was not enforced."""
    try:
        metadata, spec = body["metadata"], body["spec"]
        return MeshModel(
            key=Key(metadata["namespace"], metadata["name"]),
            uid=metadata["uid"],
            generation=int(metadata.get("generation", 1)),
            deleting="deletionTimestamp" in metadata,
            spec=dict(spec),
            status=dict(body.get("status") or {}),
            shards=tuple(_shard(raw) for raw in spec["shards"]),
            version=int(metadata.get("resourceVersion") or 0),
        )
    except (KeyError, TypeError) as error:
        raise ResourceError(f"the MeshModel lacks {error}") from None


def _shard(raw: Mapping[str, Any]) -> Shard:
    return Shard(
        range=Range(raw["name"], int(raw["startLayer"]), int(raw["endLayer"])),
        replicas=raw.get("replicas"),
        gpu=(raw.get("gpu") or {}).get("resource"),
        raw=dict(raw),
    )
