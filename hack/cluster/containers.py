"""containerd for the nodes, and the images that all of them begin with.

One root with all images imported lies in the cache. A node gets it by hard links, its databases as copies: no image is
unpacked twice, and three nodes hold one copy of their files in memory.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from images import recipes
from images.layout import Layout

from cluster.binaries import cache_folder, ensure

LABEL = "io.cri-containerd.image=managed"  # what the CRI part sets on the images that it may use
DISABLED = (
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.internal.v1.opt",
    "io.containerd.nri.v1.nri",
    "io.containerd.tracing.processor.v1.otlp",
    "io.containerd.internal.v1.tracing",
)
CONFIG = """version = 3
root = '{folder}/root'
state = '{folder}/state'
disabled_plugins = {disabled}
[grpc]
  address = '{folder}/containerd.sock'
[ttrpc]
  address = '{folder}/containerd.sock.ttrpc'
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '{pause}'
[plugins.'io.containerd.cri.v1.runtime']
  # Without CAP_SYS_RESOURCE no process may get a better score, and no sandbox would start.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['/usr/lib/cni', '/opt/cni/bin']
    conf_dir = '{folder}/cni'
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = '{runc}'
        SystemdCgroup = false
"""


class ContainerError(Exception):
    """containerd did not start or refused an image."""


def write_config(folder: Path, cri: bool = True) -> Path:
    disabled = [*DISABLED, *([] if cri else ["io.containerd.grpc.v1.cri"])]
    text = CONFIG.format(folder=folder, disabled=json.dumps(disabled), pause=recipes.PAUSE, runc=shutil.which("runc"))
    path = folder / "containerd.toml"
    path.write_text(text)
    return path


def command(folder: Path) -> list[str]:
    return [str(ensure("containerd")), "--config", str(folder / "containerd.toml"), "--log-level", "warn"]


def environment() -> dict[str, str]:
    """containerd looks for its shim on the path."""
    return {**os.environ, "PATH": f"{ensure('containerd-shim-runc-v2').parent}:{os.environ['PATH']}"}


def ctr(folder: Path, *arguments: str) -> str:
    """Raises ContainerError."""
    line = [str(ensure("ctr")), "--address", str(folder / "containerd.sock"), "--namespace", "k8s.io", *arguments]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode != 0:
        raise ContainerError(f"ctr {' '.join(arguments)}: {done.stderr[-1000:]}")
    return done.stdout


def wait(folder: Path, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            ctr(folder, "version")
            return
        except ContainerError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def bring(folder: Path, store: Layout, names: list[str]) -> None:
    """Images into a running containerd: only the blobs that it does not have cross over."""
    there = set(ctr(folder, "content", "ls", "--quiet").split())
    archive = folder / "images.tar"
    store.export(names, archive, there)
    ctr(folder, "images", "import", "--local", str(archive))
    archive.unlink()
    for name in names:
        # As after a pull: image volumes look an image up by the digest of its configuration.
        identity = store.configuration(name)
        ctr(folder, "images", "tag", "--force", name, identity)
        for one in (name, identity):
            ctr(folder, "images", "label", one, LABEL)


def digests(store: Layout, names: Iterable[str]) -> str:
    """What these images are just now, as JSON."""
    return json.dumps({name: store.manifest(name).digest for name in names})


def image_root(store: Layout, names: list[str]) -> Path:
    """The root that holds these images; made, or brought up to date, when it does not."""
    folder = cache_folder().parent / "images" / "containerd"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        key = digests(store, names)
        note = folder / "key"
        if not (note.exists() and note.read_text() == key):
            note.unlink(missing_ok=True)
            _fill(folder, store, names)
            note.write_text(key)
    return folder / "root"


def _fill(folder: Path, store: Layout, names: list[str]) -> None:
    write_config(folder, cri=False)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command(folder), stdout=log, stderr=log, env=environment())
        try:
            wait(folder)
            bring(folder, store, names)
        finally:
            process.terminate()
            process.wait()


def clone(root: Path, target: Path) -> None:
    done = subprocess.run(["cp", "--archive", "--link", str(root), str(target)], capture_output=True, text=True)
    if done.returncode != 0:
        raise ContainerError(f"images can't be linked into {target}: {done.stderr[-1000:]}")
    for database in target.rglob("*.db"):
        copy = database.with_suffix(".copy")
        shutil.copy2(database, copy)
        copy.replace(database)
