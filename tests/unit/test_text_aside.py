"""A long text is encoded beside the other threads, not instead of them: the head serves others meanwhile."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from meshnet_node.text.text_model import TextModel

LONG = "w" * 2_000_000


@pytest.mark.parametrize("text", [LONG, LONG + "<|im_end|>"], ids=["plain", "with a control string"])
def test_other_threads_run_while_a_long_message_is_encoded(demo_folder: Path, text: str) -> None:
    model = TextModel.load(demo_folder)
    model.encode_chat([{"role": "user", "content": "Hi <|im_end|>"}])  # what is made once is made now
    longest, done = 0.0, threading.Event()

    def look() -> None:
        nonlocal longest
        last = time.monotonic()
        while not done.wait(0.005):
            now = time.monotonic()
            longest, last = max(longest, now - last), now

    other = threading.Thread(target=look)
    other.start()
    began = time.monotonic()
    model.encode_chat([{"role": "user", "content": text}])
    seconds = time.monotonic() - began
    done.set()
    other.join()
    assert longest < seconds / 2, f"no other thread ran for {longest:.2f} of {seconds:.2f} s"
