"""One tiny model and one running shard for the contract tests that can share it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from meshnet_shard_server import ShardServer, shard_server
from meshnet_testing_models import write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_model(tmp_path_factory.mktemp("contract") / "llama", "llama")


@pytest.fixture(scope="session")
def whole(model: Path) -> Iterator[ShardServer]:
    """All six layers, pieces of 16 positions."""
    with shard_server(model, chunk=16, kv_max_sessions=6) as server:
        yield server
        server.check_idle()


@pytest.fixture(scope="session")
def front(model: Path) -> Iterator[ShardServer]:
    """Layers 0 to 2."""
    with shard_server(model, end_layer=2) as server:
        yield server
        server.check_idle()


@pytest.fixture(scope="session")
def back(model: Path) -> Iterator[ShardServer]:
    """Layers 2 to 5: overlaps with the front one, so that rows may start inside."""
    with shard_server(model, start_layer=2) as server:
        yield server
        server.check_idle()
