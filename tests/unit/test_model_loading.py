"""Damaged and unfit checkpoints are refused in a sentence that says what is wrong; sound ones load whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import meshnet_testing_models as models
import pytest
import torch
from meshnet_testing_chain import runner
from safetensors.torch import load_file, save_file

from meshnet_node.errors import ConfigError, DtypeError, MeshnetError, ModelError, RangeError, WeightsError
from meshnet_node.model.convert import convert_gguf
from meshnet_node.model.cut import CutModel
from meshnet_node.model.demo import packaged_gguf
from meshnet_node.model.loader import check_dtype, load_range, resolve_dtype
from meshnet_node.model.packed import PackedLinear
from meshnet_node.model.source import resolve

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_model(tmp_path_factory.mktemp("llama") / "model", "llama")


@pytest.fixture
def model(sound: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(sound, tmp_path / "model")
    return tmp_path / "model"


def load(folder: Path, start: int = 0, end: int | None = None, dtype: str = "auto") -> CutModel:
    files = resolve(str(folder), cache_dir=folder)
    return load_range(files, start, end, dtype=dtype, device=CPU)[0]


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def set_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def test_a_missing_tensor_is_named_and_only_ranges_that_need_it_fail(model: Path) -> None:
    rewrite(model, lambda tensors: tensors.pop("model.layers.4.mlp.up_proj.weight"))
    with pytest.raises(WeightsError, match=r"lacks the tensor model\.layers\.4\.mlp\.up_proj\.weight"):
        load(model, 3, 5)
    load(model, 0, 3)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(model: Path) -> None:
    rewrite(model, lambda tensors: tensors.update({"model.norm.weight": torch.ones(63)}))
    with pytest.raises(WeightsError, match=r"model\.norm\.weight .* has the shape \[63\], the model wants \[64\]"):
        load(model)


def test_a_lost_expert_is_noticed(tmp_path: Path) -> None:
    folder = models.write_model(tmp_path / "model", "mixtral")
    name = next(
        name for name in load_file(folder / "model.safetensors") if ".experts.3." in name and "layers.2" in name
    )
    rewrite(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(WeightsError, match=r"lacks some of the parts of the tensor model\.layers\.2\."):
        load(folder)


@pytest.mark.parametrize("keep", [3, 200, 60_000])
def test_a_file_that_is_cut_off_is_refused(model: Path, keep: int) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(WeightsError, match=r"model\.safetensors .*cut off"):
        load(model)


def test_a_header_that_is_no_json_is_refused(model: Path) -> None:
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[8:40] = b"\xff" * 32
    weights.write_bytes(content)
    with pytest.raises(WeightsError, match=r"header of .* is damaged"):
        load(model)


def test_an_index_that_names_a_file_which_is_not_there(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    weight_map = {
        name: "model-00002-of-00002.safetensors" if ".layers.5." in name else "model-00001-of-00002.safetensors"
        for name in tensors
    }
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    load(model, 0, 4)
    with pytest.raises(WeightsError, match=r"lacks the file model-00002-of-00002\.safetensors"):
        load(model, 5, 5)


def test_a_folder_without_config_or_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json can't be read"):
        resolve(str(tmp_path), cache_dir=tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightsError, match="holds no safetensors files"):
        resolve(str(tmp_path), cache_dir=tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(ModelError, match="is not JSON"):
        resolve(str(tmp_path), cache_dir=tmp_path)


def test_a_range_outside_the_model(sound: Path) -> None:
    with pytest.raises(RangeError, match="outside the model, which has layers 0 to 5"):
        load(sound, 4, 6)


def test_the_checkpoints_own_dtype_is_taken_unless_another_is_named(model: Path) -> None:
    rewrite(model, lambda tensors: tensors.update({name: value.bfloat16() for name, value in tensors.items()}))
    set_config(model, dtype="bfloat16")
    assert load(model).model.dtype == torch.bfloat16
    assert load(model, dtype="float32").model.dtype == torch.float32
    set_config(model, dtype=None)
    assert load(model).model.dtype == torch.bfloat16


def test_dtypes_that_are_not_served_or_not_computable(model: Path) -> None:
    set_config(model, dtype="float8_e4m3fn")
    with pytest.raises(DtypeError, match="checkpoint is in float8_e4m3fn; served are float32"):
        resolve_dtype("auto", resolve(str(model), cache_dir=model))
    with pytest.raises(DtypeError, match="the device cpu can't compute in float8_e4m3fn"):
        check_dtype(torch.float8_e4m3fn, CPU)


def test_a_device_that_is_not_here(sound: Path) -> None:
    from meshnet_node.settings import ShardSettings
    from meshnet_node.shard.runner import RangeRunner

    with pytest.raises(ConfigError, match="MESHNET_DEVICE: cuda:99 can't be used here"):
        RangeRunner.load(ShardSettings(model=str(sound), device="cuda:99"))


def test_a_truncated_gguf_file_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    damaged = tmp_path / "model.gguf"
    with packaged_gguf().open("rb") as whole:
        damaged.write_bytes(whole.read(300_000))
    with pytest.raises(WeightsError, match=r"model\.gguf can't be read as a GGUF model"):
        convert_gguf(damaged, tmp_path / "made")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_a_conversion_never_replaces_a_folder_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "thesis.txt").write_text("years of work")
    with pytest.raises(MeshnetError, match="is not a folder that was converted"):
        convert_gguf(packaged_gguf(), tmp_path / "made")
    assert (tmp_path / "made" / "thesis.txt").exists()


@pytest.mark.parametrize("family", models.FAMILIES)
def test_what_no_checkpoint_holds_is_as_in_the_uncut_model(family: str, tmp_path: Path) -> None:
    """Rotary frequencies and the like, and each tensor's dtype, in a dtype in which some are kept in float32."""
    folder = models.write_model(tmp_path / "model", family)
    reference = models.uncut(folder, torch.bfloat16)
    cut = load(folder, dtype="bfloat16").model
    buffers = dict(cut.named_buffers())
    assert buffers.keys() == dict(reference.named_buffers()).keys()
    for name, buffer in reference.named_buffers():
        torch.testing.assert_close(buffers[name], buffer, atol=0, rtol=0)
    parameters = dict(cut.named_parameters())
    packed = {name for name, module in cut.named_modules() if isinstance(module, PackedLinear)}
    for name, parameter in reference.named_parameters():
        if name.rpartition(".")[0] not in packed:
            assert torch.equal(parameters[name], parameter), name


