"""A model with a kind of layer whose state can't be held is served without state, and is still right."""

from __future__ import annotations

from pathlib import Path

import meshnet_testing_models as models
import pytest
import torch
from meshnet_testing_chain import Chain

from meshnet_node.shard.runner import Work


def test_layers_of_an_unknown_kind_make_a_stateless_range(tmp_path: Path) -> None:
    # transformers takes this field as the sign of chunked attention, which no state here can hold.
    folder = models.write_model(tmp_path / "model", "llama", attention_chunk_size=64)
    ids = models.prompt(30, seed=2)
    want = models.greedy(models.uncut(folder), ids, 8)
    chain = Chain.load(folder, [(0, 2), (3, 5)])
    assert [hop.stateful for hop in chain.runners] == [False, False]
    tokens = list(ids)
    for _ in range(8):
        hidden: torch.Tensor | None = None
        for hop in chain.runners:
            (hidden,) = hop.run([Work(None, 0, tokens, hidden, "last")])
        assert hidden is not None
        tokens.append(int(hidden[-1].argmax()))
    assert tokens[30:] == want
    with pytest.raises(ValueError, match="state of this model can't be held"):
        chain.runners[0].run([Work(chain.runners[0].new_state(8), 0, ids[:4], None, "none")])
