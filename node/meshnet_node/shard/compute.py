"""What the model thread does with one group: bytes in, model, choice of tokens, bytes out.

Runs outside the event loop and touches nothing but its arguments; the states are written by the runner alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import Buffer

from meshnet_node.cache.states import SessionState
from meshnet_node.shard.runner import RangeRunner, Work
from meshnet_node.shard.sampler import Choice, choose, score
from meshnet_node.wire.frames import Sampling, Score

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Job:
    """A piece of one row: `tokens` at past_len..; `hidden` raw bytes of [1, n, hidden] or None where they are embedded.

    want: what the last hop has to put out after these positions. targets: ids to score, one per position, for `all`.
    samples: a token is to be chosen after the newest position.
    """

    state: SessionState | None
    past_len: int
    tokens: Sequence[int]
    hidden: memoryview | None
    want: Literal["none", "last", "all"]
    sampling: Sampling | None = None
    targets: Sequence[int] = ()
    history: array[int] = field(default_factory=lambda: array("i"))
    samples: bool = False


@dataclass(frozen=True)
class Output:
    """tensor: raw bytes of [1, n, hidden] from a shard that is not the last; else what was chosen and scored.

    broken: the model put out NaN for this row alone.
    """

    tensor: Buffer | None = None
    token: Score | None = None
    scores: list[Score] = field(default_factory=list)
    broken: bool = False


def compute(runner: RangeRunner, jobs: Sequence[Job], start_layer: int, strict: bool = False) -> list[Output]:
    """Run a decode batch (all of one position) or one job of any length. Raises whatever the model raises.

    strict: row by row, so that the shapes that a row is computed in never depend on its company.
    """
    if strict and len(jobs) > 1:
        return [output for job in jobs for output in compute(runner, [job], start_layer)]
    with torch.inference_mode():
        works = [
            Work(job.state, job.past_len, job.tokens, _tensor(job.hidden, len(job.tokens), runner), job.want)
            for job in jobs
        ]
        outputs = runner.run(works, start_layer)
        if not runner.is_last:
            return [Output(tensor=raw_bytes(hidden)) for hidden in outputs]
        return _decide(jobs, outputs)


def raw_bytes(tensor: Tensor) -> memoryview:
    """The tensor's bytes, little-endian, without a copy where it is contiguous on the CPU (any dtype)."""
    flat = tensor.detach().to("cpu").contiguous().view(-1)
    return flat.view(torch.uint8).numpy().data


def _tensor(raw: memoryview | None, n: int, runner: RangeRunner) -> Tensor | None:
    if raw is None:
        return None
    # One copy: received bytes are read-only, and tensors over read-only memory are undefined behaviour.
    flat = torch.frombuffer(bytearray(raw), dtype=TORCH_DTYPES[runner.schema[0].dtype])
    return flat.view(1, n, runner.hidden_size).to(runner.device)


def _decide(jobs: Sequence[Job], logits: Sequence[Tensor]) -> list[Output]:
    """Scores of `all` rows, and one token for each job that samples."""
    chosen = _choose(jobs, logits)
    outputs = []
    for number, (job, rows) in enumerate(zip(jobs, logits, strict=True)):
        scores = []
        if job.want == "all":
            scores = score(rows, job.targets, job.sampling.logprobs if job.sampling else 0)
        token = chosen.get(number)
        outputs.append(Output(token=token, scores=scores, broken=job.samples and token is None))
    return outputs


def _choose(jobs: Sequence[Job], logits: Sequence[Tensor]) -> dict[int, Score]:
    """Job number -> its token; a job whose logits are NaN has none, and takes no other with it."""
    numbers = [number for number, job in enumerate(jobs) if job.samples]
    if not numbers:
        return {}
    choices = [
        Choice(job.sampling or Sampling(), job.past_len + len(job.tokens), job.history)
        for job in (jobs[number] for number in numbers)
    ]
    rows = torch.cat([logits[number][-1:] for number in numbers])
    try:
        return dict(zip(numbers, choose(rows, choices), strict=True))
    except ArithmeticError:
        sound = [index for index in range(len(numbers)) if not bool(rows[index].isnan().any())]
        tokens = choose(rows[sound], [choices[index] for index in sound]) if sound else []
        return {numbers[index]: token for index, token in zip(sound, tokens, strict=True)}
