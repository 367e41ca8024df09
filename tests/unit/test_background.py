"""Work that must not end is begun anew, and somebody is told."""

from __future__ import annotations

import asyncio

import pytest

from meshnet_node.head import background


async def test_failed_and_ended_work_is_begun_anew_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "AGAIN_SECONDS", 0)
    begun, third = 0, asyncio.Event()

    async def run() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise KeyError("a prompt's text")
        if begun == 3:
            third.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(background.keep_running("routes", run))
    async with asyncio.timeout(5):
        await third.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [record.getMessage() for record in caplog.records] == ["background_work_failed", "background_work_ended"]
    fields = caplog.records[0].__dict__["meshnet_fields"]
    assert (fields["work"], fields["error"]) == ("routes", "KeyError")
    assert "test_background.py" in fields["where"]
    assert "prompt" not in str(fields)