def test_a_middle_range_holds_no_memory_for_what_is_outside(sound: Path) -> None:
    cut = load(sound, 2, 3)
    there = {name for name, tensor in cut.model.named_parameters() if not tensor.is_meta}
    assert there
    assert all(name.startswith(("model.layers.2.", "model.layers.3.")) for name in there)


def test_progress_ends_at_the_bytes_of_the_range(sound: Path) -> None:
    seen: list[tuple[int, int]] = []
    files = resolve(str(sound), cache_dir=sound)
    _, total = load_range(files, 1, 2, dtype="auto", device=CPU, progress=lambda done, all_: seen.append((done, all_)))
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_two_runners_in_one_process_do_not_meet(sound: Path, tmp_path: Path) -> None:
    from meshnet_node.shard.runner import Work

    one, other = runner(sound), runner(models.write_model(tmp_path / "other", "llama", seed=5))
    ids = models.prompt(12, 1)
    alone = [hop.run([Work(None, 0, ids, None, "last")])[0] for hop in (one, other)]
    states = [one.new_state(20), other.new_state(20)]
    for position, token in enumerate(ids):
        mixed = [
            hop.run([Work(state, position, [token], None, "last")])[0]
            for hop, state in zip((one, other), states, strict=True)
        ]
    for whole, step in zip(alone, mixed, strict=True):
        torch.testing.assert_close(step, whole, atol=1e-4, rtol=0)
