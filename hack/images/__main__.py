"""`python -m images build|export|sbom|audit`: see docs/cluster.md."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from cluster.binaries import BuildError

from images import bill, recipes
from images.layout import ImageError


def _build() -> int:
    store = recipes.layout()
    for name in recipes.ALL:
        began = time.monotonic()
        blob = recipes.build(store, name)
        print(f"{name:36}{blob.digest[:19]}  {time.monotonic() - began:.1f} s", flush=True)
    return 0


def _export(folder: Path) -> int:
    """Archives of our own images, for `docker load` and the like."""
    folder.mkdir(parents=True, exist_ok=True)
    store = recipes.layout()
    for name in (recipes.OPERATOR, recipes.NODE, recipes.MODEL):
        recipes.build(store, name)
        target = folder / f"{name.rpartition('/')[2].replace(':', '-')}.tar"
        store.export([name], target)
        print(target)
    return 0


def _sbom(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for name in recipes.PARTS:
        print(bill.write(name, folder))
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="images", description=__doc__)
    parser.add_argument("action", choices=("build", "export", "sbom", "audit"))
    parser.add_argument("folder", nargs="?", type=Path, default=Path("dist"), help="of archives and bills")
    args = parser.parse_args(argv)
    try:
        if args.action == "build":
            return _build()
        if args.action == "export":
            return _export(args.folder)
        return _sbom(args.folder) if args.action == "sbom" else bill.audit()
    except (BuildError, ImageError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
