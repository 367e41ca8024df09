"""Where the weights come from, and what that means for a pod: volumes, mounts and environment.

Allowed pairs of model.source and weights.volume (the CRD refuses the others):

    hf://       none or emptyDir: a cache as long as the pod's life
                a claim: a cache that stays (readOnly: filled already, the hub is never asked)
                an image: a filled cache, never asked
    pvc://      none: the claim is mounted read-only
    image://    none: the image is mounted read-only
    file:///    none: the model is in the node image
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshnet_operator.errors import ResourceError
from meshnet_operator.quantity import to_bytes
from meshnet_operator.resource import MeshModel

STATE = "/var/lib/meshnet"
HUB = f"{STATE}/hub"
MODELS = "/models"
VOLUME = "meshnet-weights"


@dataclass(frozen=True)
class Weights:
    """model: value of MESHNET_MODEL; claim: the PersistentVolumeClaim that pods mount; image: needs image volumes."""

    model: str
    offline: bool
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()
    claim: str | None = None
    image: bool = False
    hub: bool = field(default=False)


def weights(model: MeshModel) -> Weights:
    """How the pods of this MeshModel get at its weights. Raises ResourceError for a source that the CRD would
    refuse.
    """
    scheme, _, rest = str(model.spec["model"]["source"]).partition("://")
    if scheme == "hf":
        return _hub(rest, model.section("weights").get("volume") or {})
    if scheme == "file":
        return Weights(rest, offline=True)
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        volume = {"name": VOLUME, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        return Weights(_under(path), True, (volume,), (_mount(MODELS, True),), claim=claim)
    if scheme == "image" and (found := _image(rest)):
        reference, path = found
        volume = {"name": VOLUME, "image": {"reference": reference, "pullPolicy": "IfNotPresent"}}
        return Weights(_under(path), True, (volume,), (_mount(MODELS, True),), image=True)
    raise ResourceError(f"model.source {model.spec['model']['source']!r} is of no known kind")


def _image(rest: str) -> tuple[str, str] | None:
    """Reference and path of an image source. A registry's port is no tag, so the longest reference wins."""
    for cut in [len(rest), *(at for at in range(len(rest) - 1, 0, -1) if rest[at] == "/")]:
        reference, path = rest[:cut], rest[cut:].strip("/")
        last = reference.rsplit("/", 1)[-1]
        if "@sha256:" in last or ":" in last.partition("@")[0]:
            return reference, path
    return None


def _hub(model: str, volume: dict[str, Any]) -> Weights:
    if "image" in volume:
        image = volume["image"]
        source = {"reference": image["reference"], "pullPolicy": image.get("pullPolicy", "IfNotPresent")}
        return Weights(model, True, ({"name": VOLUME, "image": source},), (_mount(HUB, True),), image=True)
    if claim := volume.get("persistentVolumeClaim"):
        fixed = bool(claim.get("readOnly", False))
        mount = _mount(HUB, fixed) | ({"subPath": claim["subPath"]} if "subPath" in claim else {})
        spec = {"claimName": claim["claimName"], "readOnly": fixed}
        made = {"name": VOLUME, "persistentVolumeClaim": spec}
        return Weights(model, fixed, (made,), (mount,), claim=claim["claimName"], hub=not fixed)
    limit = (volume.get("emptyDir") or {}).get("sizeLimit")
    empty = {} if limit is None else {"sizeLimit": str(to_bytes(limit))}
    return Weights(model, False, ({"name": VOLUME, "emptyDir": empty},), (_mount(HUB, False),), hub=True)


def _under(path: str) -> str:
    return f"{MODELS}/{path}" if path else MODELS


def _mount(path: str, fixed: bool) -> dict[str, Any]:
    return {"name": VOLUME, "mountPath": path, "readOnly": fixed}
