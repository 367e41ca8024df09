"""The demo model for tests: `make setup` writes it; a test that finds it missing writes it where it belongs."""

from __future__ import annotations

from pathlib import Path

from meshnet_node.model.demo import write_demo


def demo_folder() -> Path:
    """The folder of SmolLM2-135M-Instruct in the checkout, made if need be (some seconds, once)."""
    return write_demo(Path(__file__).parents[2] / ".demo" / "smollm2")
