"""What several folders of tests share: the demo model, and the reference that judges every answer."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from meshnet_prose import prompt_maker
from meshnet_reference import Reference

from meshnet_node.model.demo import write_demo

# The control plane's fixtures. A plugin, since two folders share one session's control plane.
pytest_plugins = ["meshnet_cluster"]

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """What a test's command configures ends with the test: its stream is closed by then."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The demo model as an ordinary folder; written on first use."""
    return write_demo(Path(os.environ.get("MESHNET_DEMO", REPOSITORY / ".demo" / "smollm2")))


@pytest.fixture(scope="session")
def reference(demo_folder: Path) -> Iterator[Reference]:
    """The uncut demo model on one thread, beside the processes under test."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    judge = Reference(demo_folder)
    yield judge
    torch.set_num_threads(threads)
    print(f"\nmismatches excused at ties of the reference: {len(judge.excused)} {judge.excused}")


@pytest.fixture(scope="session")
def prose(reference: Reference) -> Callable[..., list[int]]:
    """prose(length, start): a prompt of that many token ids."""
    return prompt_maker(reference.encode)
