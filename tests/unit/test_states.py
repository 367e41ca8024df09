"""What a session keeps: bytes, appending, cutting back, copying, for each kind of layer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshnet_node.cache.states import LayerSpec, SessionState, StateError, state_bytes
from meshnet_node.cache.states_kv import DRAFT, KvSpec
from meshnet_node.cache.states_recurrent import RecurrentSpec, TensorShape

CPU = torch.device("cpu")
WINDOW = 8
FULL = LayerSpec(kv=KvSpec(2, 4, 1, 3, torch.float32))
SLIDING = LayerSpec(kv=KvSpec(2, 4, 2, 4, torch.float32, window=WINDOW))
RECURRENT = LayerSpec(
    recurrent=RecurrentSpec(
        {("conv", 0): TensorShape((5, 4), torch.float32), ("recurrent", 0): TensorShape((2, 3, 3), torch.float16)}
    )
)


def rows(spec: KvSpec, start: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values that tell their position."""
    numbers = torch.arange(start, start + n, dtype=spec.dtype)[None, None, :, None]
    return numbers.expand(1, spec.key_heads, n, spec.key_dim), -numbers.expand(1, spec.value_heads, n, spec.value_dim)


@torch.inference_mode()
def write(state: SessionState, n: int, *, turn: bool = False) -> None:
    """n positions into every layer, as a forward pass does; what attention is shown is checked on the way."""
    past = state.filled
    for layer in state.layers.values():
        if layer.kv is not None:
            keys, values = layer.kv.append(*rows(layer.kv.spec, past, n))
            window = layer.kv.spec.window
            first = 0 if window is None else max(0, past - window + 1)
            shown = list(range(first, past + n))
            assert keys[0, -1, :, -1].tolist() == shown
            assert values[0, -1, :, -1].tolist() == [-number for number in shown]
        if layer.recurrent is not None:
            for tensor in layer.recurrent.current.values():
                tensor.fill_(past + n)
    state.advance(n, snapshot=n > 1, turn=turn)
    state.check()


def held(state: SessionState) -> set[float]:
    """What the recurrent tensors say."""
    layers = [layer.recurrent for layer in state.layers.values() if layer.recurrent is not None]
    return {float(tensor.max()) for layer in layers for tensor in layer.current.values()}


@pytest.mark.parametrize("capacity", [1, 7, 500])
def test_bytes_are_known_before_and_are_those_allocated(capacity: int) -> None:
    specs = {0: FULL, 1: SLIDING, 2: RECURRENT, 3: LayerSpec(), 4: LayerSpec(SLIDING.kv, RECURRENT.recurrent)}
    state = SessionState(specs, capacity, CPU)
    state.check()
    assert state.nbytes == state_bytes(specs, capacity)
    before = state.nbytes
    write(state, capacity)
    assert state.nbytes == before


def test_a_window_costs_no_more_however_long_the_session() -> None:
    assert state_bytes({0: SLIDING}, 10_000) == state_bytes({0: SLIDING}, 1_000)


def test_whole_keys_can_be_cut_back_anywhere() -> None:
    state = SessionState({0: FULL}, 50, CPU)
    write(state, 40)
    assert [state.resumable(q) for q in (0, 1, 39, 40, 99)] == [0, 1, 39, 40, 40]
    state.rewind(17)
    write(state, 3)
    assert state.filled == 20


def test_a_window_can_be_cut_back_while_it_is_held_and_else_starts_again() -> None:
    state = SessionState({0: SLIDING}, 1000, CPU)
    write(state, 20)
    for _ in range(300):
        write(state, 1)
        assert state.resumable(state.filled - DRAFT) == state.filled - DRAFT
    assert state.resumable(20) == 0
    state.rewind(state.filled - DRAFT)
    write(state, 5)
    with pytest.raises(StateError, match="can't be cut back to 20"):
        state.rewind(20)
    state.rewind(0)
    write(state, 30)


def test_chunks_longer_than_the_window_buffer() -> None:
    state = SessionState({0: SLIDING}, 2000, CPU)
    for n in (5, 400, 1, 300, 137, 1, 128, 1):
        write(state, n)


def test_recurrent_states_stand_where_they_are_or_at_a_snapshot() -> None:
    state = SessionState({0: RECURRENT}, 100, CPU)
    write(state, 10, turn=True)
    write(state, 1)
    write(state, 6)
    write(state, 1)
    assert [state.resumable(q) for q in (18, 17, 16, 11, 10, 9)] == [18, 17, 10, 10, 10, 0]
    state.rewind(17)
    assert held(state) == {17}
    state.rewind(10)
    assert held(state) == {10}
    assert state.resumable(17) == 10
    write(state, 4)
    state.rewind(0)
    assert state.filled == 0


def test_layers_of_several_kinds_stand_where_all_can() -> None:
    state = SessionState({0: FULL, 1: SLIDING, 2: RECURRENT}, 1000, CPU)
    write(state, 30, turn=True)
    write(state, 20)
    write(state, 1)
    assert state.resumable(51) == 51
    assert state.resumable(50) == 50
    assert state.resumable(49) == 30
    write(state, 600)
    assert state.resumable(600) == 0, "the snapshot at 50 and 30 is there, the window before them is not"


def test_a_copy_lives_its_own_life() -> None:
    state = SessionState({0: FULL, 1: SLIDING, 2: RECURRENT}, 300, CPU)
    write(state, 140, turn=True)
    write(state, 60)
    copied = state.copy(210)
    write(state, 1)
    assert (copied.filled, copied.capacity) == (200, 210)
    assert copied.nbytes == state_bytes({0: FULL, 1: SLIDING, 2: RECURRENT}, 210)
    assert copied.resumable(200) == 200
    write(copied, 10)
    assert held(state) == {201}
    assert held(copied) == {210}
    with pytest.raises(StateError, match="does not fit"):
        state.copy(200)


def test_the_check_finds_bytes_that_were_not_accounted() -> None:
    state = SessionState({0: FULL}, 10, CPU)
    kv = state.layers[0].kv
    assert kv is not None
    kv.keys = torch.cat((kv.keys, kv.keys))
    with pytest.raises(StateError, match="bytes are accounted"):
        state.check()


@given(steps=st.lists(st.tuples(st.integers(1, 200), st.booleans(), st.integers(0, 900)), max_size=20))
def test_any_order_of_writing_and_cutting_back(steps: list[tuple[int, bool, int]]) -> None:
    """`write` checks what attention is shown, whatever was cut back before."""
    state = SessionState({0: FULL, 1: SLIDING, 2: RECURRENT}, 900, CPU)
    for n, turn, back in steps:
        if state.filled + n <= state.capacity:
            write(state, n, turn=turn)
            assert held(state) == {state.filled}
        position = state.resumable(back)
        assert position <= min(back, state.filled)
        state.rewind(position)
        assert state.filled == position
        assert position == 0 or held(state) == {position}
