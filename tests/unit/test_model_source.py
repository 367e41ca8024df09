"""Where models come from: folders, GGUF files that are converted once, and hub ids of which only the needed files are
had."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import meshnet_testing_models as models
import pytest
from meshnet_testing_demo import demo_folder
from safetensors.torch import load_file, save_file

from meshnet_node.errors import ModelError
from meshnet_node.model import convert
from meshnet_node.model.demo import main, packaged_gguf
from meshnet_node.model.identity import model_hash
from meshnet_node.model.source import resolve

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
LOAD = """
import sys, torch
from pathlib import Path
from meshnet_node.errors import MeshnetError
from meshnet_node.model.loader import load_range
from meshnet_node.model.source import resolve
try:
    files = resolve("someone/llama", revision=sys.argv[1] or None, cache_dir=Path(sys.argv[4]))
    load_range(files, int(sys.argv[2]), int(sys.argv[3]), dtype="auto", device=torch.device("cpu"))
    print("loaded", files.commit)
except MeshnetError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub cache that holds a model's config, its index, and the first of its two weight files (layers 0 to 2)."""
    cache = tmp_path_factory.mktemp("hub")
    folder = models.write_model(tmp_path_factory.mktemp("llama") / "model", "llama")
    snapshot = cache / "models--someone--llama" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(COMMIT)
    tensors = load_file(folder / "model.safetensors")
    late = ("model.layers.3", "model.layers.4", "model.layers.5", "model.norm", "lm_head")
    where = {name: SECOND if name.startswith(late) else FIRST for name in tensors}
    save_file({name: tensor for name, tensor in tensors.items() if where[name] == FIRST}, snapshot / FIRST)
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (snapshot / "config.json").write_bytes((folder / "config.json").read_bytes())
    return cache


def load_from_hub(hub: Path, start: int, end: int, revision: str = "") -> str:
    environment = {**os.environ, "HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", LOAD, revision, str(start), str(end), str(hub / "made")]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_of_a_hub_id_only_the_files_of_the_range_are_needed(hub: Path) -> None:
    assert load_from_hub(hub, 0, 2) == f"loaded {COMMIT}"
    assert load_from_hub(hub, 0, 2, revision=COMMIT) == f"loaded {COMMIT}"
    said = load_from_hub(hub, 2, 3)
    assert said == f"ModelError {SECOND} of someone/llama is not in the local cache, and the hub can't be reached"


def test_a_revision_that_is_not_here(hub: Path) -> None:
    said = load_from_hub(hub, 0, 2, revision="v9")
    assert said == "ModelError config.json of someone/llama is not in the local cache, and the hub can't be reached"


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("/nowhere/model", "does not exist"),
        ("./model", "does not exist"),
        ("not an id", "neither a folder, nor a file, nor the id of a model"),
    ],
)
def test_what_is_no_model_at_all(model: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=says):
        resolve(model, cache_dir=tmp_path)


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(ModelError, match="neither a folder nor a GGUF file"):
        resolve(str(tmp_path / "notes.txt"), cache_dir=tmp_path)


def test_the_demo_folder_is_written_once_and_is_an_ordinary_model(capsys: pytest.CaptureFixture[str]) -> None:
    folder = demo_folder()
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert isinstance(json.loads((folder / name).read_text()), dict)
    assert "<|im_start|>" in (folder / "chat_template.jinja").read_text()
    files = resolve(str(folder), cache_dir=folder)
    assert files.config["dtype"] == "float32"


@pytest.mark.parity
def test_a_gguf_file_is_converted_once_and_equals_the_folder(tmp_path: Path) -> None:
    found = [resolve(str(packaged_gguf()), cache_dir=tmp_path) for _ in range(2)]
    assert found[0].folder == found[1].folder
    assert found[0].folder.is_relative_to(tmp_path)
    assert model_hash(found[0], tmp_path) == model_hash(resolve(str(demo_folder()), cache_dir=tmp_path), tmp_path)


def test_a_folder_of_an_older_form_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []

    def write(source: Path, made: Path) -> None:
        made.mkdir()
        (made / convert.MARK).write_text(json.dumps({"form": convert.FORM, "source": source.name}))
        written.append(made)

    monkeypatch.setattr(convert, "_write", write)
    target = tmp_path / "made"
    target.mkdir()
    (target / convert.MARK).write_text(json.dumps({"form": convert.FORM - 1}))
    for _ in range(2):
        assert convert.convert_gguf(packaged_gguf(), target) == target
    assert len(written) == 1


def test_the_hash_tells_contents_apart_and_not_folders(tmp_path: Path) -> None:
    same = [models.write_model(tmp_path / name, "llama") for name in ("one", "two")]
    other = models.write_model(tmp_path / "three", "llama", seed=1)
    hashes = [model_hash(resolve(str(folder), cache_dir=tmp_path), tmp_path) for folder in (*same, other)]
    assert hashes[0] == hashes[1]
    assert hashes[0] != hashes[2]
