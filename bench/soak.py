"""Random faults against random load, on the cluster that `make cluster` left running: `make soak MINUTES=10`.

Clients stream answers one after the other; meanwhile pods are deleted and killed, processes stopped, nodes drained,
crashed and cut off, heads told to go, operators killed, ranges scaled. The ledger has a line of JSON for every request
and every fault: each request must end with the text of an undisturbed run. One that is refused before its first token
(503: no path right now) or finds nobody who listens is sent again, as the official clients do, and counts as refused.
Prints a summary as JSON; the exit code is 1 where a text was wrong, a request lost, a session leaked, a number of a
hop's state not as it must be, or the cluster not whole again after a fault.

On a cluster whose nodes are not ours (MESHNET_TEST_KUBECONFIG) there are only the faults that the API server can do.

The head is never killed outright: a stream ends with its head, which is known and not this bench's question.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import httpx2
import openai
from cluster.containers import ContainerError
from cluster.machines import Machine
from cluster.network import NetworkError
from cluster.release import MODEL, OPERATOR, ClusterError
from meshnet_clients import Reader
from meshnet_ledger import Entry, Ledger
from meshnet_site import PROMPTS, Site
from meshnet_view import OPERATORS, Object

LENGTHS = (40, 120)
AWAY_SECONDS = 25.0
# How long a request is sent again before it counts as lost.
REFUSED_SECONDS = 300.0
JOIN_SECONDS = 400.0
# What an action on a cluster in trouble may end with.
HARM = (ClusterError, ContainerError, NetworkError, LookupError, ValueError, OSError)
QUESTIONS = (*PROMPTS, "Write a poem about the sea.", "List ten uses of a brick, with reasons.")
CLIENTS = 3
SHARDS = ("front", "back")


class Load(threading.Thread):
    """A client that asks one thing after the other until `stop`."""

    def __init__(self, site: Site, ledger: Ledger, stop: threading.Event, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.site, self.ledger, self.stop, self.rng = site, ledger, stop, rng

    def run(self) -> None:
        while not self.stop.is_set():
            entry = Entry(self.rng.choice(QUESTIONS), self.rng.choice(LENGTHS), self.ledger.now())
            self.ledger.entries.append(entry)
            try:
                self._ask(entry)
            finally:
                self.ledger.write({"request": asdict(entry)})

    def _ask(self, entry: Entry) -> None:
        while True:
            reader = Reader(self.site.client(), entry.prompt, entry.tokens, MODEL)
            reader.run()
            entry.stall = max(entry.stall, reader.stall)
            if not _refused(reader) or self.ledger.now() - entry.sent > REFUSED_SECONDS:
                break
            entry.refused += 1
            time.sleep(1.0)
        entry.equal = reader.text == self.site.expected[entry.prompt, entry.tokens]
        entry.text = "" if entry.equal else reader.text
        if reader.error is not None or reader.finish != "length":
            entry.error = repr(reader.error) if reader.error else f"finish_reason {reader.finish}"
        else:
            entry.ended = self.ledger.now()


def _refused(reader: Reader) -> bool:
    """Before its first token, by 503, or since nobody listened."""
    error = reader.error
    if isinstance(error, openai.APIConnectionError):
        return not reader.times and isinstance(error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout)
    return not reader.times and isinstance(error, openai.APIStatusError) and error.status_code == 503


class Unhealed(Exception):
    """A fault was done, and what a person or a controller does afterwards did not help."""


class Faults:
    """Each takes the site to the next trouble and back as far as a person or a controller would."""

    def __init__(self, site: Site, rng: random.Random) -> None:
        self.site, self.rng = site, rng
        self.kinds: dict[str, Callable[[], None]] = {
            "delete a shard's pod": lambda: self.site.delete(self._shard()),
            "delete it without grace": lambda: self.site.delete_at_once(self._shard()),
            "evict": lambda: self.site.evict(self._shard()),
            "roll all pods": self.site.restart,
            "tell the head to go": lambda: self.site.delete(self.rng.choice(self.site.pods("head"))),
            "kill the operators": self._operators,
            "scale to one and back": self._scale,
        }
        if site.cluster.machines:
            self.kinds |= {
                "kill -9": lambda: self.site.kill(self._shard()),
                "SIGSTOP": lambda: self.site.stop(self._shard()),
                "fill its memory": lambda: self.site.fill_memory(self._shard()),
                "drain a node": self._drain,
                "crash a node": self._crash,
                "cut a node off": self._partition,
                "hide the API server from a node": self._blind,
            }

    def _shard(self) -> Object:
        """One whose container runs. Raises IndexError where none does."""
        pods = self.site.pods(self.rng.choice(SHARDS))
        return self.rng.choice([pod for pod in pods if _runs(pod)])

    def _operators(self) -> None:
        at_once = ("--grace-period=0", "--force", "--wait=false")
        self.site.cluster.kubectl(f"--namespace={OPERATOR}", "delete", "pods", OPERATORS, *at_once)

    def _scale(self) -> None:
        at = self.rng.randrange(len(SHARDS))
        for count in (1, 2):
            self.site.patch([{"op": "add", "path": f"/spec/shards/{at}/replicas", "value": count}])
            time.sleep(10)

    def _drain(self) -> None:
        machine = self._machine()
        kubectl = self.site.cluster.kubectl
        try:
            kubectl("drain", machine.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
        finally:
            kubectl("uncordon", machine.name)

    def _crash(self) -> None:
        machine = self._machine()
        machine.crash()
        time.sleep(AWAY_SECONDS)
        with _healing():
            self.site.power_on(machine)

    def _partition(self) -> None:
        machine = self._machine()
        machine.partition()
        time.sleep(AWAY_SECONDS)
        with _healing():
            machine.heal()
            self.site.node_back(machine)

    def _blind(self) -> None:
        machine = self._machine()
        machine.cut_off()
        time.sleep(AWAY_SECONDS)
        with _healing():
            machine.reconnect()
            self.site.node_back(machine)

    def _machine(self) -> Machine:
        """Not the first: the head is there."""
        return self.rng.choice(self.site.machines[1:])


def _runs(pod: Object) -> bool:
    return any("running" in one["state"] for one in pod["status"].get("containerStatuses", ()))


@contextlib.contextmanager
def _healing() -> Iterator[None]:
    try:
        yield
    except HARM as error:
        raise Unhealed(str(error)) from error


def leaks(site: Site) -> Object:
    """What is still held when nobody asks any more: must be nothing. (Parked sessions are none: they may be reused.)"""
    shards = [pod for shard in SHARDS for pod in site.pods(shard)]
    return {
        "running_generations": sum(site.gauge(pod, "meshnet_generations_running") for pod in site.pods("head")),
        "active_sessions": sum(site.sessions(pod) for pod in shards),
    }


class Integrity:
    """The shards' counts of broken state, of each process that was ever seen: a killed one takes its count along."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.counts: dict[str, float] = {}

    def look(self) -> float:
        """Their sum so far."""
        for pod in (pod for shard in SHARDS for pod in self.site.pods(shard)):
            with contextlib.suppress(ClusterError):
                count = self.site.gauge(pod, "meshnet_shard_integrity_failures_total")
                uid = pod["metadata"]["uid"]
                self.counts[uid] = max(count, self.counts.get(uid, 0.0))
        return sum(self.counts.values())


