"""What a generation leaves behind at its shards when it ends, and how it looks from outside while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshnet_node.head.conversations import Parked

if TYPE_CHECKING:
    from meshnet_node.head.generation import MeshGeneration


def leave(generation: MeshGeneration, *, keep: bool) -> None:
    """End its session on all hops.

    A whole answer (keep) is parked for the conversation's next turn. A broken one is freed, but what it had adopted
    from an earlier turn is cut back to where that turn ended and parked again: never a half-written turn.
    """
    hops, adoption = generation.hops, generation.adoption
    held = min(hop.filled for hop in hops)
    if not keep and adoption is not None and adoption.take == "adopt":
        held = min(held, adoption.at)
        keep = held > 0
    keep = keep and not generation.stateless
    instances = tuple(hop.link.info.instance if hop.link is not None else "" for hop in hops)
    stages = tuple(hop.stage for hop in hops)
    for hop in hops:
        hop.release(keep=keep, at=held)
    if keep:
        tokens = tuple(generation.tokens.ids[:held])
        for log in generation.logs.values():
            log.cut(held)
            log.consumed_to(log.end)
            log.parked = True
        parked = Parked(generation.session, generation.request.key, tokens, stages, instances, generation.logs)
        generation.logs = {}
        generation.context.conversations.put(parked)


def describe(generation: MeshGeneration) -> dict[str, object]:
    """Its entry in GET /mesh."""
    hops = [
        {"layers": [hop.stage.start_layer, hop.stage.end_layer], "endpoint": hop.endpoint.uid, "filled": hop.filled}
        for hop in generation.hops
    ]
    prompt = len(generation.request.prompt)
    return {"session": generation.session, "prompt": prompt, "generated": generation.tokens.generated, "hops": hops}
