"""An OCI image layout as a folder: layers by what they are made from, images by name, archives of both.

Layers are not compressed: they never leave the machine. Layer tars of equal contents are equal byte by byte, but for
the base ones, whose times stay since Debian's compiled Python files rely on them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
EPOCH = "1970-01-01T00:00:00Z"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Object = dict[str, Any]


class ImageError(Exception):
    """An image could not be made; the message says what is missing or holds the command's last lines."""


def run(*command: str | Path, **more: Any) -> str:
    """A command's output. Raises ImageError with the end of what it said."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, **more
    )
    if done.returncode != 0:
        raise ImageError(f"{command[0]}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


@dataclass(frozen=True)
class Blob:
    """A file of the layout; `digest` is sha256:HEX."""

    digest: str
    size: int

    def descriptor(self, kind: str) -> Object:
        return {"mediaType": kind, "digest": self.digest, "size": self.size}


class Layout:
    """Lies in `folder`. Half-made files never get a name that counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in ("blobs/sha256", "layers", "images", "roots"):
            (folder / part).mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.replace(":", "/")

    def layer(self, name: str, key: str, fill: Callable[[Path], None], keep_times: bool = False) -> Blob:
        """The layer made from `key`; `fill` puts its files into an empty folder when it is not there yet."""
        note = self.folder / "layers" / f"{name}-{key}.json"
        if note.exists():
            blob = Blob(**json.loads(note.read_text()))
            if self.path(blob.digest).exists():
                return blob
        print(f"layer {name}", flush=True)
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=self.folder) as made:
            root = Path(made, "root")
            root.mkdir(mode=0o755)
            fill(root)
            blob = self._pack(root, Path(made, "layer.tar"), keep_times)
        note.write_text(json.dumps(vars(blob)))
        return blob

    def pack(self, root: Path, name: str, key: str) -> Blob:
        """The layer of a folder that stays."""
        note = self.folder / "layers" / f"{name}-{key}.json"
        if not note.exists():
            with tempfile.TemporaryDirectory(dir=self.folder) as made:
                note.write_text(json.dumps(vars(self._pack(root, Path(made, "layer.tar"), True))))
        return Blob(**json.loads(note.read_text()))

    def _pack(self, root: Path, tar: Path, keep_times: bool) -> Blob:
        times = [] if keep_times else ["--mtime=@0"]
        owner = [] if keep_times else ["--owner=0", "--group=0"]
        run("tar", "--sort=name", "--numeric-owner", *times, *owner, f"--directory={root}", f"--file={tar}", "-c", ".")
        return self._adopt(tar)

    def _adopt(self, file: Path) -> Blob:
        with file.open("rb") as stream:
            digest = f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
        size = file.stat().st_size
        file.replace(self.path(digest))
        return Blob(digest, size)

    def _put(self, document: Object) -> Blob:
        data = json.dumps(document, sort_keys=True).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.path(digest).write_bytes(data)
        return Blob(digest, len(data))

    def image(self, name: str, layers: list[Blob], config: Object) -> Blob:
        """Gives `name` to an image of these layers; `config` is its own part of the OCI configuration."""
        environment = [PATH, *config.get("Env", [])]
        made = {
            "created": EPOCH,
            "architecture": "amd64",
            "os": "linux",
            "config": config | {"Env": environment},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._put(made).descriptor(CONFIG),
            "layers": [layer.descriptor(LAYER) for layer in layers],
        }
        blob = self._put(manifest)
        (self.folder / "images" / name.replace("/", "!")).write_text(json.dumps(vars(blob)))
        return blob

    def manifest(self, name: str) -> Blob:
        note = self.folder / "images" / name.replace("/", "!")
        if not note.exists():
            raise ImageError(f"no image {name}: `make images` makes it")
        return Blob(**json.loads(note.read_text()))

    def configuration(self, name: str) -> str:
        """The digest of an image's configuration: what containerd calls the image's id."""
        return str(json.loads(self.path(self.manifest(name).digest).read_text())["config"]["digest"])

    def export(self, names: list[str], target: Path, without: Collection[str] = ()) -> None:
        """An archive for `docker load`, `podman load` or `ctr images import`; blobs in `without` are left out."""
        entries, digests = [], []
        for name in names:
            blob = self.manifest(name)
            annotations = {
                "io.containerd.image.name": name,
                "org.opencontainers.image.ref.name": name.rpartition(":")[2],
            }
            entries.append(blob.descriptor(MANIFEST) | {"annotations": annotations})
            parts = json.loads(self.path(blob.digest).read_text())
            digests += [blob.digest, parts["config"]["digest"], *(layer["digest"] for layer in parts["layers"])]
        part = target.with_name(f"{target.name}.part")
        with tarfile.open(part, "w") as tar:
            _add(tar, "oci-layout", {"imageLayoutVersion": "1.0.0"})
            _add(tar, "index.json", {"schemaVersion": 2, "manifests": entries})
            for digest in dict.fromkeys(digests):
                if digest not in without:
                    tar.add(self.path(digest), f"blobs/{digest.replace(':', '/')}")
        part.replace(target)

    def root(self, name: str, make: Callable[[Path], None]) -> Path:
        """A root file system that stays: layers on top of it are compiled by its own Python."""
        target = self.folder / "roots" / name
        if not target.exists():
            print(f"root file system {name}", flush=True)
            part = target.with_name(f"{name}.{os.getpid()}.part")
            try:
                make(part)
                part.rename(target)
            finally:
                shutil.rmtree(part, ignore_errors=True)
        return target


def _add(tar: tarfile.TarFile, name: str, document: Object) -> None:
    data = json.dumps(document).encode()
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def digest_of(*parts: str | bytes | Path) -> str:
    """One short name for texts, bytes and the contents of files and folders."""
    whole = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            for file in sorted(part.rglob("*")) if part.is_dir() else [part]:
                if file.is_file() and "__pycache__" not in file.parts:
                    whole.update(str(file.relative_to(part.parent)).encode() + b"\0" + file.read_bytes())
        else:
            whole.update(part.encode() if isinstance(part, str) else part)
        whole.update(b"\0")
    return whole.hexdigest()[:20]
