"""Run a range of layers over rows of sessions: the one place where the model and the sessions' states meet.

A RangeRunner holds the weights and no session: states are made by `new_state`, owned by the caller, and updated by
`run`. It must be called from one thread at a time. It knows nothing of the wire's frames, of sampling, or of who
asks.

Invariant: after `run`, a row's state holds n more positions in all layers that ran; if `run` raises, the states of its
rows are worthless and must be dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from meshnet_node.cache.states import LayerSpec, SessionState, state_bytes
from meshnet_node.errors import ConfigError, RangeError
from meshnet_node.model.cut import CutModel
from meshnet_node.model.loader import load_range
from meshnet_node.model.source import resolve
from meshnet_node.settings import ShardSettings
from meshnet_node.shard.attention import Batch, bind, register
from meshnet_node.shard.cachelayers import Kind, LearningCache, StateCache, kinds_of
from meshnet_node.wire.frames import TensorSpec


@dataclass(frozen=True)
class Work:
    """`len(tokens)` positions of one session, from past_len on.

    state None: compute and store nothing (past_len is 0). hidden: [1, n, hidden], None where the range begins at
    layer 0. want: which positions' logits the last range gives.
    """

    state: SessionState | None
    past_len: int
    tokens: Sequence[int]
    hidden: torch.Tensor | None
    want: Literal["none", "last", "all"]


class RangeRunner:
    """The loaded layers [start_layer, end_layer], both inclusive, of a model of num_layers."""

    def __init__(self, cut: CutModel, weight_bytes: int, device: torch.device) -> None:
        config = cut.config
        self._cut = cut
        self.start_layer = cut.layers.start
        self.end_layer = cut.layers.end
        self.num_layers = cut.layers.num_layers
        self.is_first = cut.layers.is_first
        self.is_last = cut.layers.is_last
        self.hidden_size: int = config.hidden_size
        self.vocab_size: int = config.vocab_size
        self.max_positions: int = config.max_position_embeddings
        self.dtype = str(cut.model.dtype).removeprefix("torch.")
        self.device = device
        self.weight_bytes = weight_bytes
        self.schema = [TensorSpec("hidden", self.dtype, [1, -1, self.hidden_size])]
        kinds = kinds_of(config)
        self.stateful = kinds is not None
        self._kinds = {} if kinds is None else {i: kind for i, kind in enumerate(kinds) if i in cut.layers}
        self._specs: dict[int, LayerSpec] = {}
        self._batch = Batch(windows={index: kind.window for index, kind in self._kinds.items()})
        if self.stateful:
            register()
            bind(cut.model, self._batch)
        self._cache = StateCache(self._batch, self._kinds, self.num_layers)

    @classmethod
    def load(
        cls, settings: ShardSettings, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> RangeRunner:
        """The range that the settings name, probed. progress: bytes of weights done, and in all.

        Raises ModelError (FamilyError, RangeError, WeightsError, DtypeError) or ConfigError.
        """
        device = _device(settings.device)
        files = resolve(
            settings.model,
            revision=settings.revision,
            trust_remote_code=settings.trust_remote_code,
            cache_dir=settings.cache_dir,
        )
        cut, weight_bytes = load_range(
            files,
            settings.start_layer,
            settings.end_layer,
            dtype=settings.dtype,
            device=device,
            trust_remote_code=settings.trust_remote_code,
            progress=progress,
        )
        runner = cls(cut, weight_bytes, device)
        runner.probe()
        return runner

    def probe(self) -> None:
        """Run a prompt and a decode row of made-up ids; learns the shapes of the states. Raises what the model
        raises."""
        tokens = [0, 0]
        hidden = None if self.is_first else self._zeros(len(tokens))
        if not self.stateful:
            self.run([Work(None, 0, tokens, hidden, "last")])
            return
        if not self._specs:
            learning = LearningCache(self._batch, self._kinds, self.num_layers)
            self._batch.begin([])
            with torch.inference_mode():
                self._forward(self.start_layer, [tokens], hidden, [0], learning, 1)
            self._batch.returned.clear()
            self._specs = learning.specs()
        state = self.new_state(len(tokens) + 1)
        self.run([Work(state, 0, tokens, hidden, "last")])
        self.run([Work(state, len(tokens), [0], None if self.is_first else self._zeros(1), "last")])

    def state_bytes(self, max_positions: int, start_layer: int | None = None) -> int:
        """Bytes that new_state with the same arguments allocates."""
        return state_bytes(self._specs_from(start_layer), max_positions)

    def new_state(self, max_positions: int, start_layer: int | None = None) -> SessionState:
        """An empty state for the layers start_layer..end, for at most max_positions."""
        with torch.inference_mode():
            return SessionState(self._specs_from(start_layer), max_positions, self.device)

    def run(self, works: Sequence[Work], start_layer: int | None = None) -> list[torch.Tensor]:
        """A decode batch (each row one position of a session that holds some), or one piece of work of any length.

        A range that is not the last gives for each work the hidden states [1, n, hidden] in the model's dtype; the last
        gives float32 logits [r, vocabulary]: r = 1 (want last), n (all) or 0 (none). States then hold n positions more.
        """
        start = self._start(start_layer)
        for work in works:
            self._check(work, len(works))
        if len(works) > 1 and any(work.past_len == 0 for work in works):
            return [out for work in works for out in self.run([work], start)]
        states = [work.state for work in works if work.state is not None]
        keep = max(_logits_wanted(work) for work in works)
        hidden = None if start == 0 else torch.cat([self._given(work) for work in works])
        cache = self._cache if states else None
        with torch.inference_mode():
            self._batch.begin(states)
            if cache is not None:
                cache.begin(start, fresh=works[0].past_len == 0)
            out = self._forward(
                start, [work.tokens for work in works], hidden, [work.past_len for work in works], cache, keep
            )
            if cache is not None:
                cache.end()
            self._advance(works)
            return self._results(works, out)

    def _forward(
        self,
        start: int,
        tokens: Sequence[Sequence[int]],
        hidden: torch.Tensor | None,
        pasts: Sequence[int],
        cache: StateCache | None,
        keep: int,
    ) -> torch.Tensor:
        ids = torch.tensor(tokens, dtype=torch.int64, device=self.device)
        first = torch.tensor(pasts, dtype=torch.int64, device=self.device)[:, None]
        positions = first + torch.arange(ids.shape[1], device=self.device)[None, :]
        return self._cut.run(start, ids, hidden, positions, cache, keep)

    def _results(self, works: Sequence[Work], out: torch.Tensor) -> list[torch.Tensor]:
        if not self.is_last:
            return [out[row : row + 1] for row in range(len(works))]
        none = torch.empty((0, self.vocab_size), dtype=torch.float32, device=self.device)
        return [out[row].float() if work.want != "none" else none for row, work in enumerate(works)]

    def _advance(self, works: Sequence[Work]) -> None:
        for work in works:
            if work.state is not None:
                chunk = len(work.tokens) > 1 or work.past_len == 0
                work.state.advance(len(work.tokens), snapshot=chunk, turn=work.want == "last")

    def _given(self, work: Work) -> torch.Tensor:
        if work.hidden is None or tuple(work.hidden.shape) != (1, len(work.tokens), self.hidden_size):
            raise ValueError("a range that does not begin at layer 0 needs hidden states of the same positions")
        return work.hidden.to(device=self.device, dtype=self._cut.model.dtype)

    def _check(self, work: Work, rows: int) -> None:
        if work.state is None:
            if rows > 1 or work.past_len:
                raise ValueError("work that stores nothing runs alone and from position 0")
            return
        if not self.stateful:
            raise ValueError("the state of this model can't be held")
        if work.past_len != work.state.filled:
            raise ValueError(f"past_len is {work.past_len}, the state holds {work.state.filled} positions")
        if work.past_len + len(work.tokens) > work.state.capacity:
            raise ValueError(f"the state has room for {work.state.capacity} positions only")
        if rows > 1 and len(work.tokens) != 1:
            raise ValueError("rows of a batch have one position each")

    def _start(self, start_layer: int | None) -> int:
        start = self.start_layer if start_layer is None else start_layer
        if not self.start_layer <= start <= self.end_layer:
            raise RangeError(f"layer {start} is not one of {self.start_layer} to {self.end_layer}")
        return start

    def _specs_from(self, start_layer: int | None) -> Mapping[int, LayerSpec]:
        start = self._start(start_layer)
        return {index: spec for index, spec in self._specs.items() if index >= start}

    def _zeros(self, n: int) -> torch.Tensor:
        return torch.zeros((1, n, self.hidden_size), dtype=self._cut.model.dtype, device=self.device)


def _logits_wanted(work: Work) -> int:
    return {"none": 0, "last": 1, "all": len(work.tokens)}[work.want]


def _device(name: str) -> torch.device:
    """The device of that name; auto is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"MESHNET_DEVICE: {name} can't be used here: {error}") from error
    return device


__all__ = ["Kind", "RangeRunner", "Work"]
