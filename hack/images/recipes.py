"""What is in each image: layers and configuration, in the order in which they change least."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from cluster.binaries import HACK, cache_folder, ensure

from images import debian, wheels
from images.layout import Blob, Layout, digest_of

REPOSITORY = HACK.parent
LOCKS = REPOSITORY / "requirements"
VERSION = "0.1.0"
# No registry has them: each node gets them by hand.
REGISTRY = "localhost"
OPERATOR = f"{REGISTRY}/meshnet/operator:{VERSION}"
NODE = f"{REGISTRY}/meshnet/node:{VERSION}"
MODEL = f"{REGISTRY}/meshnet/smollm2:1"
PAUSE = f"{REGISTRY}/pause:1"
DNS = f"{REGISTRY}/coredns:1"
USER = "10001:10001"
DEMO = REPOSITORY / ".demo" / "smollm2"
CODE = Path(__file__).parent


@dataclass(frozen=True)
class Part:
    """One of our packages: its base's packages, its folder, its import name, its command."""

    base: tuple[str, ...]
    folder: str
    module: str
    command: str

    @property
    def lock(self) -> Path:
        return LOCKS / f"{self.folder}.lock"


PARTS = {
    OPERATOR: Part(debian.SLIM, "operator", "meshnet_operator", "meshnet-operator"),
    NODE: Part(debian.TORCH, "node", "meshnet_node", "meshnet"),
}
ALL = (OPERATOR, NODE, MODEL, PAUSE, DNS)


def layout() -> Layout:
    return Layout(cache_folder().parent / "images")


def base(store: Layout, part: Part) -> tuple[Path, Blob]:
    """The root file system and its layer."""
    key = digest_of(debian.SUITE, *part.base)
    root = store.root(f"{part.folder}-{key}", lambda made: debian.bootstrap(made, part.base))
    return root, store.pack(root, f"base-{part.folder}", key)


def build(store: Layout, name: str) -> Blob:
    """Makes one image or finds it made. Raises ImageError."""
    if part := PARTS.get(name):
        return _package(store, name, part)
    if name == MODEL:
        return _model(store)
    return _program(store, name, "coredns" if name == DNS else "pause")


def _package(store: Layout, name: str, part: Part, marker: str = "") -> Blob:
    root, lowest = base(store, part)
    compiler = wheels.python_version(root)
    locked = store.layer(
        f"wheels-{part.folder}",
        digest_of(part.lock, CODE / "wheels.py", compiler),
        lambda made: wheels.fill(made, root, wheels.install_lock(root, part.lock)),
    )
    own = store.layer(
        part.folder,
        digest_of(REPOSITORY / part.folder / part.module, REPOSITORY / part.folder / "pyproject.toml", compiler),
        lambda made: wheels.fill_own(made, root, part.folder, part.module, part.command),
    )
    config = {"User": USER, "Cmd": [part.command], "Env": ["PYTHONUNBUFFERED=1", *([marker] if marker else [])]}
    return store.image(name, [lowest, locked, own], config)


def other_node(store: Layout, tag: str) -> str:
    """The node image under another name and with another digest, for rollouts."""
    name = f"{NODE.rpartition(':')[0]}:{tag}"
    _package(store, name, PARTS[NODE], f"MESHNET_BUILD={tag}")
    return name


def _model(store: Layout) -> Blob:
    """The demo model's files alone: an image to mount, not to run."""

    def fill(made: Path) -> None:
        shutil.copytree(DEMO, made / "smollm2", ignore=shutil.ignore_patterns("cache"))

    key = digest_of(*(DEMO / file for file in ("config.json", "meshnet.json", "tokenizer.json")))
    return store.image(MODEL, [store.layer("smollm2", key, fill)], {})


def _program(store: Layout, name: str, program: str) -> Blob:
    binary = ensure(program)

    def fill(made: Path) -> None:
        (made / "bin").mkdir()
        shutil.copy(binary, made / "bin" / program)

    layer = store.layer(program, digest_of(binary), fill)
    return store.image(name, [layer], {"Entrypoint": [f"/bin/{program}"], "User": "65532:65532"})
