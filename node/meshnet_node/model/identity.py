"""What makes two loaded models the same one: the config and the weights' content, never names and sizes alone.

A hub id is known by its commit. A folder is known by a digest of its weight files, computed once and remembered in the
cache folder by path, size and time of change.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from meshnet_node.model.source import ModelFiles
from meshnet_node.wire.frames import WIRE_VERSION, TensorSpec

_VOLATILE = ("_name_or_path", "transformers_version")


def model_hash(files: ModelFiles, cache_dir: Path) -> str:
    """32 hex digits over the config and the commit, or the digests of all weight files."""
    config = {name: value for name, value in files.config.items() if name not in _VOLATILE}
    parts = [json.dumps(config, sort_keys=True)]
    if files.commit is not None:
        parts.append(files.commit)
    else:
        parts += [_digest(file, cache_dir.expanduser() / "digests") for file in files.files()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def fingerprint(model: str, dtype: str, schema: Sequence[TensorSpec], pins: Sequence[str] = ()) -> str:
    """16 hex digits over model hash, dtype, boundary schema and wire version: between layouts of one fingerprint a
    generation may move. Never the cut or the image. pins: what else has to be equal (strict determinism)."""
    shapes = [f"{spec.name} {spec.dtype} {spec.shape}" for spec in schema]
    return hashlib.sha256("\n".join([model, dtype, str(WIRE_VERSION), *shapes, *pins]).encode()).hexdigest()[:16]


def _digest(file: Path, known: Path) -> str:
    status = file.stat()
    key = f"{file.resolve()} {status.st_size} {status.st_mtime_ns}"
    note = known / hashlib.sha256(key.encode()).hexdigest()[:32]
    try:
        return note.read_text()
    except OSError:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        _remember(note, digest)
        return digest


def _remember(note: Path, digest: str) -> None:
    """Best effort: a cache folder that can't be written costs the same work at the next start."""
    part = note.with_suffix(f".{os.getpid()}")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(digest)
        part.replace(note)
    except OSError:
        return
