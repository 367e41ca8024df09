"""From a row to the pieces that the model thread runs, and from their outputs to the row's answer. Pure."""

from __future__ import annotations

from meshnet_node.cache.sessions import Session
from meshnet_node.cache.states import SessionState
from meshnet_node.errors import BadFrame
from meshnet_node.shard.compute import Job, Output
from meshnet_node.shard.items import Item, Reply
from meshnet_node.shard.runner import RangeRunner
from meshnet_node.shard.sampler import needs_history
from meshnet_node.wire.frames import RowResult, TensorSpec


def check_input(item: Item, start_layer: int) -> None:
    """Tokens are embedded at layer 0; a later start needs what the hop before put out. Raises BadFrame."""
    if start_layer == 0 and item.hidden is not None:
        raise BadFrame("tensors: a row that starts at layer 0 carries token ids only")
    if start_layer > 0 and item.hidden is None:
        raise BadFrame(f"tensors: a row that starts at layer {start_layer} needs the hidden states before it")


def next_job(item: Item, session: Session[SessionState] | None, n: int) -> Job:
    """The next n positions of a row. `session` None: a row of mode `none`, which runs in one piece.

    Only the last piece samples, and gets the token history where its penalties need it.
    """
    row, start, stop = item.row, item.done, item.done + n
    final = stop == row.n
    samples = final and (row.want == "last" or (row.want == "all" and row.sampling is not None))
    history = item.tokens[:0]
    if samples and row.sampling is not None and needs_history(row.sampling):
        history = item.tokens[:stop] if session is None else session.tape.tokens() + item.tokens[start:stop]
    hidden = None
    if item.hidden is not None:
        width = len(item.hidden) // row.n
        hidden = item.hidden[start * width : stop * width]
    return Job(
        state=None if session is None else session.state,
        past_len=row.past_len + start,
        tokens=item.tokens[start:stop],
        hidden=hidden,
        want=row.want if final or row.want == "all" else "none",
        sampling=row.sampling,
        targets=item.targets[start:stop] if item.targets is not None else (),
        history=history,
        samples=samples,
    )


def answer(item: Item, last: Output, runner: RangeRunner) -> Reply:
    """What all pieces of a row gave, as one answer; `last` is the output of its last piece."""
    row = item.row
    specs = []
    tensors = tuple(item.outputs) if len(item.outputs) < 2 else (b"".join(item.outputs),)
    if tensors:
        schema = runner.schema[0]
        specs.append(TensorSpec(schema.name, schema.dtype, [1, row.n, runner.hidden_size]))
    result = RowResult(
        session=row.session,
        attempt=row.attempt,
        step=row.step,
        past_len=row.past_len,
        n=row.n,
        tensors=specs,
        token=last.token,
        scores=item.scores,
    )
    return Reply(result, tensors)
