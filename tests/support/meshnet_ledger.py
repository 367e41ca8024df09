"""The books of a soak: a line of JSON for every request and every fault, and what they come to."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Object = dict[str, Any]


@dataclass
class Entry:
    """One request; times in seconds since the soak began. refused: how often it was refused before its first token.
    text: what came, where that was not what had to come.
    """

    prompt: str
    tokens: int
    sent: float
    refused: int = 0
    ended: float | None = None
    equal: bool = False
    error: str = ""
    text: str = ""
    stall: float = 0.0


@dataclass
class Ledger:
    """faults: done and gone again. unfit: nobody was there to suffer them. unhealed: done, and what was to come back
    did not.
    """

    file: Path
    began: float = field(default_factory=time.monotonic)
    entries: list[Entry] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    unfit: Counter[str] = field(default_factory=Counter)
    unhealed: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> float:
        return round(time.monotonic() - self.began, 2)

    def write(self, line: Object) -> None:
        with self.lock, self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def summary(self) -> Object:
        done = [one for one in self.entries if one.ended is not None]
        stalls = sorted(one.stall for one in done)
        return {
            "requests": {
                "sent": len(self.entries),
                "finished": len(done),
                "equal": sum(one.equal for one in done),
                "wrong": sum(not one.equal for one in done),
                "lost": len(self.entries) - len(done),
                "refused_and_sent_again": sum(one.refused for one in self.entries),
            },
            "errors": sorted({one.error for one in self.entries if one.error}),
            "longest_pause_s": {"median": round(stalls[len(stalls) // 2], 1), "most": round(stalls[-1], 1)}
            if done
            else {},
            "faults": dict(self.faults),
            "faults_that_did_not_fit": dict(self.unfit),
            "faults_not_healed": self.unhealed,
        }
