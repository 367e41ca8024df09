"""What `--model` means to a local mesh: a folder with its layer count and a name.

A folder is judged by its config.json alone, and what reads checkpoints is imported only where there is something to
convert or to fetch: it takes seconds that `meshnet up` should not make anybody wait for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshnet_node.errors import ConfigError
from meshnet_node.settings import ShardSettings

DEMO = "demo"
DEMO_NAME = "smollm2"
CHECKOUT = Path(".demo") / DEMO_NAME
CONFIG = "config.json"


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine. name: what the API calls it. source: folder or hub id, for head and shards."""

    source: str
    name: str
    num_layers: int


def local_model(model: str) -> LocalModel:
    """`demo` (written into the cache folder once), a folder, a GGUF file, a hub id. Raises ModelError, ConfigError."""
    if model == DEMO:
        folder = CHECKOUT if (CHECKOUT / CONFIG).is_file() else _demo(_cache())
        return _in_folder(folder, DEMO_NAME)
    path = Path(model).expanduser()
    if (path / CONFIG).is_file():
        return _in_folder(path, path.resolve().name)
    return _resolved(model, path)


def layers_of(config: Mapping[str, Any], model: str) -> int:
    """num_hidden_layers, by any of its names. Raises ConfigError."""
    layers = config.get("text_config", config).get("num_hidden_layers") or config.get("n_layer")
    if not isinstance(layers, int):
        raise ConfigError(f"--model: the config of {model} states no num_hidden_layers")
    return layers


def _in_folder(folder: Path, name: str) -> LocalModel:
    try:
        config = json.loads((folder / CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--model: {folder / CONFIG} can't be read: {error}") from error
    return LocalModel(str(folder.resolve()), name, layers_of(config, str(folder)))


def _resolved(model: str, path: Path) -> LocalModel:
    from meshnet_node.model.source import resolve

    files = resolve(model, cache_dir=_cache())
    layers = layers_of(files.config, model)
    if path.is_file():
        return LocalModel(str(files.folder.resolve()), path.stem, layers)
    return LocalModel(model, model, layers)


def _demo(cache: Path) -> Path:
    from meshnet_node.model.demo import write_demo

    return write_demo(cache / DEMO_NAME)


def _cache() -> Path:
    return Path(str(ShardSettings.model_fields["cache_dir"].default)).expanduser()
