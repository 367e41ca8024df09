"""What `--model` means to a local mesh: a folder with its layer count and a name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meshnet_node.errors import ConfigError
from meshnet_node.model.demo import write_demo
from meshnet_node.model.source import resolve
from meshnet_node.settings import ShardSettings

DEMO = "demo"
DEMO_NAME = "smollm2"
CHECKOUT = Path(".demo") / DEMO_NAME


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine. name: what the API calls it. source: folder or hub id, for head and shards."""

    source: str
    name: str
    num_layers: int


def local_model(model: str) -> LocalModel:
    """`demo` (written once into the cache folder), a folder, a GGUF file or a hub id. Raises ModelError, ConfigError."""
    cache = Path(str(ShardSettings.model_fields["cache_dir"].default)).expanduser()
    if model == DEMO:
        folder = CHECKOUT if (CHECKOUT / "config.json").is_file() else write_demo(cache / DEMO_NAME)
        return LocalModel(str(folder.resolve()), DEMO_NAME, _layers(folder, cache))
    path = Path(model).expanduser()
    if path.exists():
        folder = resolve(model, cache_dir=cache).folder
        return LocalModel(
            str(folder.resolve()), path.stem if path.is_file() else path.resolve().name, _layers(folder, cache)
        )
    return LocalModel(model, model, _layers(model, cache))


def _layers(model: Path | str, cache: Path) -> int:
    config = resolve(str(model), cache_dir=cache).config
    layers = config.get("text_config", config).get("num_hidden_layers") or config.get("n_layer")
    if not isinstance(layers, int):
        raise ConfigError(f"--model: the config of {model} states no num_hidden_layers")
    return layers