def soak(site: Site, ledger: Ledger, minutes: float, count: int, seed: int) -> tuple[Object, bool]:
    """Returns the summary, and whether all is well."""
    ledger.write({"minutes": minutes, "seed": seed})
    if site.cluster.machines:
        # This machine reaches Services through the first node, and the others may go.
        selector = {"kubernetes.io/hostname": site.machines[0].name}
        site.patch([{"op": "add", "path": "/spec/head/nodeSelector", "value": selector}])
    site.replicas(2)
    for prompt in QUESTIONS:
        for tokens in LENGTHS:
            site.undisturbed(prompt, tokens)
    stop = threading.Event()
    clients = [Load(site, ledger, stop, random.Random(seed + number)) for number in range(1, CLIENTS + 1)]
    for client in clients:
        client.start()
    integrity = Integrity(site)
    try:
        _harm(site, ledger, integrity, minutes, count, random.Random(seed))
    finally:
        stop.set()
        for client in clients:
            client.join(JOIN_SECONDS)
    site.settle(seconds=300)
    held = _until_nothing(site)
    broken = integrity.look()
    found = {"minutes": minutes, "seed": seed, **ledger.summary(), "leaked": held, "integrity_failures": broken}
    asked = found["requests"]
    bad = asked["wrong"] or asked["lost"] or any(held.values()) or broken or ledger.unhealed
    return found, bool(asked["sent"]) and not bad


def _harm(site: Site, ledger: Ledger, integrity: Integrity, minutes: float, count: int, rng: random.Random) -> None:
    """One fault after the other, until time or count are up."""
    faults = Faults(site, rng)
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end and sum(ledger.faults.values()) < count:
        integrity.look()
        name = rng.choice(list(faults.kinds))
        print(f"{end - time.monotonic():6.0f} s left  {name}", file=sys.stderr, flush=True)
        line: Object = {"fault": name, "at": ledger.now()}
        try:
            faults.kinds[name]()
            ledger.faults[name] += 1
        except Unhealed as error:
            ledger.unhealed.append(f"{name}: {error}")
            line["not_healed"] = str(error)
        except HARM as error:
            # The pod was gone already, or none was there: the fault before did that.
            ledger.unfit[f"{name}: {type(error).__name__}"] += 1
            line["did_not_fit"] = str(error)
        ledger.write(line | {"over": ledger.now()})
        time.sleep(rng.uniform(2, 15))


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
    parser.add_argument("--ledger", type=Path, default=Path("dist/soak.jsonl"), help="(default: %(default)s)")
    args = parser.parse_args()
    site = Site.running()
    site.settle()
    args.ledger.parent.mkdir(exist_ok=True)
    args.ledger.unlink(missing_ok=True)
    ledger = Ledger(args.ledger)
    found, well = None, False
    try:
        with site.as_before():
            found, well = soak(site, ledger, args.minutes, args.count, args.seed)
    finally:
        # Also after an error or ^C: what was seen until then.
        print(json.dumps(found or ledger.summary(), indent=1))
        print(f"each request and fault: {args.ledger}", file=sys.stderr)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
