"""What this process knows of the cluster: MeshModels, their pods, their children. Grouped by MeshModel, no calls.

Every entry comes from a list, a watch or the answer to an own write; nothing here is a decision.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from meshnet_operator import names
from meshnet_operator.kinds import Kind
from meshnet_operator.pods import Pod
from meshnet_operator.resource import Key, MeshModel

Object = dict[str, Any]


def pack(body: Object) -> bytes:
    """The object as it is kept: JSON takes a quarter of a dictionary's memory. Without what nobody here reads:
    managedFields are half of its size. What of them matters is kept as `ownsReplicas`: whether we set spec.replicas.
    """
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    fields = [
        one.get("fieldsV1", {})
        for one in body["metadata"].get("managedFields") or []
        if one.get("manager") == names.MANAGER and one.get("operation") == "Apply"
    ]
    owns = any("f:replicas" in one.get("f:spec", {}) for one in fields)
    kept = {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}
    return json.dumps(
        {**kept, "metadata": metadata} | ({"ownsReplicas": True} if owns else {}), sort_keys=True
    ).encode()


def unpack(packed: bytes) -> Object:
    body: Object = json.loads(packed)
    return body


def key_of(body: Object) -> Key:
    metadata = body["metadata"]
    return Key(metadata["namespace"], (metadata.get("labels") or {}).get(names.MODEL, ""))


class Store:
    """The process's view. Single event loop, no locks."""

    def __init__(self) -> None:
        self.models: dict[Key, MeshModel] = {}
        # Of pods that were asked: a shard's fingerprint by uid, and uids of heads without a token so far.
        self.reported: dict[str, str] = {}
        self.unproven: set[str] = set()
        self._pods: defaultdict[Key, dict[str, Pod]] = defaultdict(dict)
        self._children: defaultdict[Key, defaultdict[Kind, dict[str, bytes]]] = defaultdict(lambda: defaultdict(dict))
        self._secrets: dict[Key, list[Object]] = {}

    def pods(self, key: Key) -> list[Pod]:
        return list(self._pods[key].values()) if key in self._pods else []

    def set_pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod whose label changed moves from one MeshModel to another."""
        if old is not None and (new is None or new.key != old.key):
            mine = self._pods[old.key]
            mine.pop(old.uid, None)
            if not mine:
                del self._pods[old.key]
            if new is None:
                self.reported.pop(old.uid, None)
                self.unproven.discard(old.uid)
        if new is not None:
            self._pods[new.key][new.uid] = new

    def children(self, key: Key) -> dict[Kind, dict[str, Object]]:
        """By kind and name, each call a copy of its own."""
        found = self._children.get(key)
        if not found:
            return {}
        return {kind: {name: unpack(one) for name, one in bodies.items()} for kind, bodies in found.items()}

    def set_child(self, kind: Kind, packed: bytes) -> None:
        body = unpack(packed)
        self._children[key_of(body)][kind][body["metadata"]["name"]] = packed

    def drop_child(self, kind: Kind, key: Key, name: str) -> None:
        if key in self._children:
            self._children[key][kind].pop(name, None)

    def replace_children(self, kind: Kind, bodies: Iterable[Object]) -> set[Key]:
        """Puts a whole list in the place of all objects of a kind; returns the MeshModels for which something
        differs.
        """
        fresh: defaultdict[Key, dict[str, bytes]] = defaultdict(dict)
        for body in bodies:
            fresh[key_of(body)][body["metadata"]["name"]] = pack(body)
        changed = set()
        for key in {*self._children, *fresh}:
            before = self._children[key][kind] if key in self._children else {}
            if before != fresh[key]:
                changed.add(key)
                self._children[key][kind] = fresh[key]
        return changed

    def set_secrets(self, listed: Iterable[Object]) -> None:
        found: defaultdict[Key, list[Object]] = defaultdict(list)
        for body in listed:
            found[key_of(body)].append(body)
        self._secrets = dict(found)

    def add_secret(self, key: Key, metadata_only: Object) -> None:
        self._secrets.setdefault(key, []).append(metadata_only)

    def has_secret(self, model: MeshModel) -> bool:
        """Whether the shard token is there: metadata only is known of it."""
        mine = self._secrets.get(model.key, [])
        return any(body["metadata"]["name"] == names.secret(model.name) and _owned(body, model.uid) for body in mine)

    def forget(self, key: Key) -> None:
        """The MeshModel is gone. Its pods stay known until they are gone too: their names may come back."""
        self.models.pop(key, None)
        self._children.pop(key, None)
        self._secrets.pop(key, None)


def _owned(body: Object, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in body["metadata"].get("ownerReferences") or [])
