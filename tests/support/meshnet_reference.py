"""The judge of every answer: the uncut model under transformers' own `generate`, greedy, float32.

A mismatch is excused only at a tie: where the reference's two best logits are closer than TIE at the first token that
differs (docs/architecture.md, "what a client may rely on"). Excused ones are counted and printed at the end of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

TIE = 1e-4


@dataclass
class Expected:
    """Token ids after the prompt, and for each of them how far the best logit was above the second."""

    ids: list[int]
    margins: list[float]


@dataclass
class Reference:
    """The uncut model of one folder. excused: ties that were met, as (prompt length, position)."""

    folder: Path
    excused: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32).eval()
        self._tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self._known: dict[tuple[int, ...], Expected] = {}

    def generate(self, prompt: Sequence[int], tokens: int) -> Expected:
        """What `generate` gives, kept for the next question with this prompt."""
        key = tuple(prompt)
        known = self._known.get(key)
        if known is None or len(known.ids) < tokens:
            known = self._known[key] = self._run(key, tokens)
        return Expected(known.ids[:tokens], known.margins[:tokens])

    def _run(self, prompt: tuple[int, ...], tokens: int) -> Expected:
        with torch.inference_mode():
            out = self._model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
                max_new_tokens=tokens,
                min_new_tokens=0,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
        margins = []
        for logits in out.logits:
            best = logits[0].float().topk(2).values
            margins.append(float(best[0] - best[1]))
        return Expected(out.sequences[0, len(prompt) :].tolist(), margins)

    def text(self, ids: Sequence[int]) -> str:
        """The text of these ids."""
        decoded: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return decoded

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def check(self, prompt: Sequence[int], got: Sequence[int], tokens: int) -> None:
        """Fails unless `got` is what generate gives, token for token, up to a tie of the reference."""
        expected = self.generate(prompt, tokens)
        assert len(got) == tokens, f"{len(got)} tokens came, {tokens} were asked for"
        for position, (have, want) in enumerate(zip(got, expected.ids, strict=True)):
            if have != want:
                margin = expected.margins[position]
                assert margin < TIE, (
                    f"token {position} after a prompt of {len(prompt)} is {have}, generate gives {want} "
                    f"(its lead over the second best is {margin:.2e})"
                )
                self.excused.append((len(prompt), position))
                return
