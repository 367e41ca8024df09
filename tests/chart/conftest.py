"""Schemas of the API server that runs, for kubeconform."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chart import schemas
from cluster.plane import Plane


@pytest.fixture(scope="session")
def schema_folder(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schemas")

    def read(path: str) -> dict[str, Any]:
        done = plane.kubectl("get", f"--raw={path}")
        assert done.returncode == 0, done.stderr
        body: dict[str, Any] = json.loads(done.stdout)
        return body

    schemas.write(folder, read)
    return folder
