"""The tiny model that the local meshes of these tests serve."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshnet_tiny import write_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six layers of random weights, in a folder named tiny."""
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")
