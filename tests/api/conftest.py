"""A head's API over a scripted backend, served on loopback, with the real client library."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from meshnet_heads import Heads

from meshnet_node.text.text_model import TextModel


@pytest.fixture(scope="session")
def demo_text(demo_folder: Path) -> TextModel:
    return TextModel.load(demo_folder)


@pytest.fixture
async def heads(demo_folder: Path, demo_text: TextModel) -> AsyncIterator[Heads]:
    async with AsyncExitStack() as stack:
        yield Heads(demo_folder, demo_text, stack)
