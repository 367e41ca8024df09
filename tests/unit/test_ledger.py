"""The books of a soak: what counts as equal, wrong, lost."""

from __future__ import annotations

import json
from pathlib import Path

from meshnet_ledger import Entry, Ledger


def test_each_request_counts_once(tmp_path: Path) -> None:
    books = Ledger(tmp_path / "soak.jsonl")
    books.entries = [
        Entry("a", 40, 0.0, ended=1.0, equal=True, stall=0.1),
        Entry("a", 40, 0.0, ended=9.0, equal=True, stall=3.0, refused=2),
        Entry("a", 40, 0.0, ended=1.0, equal=False, text="another", stall=0.2),
        Entry("a", 40, 0.0, error="APIError()", text="half of"),
        Entry("a", 40, 0.0),
    ]
    found = books.summary()
    assert found["requests"] == {
        "sent": 5, "finished": 3, "equal": 2, "wrong": 1, "lost": 2, "refused_and_sent_again": 2,
    }  # fmt: skip
    assert found["errors"] == ["APIError()"]
    assert found["longest_pause_s"] == {"median": 0.2, "most": 3.0}


def test_a_soak_without_answers_has_a_summary(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "soak.jsonl").summary()["longest_pause_s"] == {}


def test_lines_are_json_one_by_one(tmp_path: Path) -> None:
    books = Ledger(tmp_path / "soak.jsonl")
    books.write({"fault": "kill -9", "at": books.now()})
    books.write({"request": {"text": "two\nlines"}})
    lines = [json.loads(line) for line in books.file.read_text().splitlines()]
    assert [list(line) for line in lines] == [["fault", "at"], ["request"]]
