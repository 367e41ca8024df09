"""The files of a local mesh: route table, state file and shard token, each written whole and renamed into place."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

from meshnet_node.local.child import Child


def write_whole(path: Path, content: str, mode: int = 0o644) -> None:
    """Replace the file in one step: a reader sees the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    os.chmod(name, mode)
    os.replace(name, path)


def write_token(path: Path) -> None:
    """A new shard token, readable by this user alone."""
    write_whole(path, secrets.token_hex(32) + "\n", 0o600)


def route_table(uid: str, epoch: int, shards: Sequence[Child]) -> dict[str, object]:
    """The table (docs/architecture.md, Routes): one layout, its ranges, and the running processes of each."""
    ranges: dict[tuple[int, int], list[Child]] = {}
    for child in shards:
        if child.layers is not None:
            ranges.setdefault(child.layers, []).append(child)
    return {
        "uid": uid,
        "epoch": epoch,
        "layouts": [
            {
                "id": "-".join(f"{start}_{end}" for start, end in sorted(ranges)),
                "fingerprint": "",
                "state": "active",
                "shards": [
                    {
                        "name": f"layers-{start}-{end}",
                        "startLayer": start,
                        "endLayer": end,
                        "service": "",
                        "endpoints": [
                            {
                                "uid": child.uid,
                                "address": f"127.0.0.1:{child.port}",
                                "state": child.table_state,
                                "deadline": None,
                            }
                            for child in members
                            if child.pid is not None
                        ],
                    }
                    for (start, end), members in sorted(ranges.items())
                ],
            }
        ],
    }


def state(url: str, routes: Path, token: Path, children: Sequence[Child]) -> str:
    """The state file's JSON: role, range, pid and url of each process, and where routes and token are."""
    return json.dumps(
        {
            "url": url,
            "routes": str(routes),
            "token_file": str(token),
            "processes": [
                {
                    "role": child.role,
                    "name": child.name,
                    "layers": list(child.layers) if child.layers else None,
                    "pid": child.pid,
                    "uid": child.uid,
                    "url": child.url,
                    "ready": child.ready,
                    "restarts": child.restarts,
                    "log": str(child.log),
                }
                for child in children
            ],
        },
        indent=2,
    )
