"""Case 44: nothing calls itself ready before a token has come through the whole path."""

from __future__ import annotations

import asyncio
from pathlib import Path

import meshnet_testing_models as models
import pytest
from meshnet_small import small_mesh

from meshnet_node.head.proof import prove


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_model(tmp_path_factory.mktemp("proof") / "model", "llama")


async def test_case_44_a_linked_shard_that_does_not_compute_makes_no_ready_head(llama: Path, tmp_path: Path) -> None:
    async with small_mesh(llama, tmp_path, silent_seconds=30) as small:
        _, last = await small.add("a", [(0, 2), (3, 5)])
        small.publish()
        await small.linked()
        last.freeze()
        proving = asyncio.create_task(prove(small.mesh))
        await asyncio.sleep(0.5)
        assert small.mesh.has_path()
        assert not small.mesh.ready()
        last.thaw()
        await asyncio.wait_for(proving, 20)
        assert small.mesh.ready()
        await small.idle()


async def test_case_44_a_path_whose_shard_refuses_every_session_is_tried_until_it_takes_one(
    llama: Path, tmp_path: Path
) -> None:
    async with small_mesh(llama, tmp_path, queue_seconds=0.1) as small:
        await small.add("a", [(0, 2), (3, 5)], kv_max_sessions=1)
        small.publish()
        await small.linked()
        proving: list[asyncio.Task[None]] = []

        async def at_first(seen: int) -> None:
            """While the only place is taken."""
            if seen == 1:
                proving.append(asyncio.create_task(prove(small.mesh)))
                await asyncio.sleep(0.5)
                assert not small.mesh.ready()

        await small.generate(models.prompt(5, 1), 8, at_first)
        await asyncio.wait_for(proving[0], 20)
        assert small.mesh.ready()
        await small.idle()
