"""transformers' own `generate`, timed token by token: what the mesh is compared with. Uses all cores.

Imported only once a bench needs it: torch and transformers take seconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList
from transformers.utils import logging

from meshnet_node.bench.client import Timed

PAD = 0


class _Clock(StoppingCriteria):  # type: ignore[misc]
    """Notes the time after each step; ends nothing."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        self.times.append(time.monotonic())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class Reference:
    """The uncut model of a folder or hub id, in float32 or bfloat16, on the CPU."""

    def __init__(self, source: str, dtype: str) -> None:
        logging.disable_progress_bar()
        self._model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype)).eval()

    def generate(self, prompt: Sequence[int], tokens: int) -> Timed:
        """Exactly so many greedy tokens after one prompt."""
        return self.generate_batch([prompt], tokens)[0]

    def generate_batch(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[Timed]:
        """The same for several prompts as one batch, the shorter ones padded on the left."""
        longest = max(map(len, prompts))
        padded = [[PAD] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        clock = _Clock()
        began = time.monotonic()
        with torch.inference_mode():
            out = self._model.generate(
                torch.tensor(padded),
                attention_mask=torch.tensor(mask),
                max_new_tokens=tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=PAD,
                stopping_criteria=StoppingCriteriaList([clock]),
            )
        rows: list[list[int]] = out[:, longest:].tolist()
        return [Timed(began, row, list(clock.times), done=True) for row in rows]


def write_twin(folder: Path, layers: int, dtype: str) -> Path:
    """A llama of so many tiny layers with random weights: a shard that serves it holds nearly no weights."""
    logging.disable_progress_bar()
    config = AutoConfig.for_model(
        "llama",
        vocab_size=128,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
    )
    AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).save_pretrained(folder)
    return folder
