"""How long a stream of the running cluster pauses when a shard's pod is lost: `make bench-stalls`, as JSON.

A prompt of about 500 tokens, 120 tokens of answer, the fault after the twentieth. Once with two replicas of each range,
once with one. The head tells of each recovery its cause, the positions that were replayed, and its `stall_ms`, which
begins when the head has noticed: what the client's pause has more is the detection. With one replica the log of the
shard takes the pause apart: until it loads (its container is made again, Python starts, modules are imported), until it
is ready (weights), until the next token (found, replayed). An undisturbed answer of the same run is the reference for
the text, and its longest pause for the rest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import datetime

from cluster.release import MODEL, NAMESPACE
from meshnet_clients import Reader
from meshnet_site import Site
from meshnet_view import Object

SHARD = "back"
ANSWER = 120
PROMPT = "Tell me what this text is about. " + " ".join(
    f"In {year} the keeper of the lighthouse wrote down {year % 17} ships and {year % 7} storms."
    for year in range(1900, 1923)
)

FAULTS: dict[str, Callable[[Site, Object], None]] = {
    "none": lambda site, pod: None,
    "deleted": Site.delete,
    "deleted without grace": Site.delete_at_once,
    "kill -9": Site.kill,
    "SIGSTOP": Site.stop,
}


def measure(site: Site, name: str, replicas: int) -> Object:
    """One fault in one answer."""
    expected = site.undisturbed(PROMPT, ANSWER)
    before = site.epoch()
    reader = site.start(PROMPT, ANSWER)
    site.under_way(reader)
    pod = site.in_use(SHARD)
    at = time.time()
    FAULTS[name](site, pod)
    reader.join(240)
    found: Object = {"replicas": replicas, "fault": name, "stall_ms": round(1000 * reader.stall)}
    found |= {"identical": reader.text == expected, "error": repr(reader.error) if reader.error else None}
    found["recoveries"] = [
        one for head in site.pods("head") for one in site.mesh(head)["recoveries"] if one["time"] > at
    ]
    if replicas == 1 and name not in ("none", "deleted"):
        found |= _parts(site, reader, at)
    # An answer may end before Kubernetes knows of the loss.
    if name != "none":
        site.until(lambda: site.epoch() > before, 60, "the table tells the loss")
    site.settle()
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def _parts(site: Site, reader: Reader, at: float) -> Object:
    """What the pause was made of, in milliseconds after the fault."""
    said = [_events(site, pod) for pod in site.pods(SHARD)]
    starts = [events for events in said if events.get("loading", 0.0) > at]
    late = max(range(1, len(reader.times)), key=lambda i: reader.times[i] - reader.times[i - 1])
    again = time.time() - time.monotonic() + reader.times[late]
    if not starts or "ready" not in starts[0]:
        return {}
    loading, ready = starts[0]["loading"], starts[0]["ready"]
    parts = {"container_and_imports": loading - at, "load": ready - loading, "found_and_replayed": again - ready}
    return {"parts_ms": {name: round(1000 * seconds) for name, seconds in parts.items()}}


def _events(site: Site, pod: Object) -> dict[str, float]:
    """The last time of each event in a pod's log, by the log's own clock."""
    text = site.cluster.kubectl(
        f"--namespace={NAMESPACE}", "logs", pod["metadata"]["name"], "--timestamps", check=False
    )
    found = {}
    for line in text.splitlines():
        stamp, _, body = line.partition(" ")
        if body.startswith("{"):
            found[str(json.loads(body).get("event"))] = datetime.fromisoformat(stamp[:26] + "+00:00").timestamp()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="runs of each fault (default: %(default)s)")
    args = parser.parse_args()
    site = Site.running()
    rows = []
    with site.as_before():
        for replicas in (2, 1):
            site.replicas(replicas)
            rows += [measure(site, name, replicas) for name in FAULTS for _ in range(args.times)]
    usage = (
        site.client()
        .chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": PROMPT}], max_tokens=1, temperature=0
        )
        .usage
    )
    medians = {
        f"{name}, {replicas} replicas": statistics.median(
            row["stall_ms"] for row in rows if (row["fault"], row["replicas"]) == (name, replicas)
        )
        for replicas in (2, 1)
        for name in FAULTS
    }
    print(json.dumps({"prompt_tokens": usage and usage.prompt_tokens, "stall_ms": medians, "rows": rows}, indent=1))
    return 0 if all(row["identical"] and not row["error"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
