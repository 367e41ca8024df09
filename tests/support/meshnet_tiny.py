"""A tiny random llama with a byte-level tokenizer: a whole mesh of it starts as fast as its processes can."""

from __future__ import annotations

from pathlib import Path

from meshnet_testing_models import write_model
from meshnet_tokenizers import byte_level

VOCABULARY = 272
LAYERS = 6


def write_tiny(folder: Path) -> Path:
    """The model as a folder that head, shards and transformers read; ids of bytes are all below VOCABULARY."""
    write_model(folder, "llama", vocab_size=VOCABULARY, num_hidden_layers=LAYERS, max_position_embeddings=2048)
    tokenizer = byte_level()
    assert tokenizer.get_vocab_size() <= VOCABULARY
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
