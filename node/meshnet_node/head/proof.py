"""One token through the whole path, before a head says for the first time that requests would be answered.

A link that is up proves token, fingerprint and range, and not that its shard can compute (vllm #15313, KubeRay #1559:
healthy before able to serve). Later losses are recovery's business.
"""

from __future__ import annotations

import asyncio

from meshnet_node.errors import ApiError
from meshnet_node.head.backend import GenerationRequest
from meshnet_node.head.mesh import Mesh
from meshnet_node.logs import events
from meshnet_node.wire.frames import Sampling

log = events(__name__)

RETRY_SECONDS = 1.0
HOLD_SECONDS = 5.0
# Any id will do; what comes out is thrown away.
REQUEST = GenerationRequest(
    prompt=(0,), max_new_tokens=1, sampling=Sampling(gen_start=1), stop_ids=frozenset(), max_hold=HOLD_SECONDS
)


async def prove(mesh: Mesh) -> None:
    """Returns once the mesh has given a token; from then on `mesh.ready()` follows its paths."""
    mesh.proven = False
    while True:
        if mesh.has_path():
            try:
                await _token(mesh)
            except ApiError as error:
                log.warning("no token through the path yet", reason=str(error))
            else:
                mesh.proven = True
                return
        await asyncio.sleep(RETRY_SECONDS if mesh.has_path() else RETRY_SECONDS / 10)


async def _token(mesh: Mesh) -> None:
    generation = await mesh.start(REQUEST)
    try:
        async for _ in generation:
            pass
    finally:
        await generation.aclose(keep=False)
