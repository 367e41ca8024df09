"""Random faults against random load, on the cluster that `make cluster` left running: `make soak MINUTES=10`.

Clients stream answers one after the other; meanwhile pods are deleted and killed, processes stopped, nodes drained,
crashed and cut off, heads told to go, operators killed, ranges scaled. The ledger has a line for every request: each
must end with the text of an undisturbed run. A request that is refused before its first token (503: no path right now)
is sent again, as the official clients do, and counts as refused. Prints one JSON object; the exit code is 1 where a
text was wrong, a request lost or a session leaked.

The head is never killed outright: a stream ends with its head, which is known and not this bench's question.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import openai
from cluster.machines import Machine
from cluster.release import ClusterError
from meshnet_site import MODEL, PROMPTS, Object, Reader, Site

LENGTHS = (40, 120)
QUESTIONS = (*PROMPTS, "Write a poem about the sea.", "List ten uses of a brick, with reasons.")
CLIENTS = 3
OPERATORS = "--namespace=meshnet"
SHARDS = ("front", "back")


@dataclass
class Entry:
    """One request. refused: how often it was refused before its first token."""

    prompt: str
    tokens: int
    sent: float
    refused: int = 0
    ended: float | None = None
    equal: bool = False
    error: str = ""
    stall: float = 0.0


@dataclass
class Ledger:
    entries: list[Entry] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    unfit: Counter[str] = field(default_factory=Counter)

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
        }


class Load(threading.Thread):
    """A client that asks one thing after the other until `stop`."""

    def __init__(self, site: Site, ledger: Ledger, stop: threading.Event, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.site, self.ledger, self.stop, self.rng = site, ledger, stop, rng

    def run(self) -> None:
        while not self.stop.is_set():
            entry = Entry(self.rng.choice(QUESTIONS), self.rng.choice(LENGTHS), time.monotonic())
            self.ledger.entries.append(entry)
            self._ask(entry)

    def _ask(self, entry: Entry) -> None:
        while True:
            reader = Reader(self.site.client(), entry.prompt, entry.tokens, MODEL)
            reader.run()
            entry.stall = max(entry.stall, reader.stall)
            if _refused(reader) and time.monotonic() - entry.sent < 300:
                entry.refused += 1
                time.sleep(1.0)
                continue
            break
        if reader.error is not None or reader.finish != "length":
            entry.error = repr(reader.error) if reader.error else f"finish_reason {reader.finish}"
            return
        entry.equal = reader.text == self.site.expected[entry.prompt, entry.tokens]
        entry.ended = time.monotonic()


def _refused(reader: Reader) -> bool:
    """Before its first token, by a status or by a head that was just going."""
    early = not reader.times
    return early and isinstance(reader.error, openai.InternalServerError | openai.APIConnectionError)


class Faults:
    """Each takes the site to the next trouble and back as far as a person or a controller would."""

    def __init__(self, site: Site, rng: random.Random) -> None:
        self.site, self.rng = site, rng
        self.kinds: dict[str, Callable[[], None]] = {
            "delete a shard's pod": lambda: self.site.delete(self._shard()),
            "delete it without grace": lambda: self.site.delete_at_once(self._shard()),
            "kill -9": lambda: self.site.kill(self._shard()),
            "SIGSTOP": lambda: self.site.stop(self._shard()),
            "evict": lambda: self.site.evict(self._shard()),
            "fill its memory": lambda: self.site.fill_memory(self._shard()),
            "roll all pods": self.site.restart,
            "tell the head to go": lambda: self.site.delete(self.rng.choice(self.site.pods("head"))),
            "kill the operators": self._operators,
            "scale to one and back": self._scale,
            "drain a node": self._drain,
            "crash a node": self._crash,
            "cut a node off": self._partition,
        }

    def _shard(self) -> Object:
        pods = [pod for pod in self.site.pods(self.rng.choice(SHARDS)) if pod["status"].get("containerStatuses")]
        return self.rng.choice(pods)

    def _operators(self) -> None:
        self.site.cluster.kubectl(OPERATORS, "delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false")

    def _scale(self) -> None:
        at = self.rng.randrange(len(SHARDS))
        for count in (1, 2):
            self.site.patch([{"op": "add", "path": f"/spec/shards/{at}/replicas", "value": count}])
            time.sleep(10)

    def _drain(self) -> None:
        machine = self._machine()
        kubectl = self.site.cluster.kubectl
        try:
            kubectl(
                "drain", machine.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s", check=False
            )
        finally:
            kubectl("uncordon", machine.name)

    def _crash(self) -> None:
        machine = self._machine()
        machine.crash()
        time.sleep(25)
        self.site.power_on(machine)

    def _partition(self) -> None:
        machine = self._machine()
        machine.partition()
        time.sleep(25)
        machine.heal()
        self.site.node_back(machine)

    def _machine(self) -> Machine:
        """Not the first: this machine reaches Services through it, and the head is there."""
        return self.rng.choice(self.site.machines[1:])


def leaks(site: Site) -> Object:
    """What is still held when nobody asks any more: must be nothing. (Parked sessions are none: they may be reused.)"""
    found = {
        "running_generations": sum(site.gauge(pod, "meshnet_generations_running") for pod in site.pods("head")),
        "active_sessions": 0.0,
        "integrity_failures": 0.0,
    }
    for pod in (pod for shard in SHARDS for pod in site.pods(shard)):
        found["active_sessions"] += site.gauge(pod, "meshnet_shard_sessions_active")
        found["integrity_failures"] += site.gauge(pod, "meshnet_shard_integrity_failures_total")
    return found


def soak(site: Site, minutes: float, count: int, seed: int) -> tuple[Object, bool]:
    """Returns the summary, and whether all is well."""
    rng = random.Random(seed)
    head = [{"op": "add", "path": "/spec/head/nodeSelector", "value": {"kubernetes.io/hostname": "n1"}}]
    site.patch([*head])
    site.replicas(2)
    for prompt in QUESTIONS:
        for tokens in LENGTHS:
            site.undisturbed(prompt, tokens)
    ledger, stop, faults = Ledger(), threading.Event(), Faults(site, rng)
    clients = [Load(site, ledger, stop, random.Random(seed + number)) for number in range(1, CLIENTS + 1)]
    for client in clients:
        client.start()
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end and sum(ledger.faults.values()) < count:
        name = rng.choice(list(faults.kinds))
        print(f"{end - time.monotonic():6.0f} s left  {name}", file=sys.stderr, flush=True)
        try:
            faults.kinds[name]()
            ledger.faults[name] += 1
        except (ClusterError, IndexError, OSError) as error:
            # The pod was gone already, or none was there: the fault before did that.
            ledger.unfit[f"{name}: {type(error).__name__}"] += 1
        time.sleep(rng.uniform(2, 15))
    stop.set()
    for client in clients:
        client.join(400)
    site.settle(seconds=300)
    held = _until_nothing(site)
    found = {"minutes": minutes, "seed": seed, **ledger.summary(), "leaked": held}
    asked = found["requests"]
    return found, not (asked["wrong"] or asked["lost"] or any(held.values()))


def _until_nothing(site: Site) -> Object:
    """What stays held after a lease's time."""
    end = time.monotonic() + 60
    while any((held := leaks(site)).values()) and time.monotonic() < end:
        time.sleep(1)
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--count", type=int, default=1000, help="faults at most (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    site = Site.running()
    site.settle()
    found, well = soak(site, args.minutes, args.count, args.seed)
    print(json.dumps(found, indent=1))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
