"""What every bench has: the model, the folder to work in, local meshes of it, and prompts."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from meshnet_node.bench.prompts import prompt_maker
from meshnet_node.errors import ConfigError
from meshnet_node.local.layers import split
from meshnet_node.local.mesh import SPIN_COUNT, LocalMesh, Plan, free_port
from meshnet_node.local.models import LocalModel

if TYPE_CHECKING:
    from meshnet_node.bench.reference import Reference

SHARDS = 2
POLL_SECONDS = 0.1
LINKS_SECONDS = 180.0

Result = dict[str, Any]


@dataclass
class Bench:
    """folder: a scratch folder. say: where progress goes (not the result). shards: the cut of its meshes."""

    model: LocalModel
    dtype: str
    folder: Path
    say: Callable[[str], None]
    shards: int = SHARDS
    numbers: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        folder = Path(self.model.source)
        if not folder.is_dir():
            raise ConfigError(f"--model: bench needs a folder or a GGUF file, and {self.model.source} is neither")
        self._make = prompt_maker(folder / "tokenizer.json")

    def prompt(self, length: int) -> list[int]:
        """So many token ids, other ones at each call."""
        self.numbers += 1
        return self._make(length, self.numbers)

    async def reference(self) -> Reference:
        """transformers' model, loaded in a thread."""
        self.say("loading the uncut model for transformers' generate")
        return await asyncio.to_thread(self._reference)

    def _reference(self) -> Reference:
        # The reference gets what the shards get: with libgomp's long spinning, generate at two threads falls to a third
        # as soon as anything else runs (docs/performance.md), and ratios would flatter. Read when torch is imported.
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
        from meshnet_node.bench.reference import Reference

        return Reference(self.model.source, self.dtype)

    @contextlib.asynccontextmanager
    async def mesh(
        self, name: str, *, replicas: int = 1, environment: Mapping[str, str] | None = None
    ) -> AsyncIterator[LocalMesh]:
        """A mesh of `shards` ranges (times replicas) whose processes are all ready, and gone afterwards."""
        plan = Plan(
            model=self.model.source,
            ranges=split(self.model.num_layers, min(self.shards, self.model.num_layers)),
            replicas=replicas,
            port=free_port(),
            dtype=self.dtype,
            served_name=self.model.name,
            folder=self.folder / name,
            environment=dict(environment or {}),
        )
        self.say(f"starting {name}: {len(plan.ranges)} shards, {replicas} of each")
        async with LocalMesh(plan, self.say) as mesh:
            await mesh.ready()
            await all_linked(mesh)
            yield mesh


async def all_linked(mesh: LocalMesh) -> None:
    """Until the head has links to every shard process as it runs now. Raises ConfigError after some minutes."""
    try:
        async with asyncio.timeout(LINKS_SECONDS), httpx2.AsyncClient() as client:
            while True:
                mesh.check()
                found = await describe(client, mesh)
                up = {shard["uid"] for shard in found["shards"] if shard["state"] == "ready"}
                if up >= {shard.uid for shard in mesh.shards}:
                    return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise ConfigError(f"not all shards were ready in {LINKS_SECONDS:.0f} s; see {mesh.plan.folder}") from None


async def describe(client: httpx2.AsyncClient, mesh: LocalMesh) -> Result:
    """GET /mesh."""
    found: Result = (await client.get(f"{mesh.url}/mesh")).json()
    return found
