"""Where a model comes from: a folder, a GGUF file (converted once into the cache folder) or a hub id.

Owns the files' whereabouts and nothing of their meaning. Of a hub id only the files that hold wanted tensors are
fetched: `names` needs the index alone, `locate` fetches what the given names need.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from meshnet_node.errors import ModelError, WeightsError
from meshnet_node.model.tensorfiles import StoredTensor, read_header

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SIDE_FILES = ("generation_config.json",)


@dataclass(frozen=True)
class ModelFiles:
    """A resolved model. folder: where config.json is; config: its content; commit: of a hub id, else None;
    weight_files: tensor name -> file name; fetch: file name -> path, downloading it where it is not here."""

    folder: Path
    config: Mapping[str, Any]
    commit: str | None
    weight_files: Mapping[str, str]
    fetch: Callable[[str], Path] = field(repr=False)

    @property
    def names(self) -> list[str]:
        """Names of all tensors of the checkpoint."""
        return list(self.weight_files)

    def locate(self, names: Iterable[str]) -> dict[str, StoredTensor]:
        """Where these tensors are; their files are here afterwards. Raises WeightsError."""
        wanted = list(names)
        headers = {file: read_header(self.fetch(file)) for file in {self.weight_files[name] for name in wanted}}
        found = {}
        for name in wanted:
            file = self.weight_files[name]
            if name not in headers[file]:
                raise WeightsError(f"{file} lacks the tensor {name} that the checkpoint's index says it holds")
            found[name] = headers[file][name]
        return found

    def files(self) -> list[Path]:
        """All weight files, in the order of their names (all must be here)."""
        return [self.fetch(file) for file in sorted(set(self.weight_files.values()))]


def resolve(model: str, *, revision: str | None = None, trust_remote_code: bool = False, cache_dir: Path) -> ModelFiles:
    """The model's files. Raises ModelError or WeightsError with a sentence that says what is not there."""
    path = Path(model).expanduser()
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        return _gguf(path, cache_dir.expanduser())
    if path.is_absolute() or model.startswith((".", "~")):
        raise ModelError(f"{model} does not exist")
    return _hub(model, revision, trust_remote_code)


def _gguf(path: Path, cache_dir: Path) -> ModelFiles:
    # Imported here: reading GGUF needs packages and seconds that an ordinary folder does not.
    from meshnet_node.model.convert import convert_gguf, is_gguf

    if not is_gguf(path):
        raise ModelError(f"{path} is neither a folder nor a GGUF file")
    stat = path.stat()
    key = f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}".encode()
    name = f"{path.stem}-{hashlib.sha256(key).hexdigest()[:16]}"
    return _folder(convert_gguf(path, cache_dir / "gguf" / name))


def _folder(folder: Path) -> ModelFiles:
    config = _json(folder / CONFIG)
    if (folder / INDEX).is_file():
        weights = _weight_map(folder / INDEX)
    else:
        weights = {name: file.name for file in sorted(folder.glob("*.safetensors")) for name in read_header(file)}
    if not weights:
        raise WeightsError(f"{folder} holds no safetensors files")

    def fetch(name: str) -> Path:
        if not (folder / name).is_file():
            raise WeightsError(f"{folder} lacks the file {name} of the checkpoint")
        return folder / name

    return ModelFiles(folder, config, None, weights, fetch)


def _hub(model: str, revision: str | None, trust_remote_code: bool) -> ModelFiles:
    def fetch(name: str) -> Path:
        try:
            return Path(hf_hub_download(model, name, revision=commit or revision))
        except LocalEntryNotFoundError as error:
            raise ModelError(f"{name} of {model} is not in the local cache, and the hub can't be reached") from error
        except EntryNotFoundError as error:
            raise WeightsError(f"{model} has no file {name} at {commit or revision or 'its main branch'}") from error
        except HFValidationError as error:
            raise ModelError(f"{model!r} is neither a folder, nor a file, nor the id of a model on the hub") from error
        except (HfHubHTTPError, OSError) as error:
            raise ModelError(f"{name} of {model} could not be fetched: {error}") from error

    commit: str | None = None
    config_path = fetch(CONFIG)
    # A snapshot's folder is named after its commit; the rest is asked for by that, so that a branch can't move midway.
    commit = config_path.parent.name
    config = _json(config_path)
    try:
        weights = _weight_map(fetch(INDEX))
    except (WeightsError, ModelError):
        weights = dict.fromkeys(read_header(fetch(SINGLE)), SINGLE)
    if trust_remote_code:
        _fetch_code(config, fetch)
    return ModelFiles(config_path.parent, config, commit, weights, fetch)


def _fetch_code(config: Mapping[str, Any], fetch: Callable[[str], Path]) -> None:
    """The Python files that the config names, which are then loaded from the snapshot's folder."""
    for reference in (config.get("auto_map") or {}).values():
        if isinstance(reference, str) and "--" not in reference:
            fetch(f"{reference.split('.', 1)[0]}.py")


def _weight_map(index: Path) -> dict[str, str]:
    found = _json(index).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise WeightsError(f"{index} has no weight_map from tensor names to files")
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return found
