"""Prompts of a wanted length in tokens: prose through the model's own tokenizer, each beginning elsewhere in it.

No two prompts of a bench are the same: a mesh that still held the state of an earlier one would skip its prefill.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from pathlib import Path

from tokenizers import Tokenizer

from meshnet_node.errors import ConfigError

STRIDE = 41

PROSE = """
The ferry left at six, before the fog had lifted from the river, with eleven passengers, a crate of lemons and a
goat that belonged to nobody on board. The pilot steered by the bells of the two churches, one on either bank, and
when he could hear both equally well he knew that he was in the middle. Halfway across the engine stopped. Nobody
spoke. The pilot took off his coat, lifted the hatch and began to whistle, and those who had crossed with him before
opened their newspapers again.

Water boils at a lower temperature in the mountains, because there is less air above it to press it down. A cook who
moves from the coast to a high valley finds that beans stay hard and that bread rises too fast. The remedy is time
for the one and less yeast for the other. Glaciers keep a record of the air: each winter's snow closes over small
bubbles, and a core drilled from the ice can be read from top to bottom like the pages of a diary that somebody kept
for a hundred thousand years.

def first_repeated(items):
    seen = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None

Question: which planet has the shortest day? Answer: Jupiter, which turns once in about ten hours. Question: what is
the largest number below one hundred that is divisible only by itself and one? Answer: ninety-seven. In the archive
of the town hall there is a letter, dated the ninth of May, in which the baker asks for permission to keep a lamp
burning all night. The council granted it on two conditions: that the oil be his own, and that anyone who was out
late might come in and sit down.
"""


def prompt_maker(tokenizer_file: Path) -> Callable[[int, int], list[int]]:
    """A function (length, number) -> token ids; another number gives another beginning. Raises ConfigError."""
    if not tokenizer_file.is_file():
        raise ConfigError(f"--model: {tokenizer_file} is needed to make prompts")
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    ids: list[int] = tokenizer.encode(PROSE.strip(), add_special_tokens=False).ids
    # Without a common divisor with the length, the beginnings repeat only after all of them were used.
    stride = next(step for step in range(STRIDE, STRIDE + len(ids) + 1) if gcd(step, len(ids)) == 1)

    def make(length: int, number: int) -> list[int]:
        first = (number * stride) % len(ids)
        around = ids[first:] + ids * (length // len(ids) + 1)
        return around[:length]

    return make
