"""Which pods serve the same model: fingerprints as shards report them, pinned for each node image. Pure.

The first fingerprint that pods of an image report is pinned; a pod of that image which reports another one has loaded
something else (a branch that moved, another file) and is refused. Another image may well have another fingerprint
(its wire version is in it): its pods form a layout of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from meshnet_operator.pods import Pod


@dataclass(frozen=True)
class Identity:
    """prints: pod uid -> fingerprint, for pods that reported or whose image is pinned; refused: uids of pods that
    differ; pinned: the fingerprint of the wanted image, "" while nobody reported."""

    prints: Mapping[str, str] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    pinned: str = ""


def resolve(
    pods: Iterable[Pod], reported: Mapping[str, str], image: str, pinned: str = "", pinned_image: str = ""
) -> Identity:
    """reported: pod uid -> fingerprint; image, pinned_image: labels of the wanted image and of the one that `pinned`
    belongs to.
    """
    expected: dict[str, str] = {pinned_image: pinned} if pinned and pinned_image else {}
    mine = sorted((pod for pod in pods if pod.range is not None), key=lambda pod: (pod.created, pod.uid))
    for pod in mine:
        if pod.uid in reported:
            expected.setdefault(pod.image, reported[pod.uid])
    refused = frozenset(pod.uid for pod in mine if pod.uid in reported and reported[pod.uid] != expected[pod.image])
    prints = {pod.uid: expected[pod.image] for pod in mine if pod.image in expected and pod.uid not in refused}
    return Identity(prints, refused, expected.get(image, ""))
