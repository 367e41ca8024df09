"""`python -m cluster build|up|down FOLDER`: the control plane from a shell. `up` prints the KUBECONFIG to use."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from cluster.binaries import CHART, PLANE, BuildError, ensure
from cluster.plane import Plane, PlaneError, stop_folder


def _build() -> int:
    for tool in (*PLANE, *CHART):
        start = time.monotonic()
        print(f"{tool.name:26}{ensure(tool.name)}  {time.monotonic() - start:.1f} s")
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__)
    parser.add_argument("action", choices=("build", "up", "down"))
    parser.add_argument("folder", nargs="?", type=Path, default=Path(".cache/cluster"))
    args = parser.parse_args(argv)
    try:
        if args.action == "build":
            return _build()
        if args.action == "up":
            shutil.rmtree(args.folder, ignore_errors=True)
            args.folder.mkdir(parents=True)
            plane = Plane(args.folder.resolve(), outlive=True)
            plane.start()
            print(f"export KUBECONFIG={plane.kubeconfig}")
            return 0
        print("ended:", ", ".join(stop_folder(args.folder)) or "nothing")
        shutil.rmtree(args.folder, ignore_errors=True)
        return 0
    except (BuildError, PlaneError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
