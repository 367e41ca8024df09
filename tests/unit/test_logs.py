"""Lines of the log: one JSON object each, the same for every handler."""

from __future__ import annotations

import io
import json
import logging

import pytest

from meshnet_node import logs


@pytest.fixture
def lines() -> list[io.StringIO]:
    """Two streams of one process, as where a test runner or a library listens, too."""
    streams = [io.StringIO(), io.StringIO()]
    logs.configure("INFO", streams[0], role="shard")
    second = logging.StreamHandler(streams[1])
    second.setFormatter(logs.EventFormatter({"role": "shard"}))
    logging.getLogger().addHandler(second)
    return streams


def test_every_handler_gets_the_fields(lines: list[io.StringIO]) -> None:
    logs.events("a.module").info("session_opened", session="s1", bytes=7)
    for stream in lines:
        said = json.loads(stream.getvalue())
        assert said.pop("time")
        assert (said.pop("level"), said.pop("logger")) == ("info", "a.module")
        assert said == {"event": "session_opened", "role": "shard", "session": "s1", "bytes": 7}


def test_a_long_value_is_cut_and_a_traceback_kept(lines: list[io.StringIO]) -> None:
    try:
        raise KeyError("k")
    except KeyError as error:
        logs.events("a.module").error("failed", exc_info=error, text="x" * 1000)
    said = json.loads(lines[0].getvalue())
    assert len(said["text"]) < 1000
    assert "KeyError" in said["traceback"]
