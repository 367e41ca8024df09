"""`python -m meshnet_node.bench.whole MODEL DTYPE PROMPT TOKENS`: generate with the whole model, print the peak bytes.

A process of its own, because a peak can't be measured twice in one.
"""

from __future__ import annotations

import os
import sys

from meshnet_node.bench.memory import peak
from meshnet_node.bench.reference import Reference


def main(arguments: list[str]) -> None:
    """One generation over a prompt of equal ids."""
    model, dtype, prompt, tokens = arguments
    Reference(model, dtype).generate([1] * int(prompt), int(tokens))
    print(peak(os.getpid()))


if __name__ == "__main__":
    main(sys.argv[1:])
