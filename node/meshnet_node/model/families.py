"""The families of models that are proven equal to the uncut model, and what is refused by name.

The only place that knows families' names. A family is added here once the equality tests pass for it with all its kinds
of layers; everything else follows from the structure of the loaded model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meshnet_node.errors import FamilyError

PROVEN = (
    "deepseek_v3",
    "gemma3_text",
    "gpt_oss",
    "granitemoehybrid",
    "llama",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_next",
)
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def check_family(config: Mapping[str, Any]) -> None:
    """Raise FamilyError unless a model of this config.json is served right."""
    family = config.get("model_type")
    if family not in PROVEN:
        raise FamilyError(f"models of the family {family!r} are not served; these are: {', '.join(PROVEN)}")
    for kind in _rope_kinds(config):
        if kind in LENGTH_DEPENDENT_ROPE:
            raise FamilyError(f"rotary embeddings of the kind {kind!r} change with the length and are not served")
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method is not None:
        raise FamilyError(
            f"checkpoints quantised by {method!r} are not served; use one in float32, bfloat16 or float16"
        )


def boundaries(num_layers: int) -> list[int]:
    """Layers that a range may start at. All, for the proven families: none shares state between layers."""
    return list(range(num_layers))


def _rope_kinds(config: Mapping[str, Any]) -> Iterator[str]:
    """Kinds of rotary embeddings, where the config names one for all layers or one for each type of layer."""
    for field in ("rope_parameters", "rope_scaling"):
        found = config.get(field)
        if not isinstance(found, Mapping):
            continue
        for group in (found, *(value for value in found.values() if isinstance(value, Mapping))):
            kind = group.get("rope_type", group.get("type"))
            if isinstance(kind, str):
                yield kind
