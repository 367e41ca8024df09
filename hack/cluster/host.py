"""What a machine must have and allow before nodes can run on it and images can be made on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
CNI = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
# A command, and the Debian package that has it.
PACKAGES = {
    "debootstrap": "debootstrap",
    "runc": "runc",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "nft": "nftables",
    "conntrack": "conntrack",
    "openssl": "openssl",
}


class HostError(Exception):
    """The machine lacks something; the message says what, and how it gets there."""


def missing_packages() -> list[str]:
    found = [package for command, package in PACKAGES.items() if shutil.which(command) is None]
    if not any((folder / "bridge").exists() for folder in CNI):
        found.append("containernetworking-plugins")
    return found


def install_packages() -> list[str]:
    """Installs what is missing, by apt-get; returns what it was. Raises HostError."""
    if missing := missing_packages():
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
            try:
                done = subprocess.run(["apt-get", "--quiet", *command], env=environment, capture_output=True, text=True)
            except FileNotFoundError:
                raise HostError(f"no apt-get here; these Debian packages are missing: {' '.join(missing)}") from None
            if done.returncode != 0:
                raise HostError(f"apt-get {command[0]}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return missing


def cgroup_hierarchies() -> list[Path]:
    """One folder for each controller of version 1, or the one of version 2."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def obstacles(scratch: Path) -> list[str]:
    """Why nodes can't run on this machine, whatever is installed; empty where they can.

    Tried, not read from a list of privileges: a sandbox may say yes to one and no to the deed. `scratch` is a folder on
    the file system that is to hold the containers' layers.
    """
    if os.geteuid() != 0:
        return ["it needs root"]
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        layers = [Path(folder) / name for name in ("lower", "upper", "work", "merged")]
        for layer in layers:
            layer.mkdir()
        lower, upper, work, merged = layers
        overlay = f"lowerdir={lower},upperdir={upper},workdir={work}"
        tries = {
            "network namespaces": ["unshare", "--net", "true"],
            "overlay mounts": ["unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", overlay, str(merged)],
        }
        found = []
        for what, command in tries.items():
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                found.append(f"no {what}: {done.stderr.strip()}")
    for hierarchy in cgroup_hierarchies():
        probe = hierarchy / f"meshnet-probe-{os.getpid()}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            found.append(f"no cgroups: {error}")
    return found
