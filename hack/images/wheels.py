"""Python packages as a layer: wheels of a lock file, or our own package, compiled for the base's Python.

The root file system of a pod is read-only, so what is not compiled here would be compiled at every start, for many
seconds where it is torch and transformers.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from images.layout import ImageError, run

REPOSITORY = Path(__file__).resolve().parent.parent.parent
UV = REPOSITORY / ".venv" / "bin" / "uv"


def python_version(root: Path) -> str:
    """3.14 where /usr/bin/python3 points to python3.14."""
    return os.readlink(root / "usr/bin/python3").removeprefix("python")


def install_lock(base: Path, lock: Path) -> list[str]:
    """The command that installs a lock file, but for its target."""
    return ["--require-hashes", "--only-binary=:all:", f"--requirement={lock}", *_platform(base)]


def _platform(base: Path) -> list[str]:
    return [f"--python-version={python_version(base)}", "--python-platform=x86_64-unknown-linux-gnu", "--no-deps"]


def fill(root: Path, base: Path, arguments: list[str]) -> None:
    """Installs into the layer `root`, to be laid on `base`, and compiles. Raises ImageError."""
    target = root / "usr/local/lib" / f"python{python_version(base)}" / "dist-packages"
    # Hard links into uv's cache would be compiled there.
    run(UV, "pip", "install", "--quiet", "--link-mode=copy", f"--target={target}", *arguments)
    shutil.rmtree(target / "bin", ignore_errors=True)
    (target / ".lock").unlink(missing_ok=True)
    compile_all(root, base, target)


def fill_own(root: Path, base: Path, package: str, module: str, command: str) -> None:
    """Our package from its folder, and its command. Built from a copy: setuptools leaves folders behind."""
    copy = root.parent / "source"
    shutil.copytree(REPOSITORY / package, copy, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    fill(root, base, ["--no-build-isolation", *_platform(base), str(copy)])
    script = root / "usr/local/bin" / command
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/usr/bin/python3\nimport sys\n\nfrom {module}.__main__ import main\n\nsys.exit(main())\n")
    script.chmod(0o755)


def compile_all(root: Path, base: Path, target: Path) -> None:
    """By the base's Python without entering it. Its checks by hash are off: the files can't change."""
    (loader,) = (base / "lib64").glob("ld-linux-*.so.2")
    libraries = next((base / "usr/lib").glob("*-linux-gnu"))
    python = base / "usr/bin" / os.readlink(base / "usr/bin/python3")
    done = subprocess.run(
        [loader, "--library-path", libraries, python, "-m", "compileall", "-q", "--invalidation-mode",
         "unchecked-hash", "-s", str(root), "-p", "/", str(target)],
        env={"PYTHONHOME": str(base / "usr"), "PATH": os.environ["PATH"]}, capture_output=True, text=True,
    )  # fmt: skip
    # Some packages ship files that no Python reads, such as templates: those are named, and no reason to stop.
    if done.returncode not in (0, 1) or not any(target.rglob("*.pyc")):
        raise ImageError(f"compileall: {(done.stderr or done.stdout)[-2000:]}")


def versions(lock: Path) -> list[tuple[str, str]]:
    """Name and version of each package of a lock file."""
    return re.findall(r"^([A-Za-z0-9_.-]+)==([^ ;\\]+)", lock.read_text(), re.MULTILINE)
