"""Base root file systems from Debian packages, by debootstrap and the package mirror that this machine uses itself.

The mirror's torch is built for CPUs: the package index has only the CUDA build, which is 4.7 GB with its libraries and
does not import without them. The base with it takes 1.6 GB, most of it torch and LLVM.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from images.layout import ImageError, run

SUITE = os.environ.get("MESHNET_DEBIAN_SUITE", "forky")
SCRIPTS = Path("/usr/share/debootstrap/scripts")
SLIM = ("ca-certificates", "python3")
# The reference BLAS, which torch would use without it, is many times slower.
TORCH = (*SLIM, "python3-torch", "libopenblas0-pthread")
DROPPED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/include",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
)


def bootstrap(root: Path, packages: tuple[str, ...]) -> None:
    """Raises ImageError."""
    if shutil.which("debootstrap") is None:
        raise ImageError("debootstrap is missing: `make packages` installs it")
    # An older debootstrap has no script for a newer suite; they are all the same one.
    script = [] if (SCRIPTS / SUITE).exists() else ["sid"]
    run("debootstrap", "--variant=minbase", f"--include={','.join(packages)}", SUITE, root, mirror(), *script)
    for part in DROPPED:
        shutil.rmtree(root / part, ignore_errors=True)
        (root / part).mkdir(parents=True)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    # Where the kubelet mounts the pod's own.
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    (root / "etc/resolv.conf").touch()


def mirror() -> str:
    """The address of the first Debian source of this machine."""
    places = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for file in places:
        if file.suffix in (".list", ".sources") and file.is_file():
            found = re.search(r"^(?:deb |URIs:)\s*(?:\[.*?\]\s*)?(https?://\S+)", file.read_text(), re.MULTILINE)
            if found:
                return found[1]
    raise ImageError("no package mirror in /etc/apt: debootstrap needs one")


def packages(root: Path) -> list[tuple[str, str]]:
    """Name and version of each Debian package in it."""
    text = (root / "var/lib/dpkg/status").read_text()
    found = re.findall(r"^Package: (\S+)$.*?^Version: (\S+)$", text, re.MULTILINE | re.DOTALL)
    return sorted(found)
