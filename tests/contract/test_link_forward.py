"""Rows over a link, against the runner itself: prefill, decode, company, long rows, two shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from meshnet_node.wire.frames import Close, Closed, Opened
from meshnet_shard_server import ShardServer, dial, make_row, shard_server
from meshnet_testing_models import greedy, prompt, uncut, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_model(tmp_path_factory.mktemp("model") / "llama", "llama")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[ShardServer]:
    with shard_server(model, chunk=16) as running:
        yield running


async def test_greedy_tokens_are_those_of_generate(server: ShardServer, model: Path) -> None:
    head = await dial(server)
    tokens = prompt(40, 1)
    assert isinstance(await head.open("g", positions=80), Opened)
    result = await head.row(make_row("g", tokens, 0, 40, want="last"))
    for step in range(1, 20):
        assert result.token is not None, result
        tokens.append(result.token.id)
        result = await head.row(make_row("g", tokens, len(tokens) - 1, 1, step, want="last"))
    assert tokens[40:] == greedy(uncut(model), tokens[:40], 20)[:19]
    assert isinstance(await head.close(Close("g", 1)), Closed)
    await head.socket.close()
