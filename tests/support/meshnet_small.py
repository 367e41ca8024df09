"""A whole mesh in this process: real shards in threads, the real head side in the test's loop, real sockets between.

For faults by the dozen with tiny models. `crash` is what kill -9 looks like from outside: every connection is reset at
once and all state is gone; `freeze` is what SIGSTOP looks like: nothing is read, answered or computed.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from meshnet_shard_server import ShardServer
from prometheus_client import CollectorRegistry

from meshnet_node.head.backend import GenerationRequest
from meshnet_node.head.mesh import Mesh
from meshnet_node.head.pulse import Pulse
from meshnet_node.local.files import write_whole
from meshnet_node.local.mesh import free_port
from meshnet_node.settings import HeadSettings, ShardSettings
from meshnet_node.wire.frames import Sampling, Score

Cut = Sequence[tuple[int, int]]


class SmallShard:
    """One shard that can be crashed, frozen and started again at its address.

    uid: one per start. advertised: the port that the table names, another one where a proxy stands in between.
    """

    def __init__(self, model: Path, start: int, end: int, **options: Any) -> None:
        self.layers = (start, end)
        self.port = free_port()
        self.advertised = self.port
        self.uid = ""
        self.server: ShardServer | None = None
        self._options = {
            "model": str(model),
            "device": "cpu",
            "threads": 1,
            "dtype": "float32",
            "cache_dir": model / "cache",
            "start_layer": start,
            "end_layer": end,
            **options,
        }
        self._thaw = threading.Event()

    @property
    def up(self) -> bool:
        return self.server is not None

    def start(self, uid: str = "") -> None:
        """uid: of a pod whose container starts again; a new pod else."""
        self.uid = uid or f"uid-{random.getrandbits(48):x}"
        server = ShardServer(ShardSettings(**self._options, pod_uid=self.uid), port=self.port)
        server.start()
        server.wait_ready()
        self.server = server

    def crash(self) -> None:
        """All connections are reset, all state is gone."""
        if self.server is not None:
            self.thaw()
            self.server.crash()
            self.server = None

    def freeze(self) -> None:
        """The process answers nothing until `thaw`."""
        assert self.server is not None
        self._thaw.clear()
        self.server.block(self._thaw)

    def thaw(self) -> None:
        self._thaw.set()

    def evict(self, session: str) -> None:
        """End one session here behind the head's back."""
        assert self.server is not None
        httpx2.delete(f"{self.server.url}/v1/sessions/{session}")

    def held(self) -> tuple[int, int]:
        """Active sessions, and bytes that parked ones do not account for."""
        assert self.server is not None

        def read(shard: Any) -> tuple[int, int]:
            store = shard.loaded.engine.store
            if not store.active:
                store.check()
            parked = len(store) - store.active
            return store.active, 0 if parked else store.bytes_held

        return self.server.look(read)


@dataclass
class SmallMesh:
    """layouts: id -> shards, as the next `publish` writes them; fingerprint: what it says of all of them.

    services: where the ranges' Services lead, by name; a range without one has no Service in the table.
    """

    model: Path
    folder: Path
    layouts: dict[str, list[SmallShard]] = field(default_factory=dict)
    epoch: int = 0
    fingerprint: str = ""
    services: dict[str, list[str]] = field(default_factory=dict)
    cached: int = 0
    mesh: Mesh = field(init=False)

    @property
    def shards(self) -> list[SmallShard]:
        return [shard for layout in self.layouts.values() for shard in layout]

    async def add(self, layout: str, cut: Cut, replicas: int = 1, **options: Any) -> list[SmallShard]:
        """Start the shards of a cut; in the table from the next `publish` on."""
        added = [SmallShard(self.model, start, end, **options) for start, end in cut for _ in range(replicas)]
        await asyncio.gather(*(asyncio.to_thread(shard.start) for shard in added))
        self.layouts.setdefault(layout, []).extend(added)
        return added

    def publish(self, states: dict[str, str] | None = None) -> None:
        """Write a table of all shards, also of those that are down; states: uid -> draining, suspect."""
        self.epoch += 1
        layouts = []
        for name, shards in self.layouts.items():
            ranges: dict[tuple[int, int], list[SmallShard]] = {}
            for shard in shards:
                ranges.setdefault(shard.layers, []).append(shard)
            entries = [
                {
                    "name": f"layers-{start}-{end}",
                    "startLayer": start,
                    "endLayer": end,
                    "service": service_of(start, end) if service_of(start, end) in self.services else "",
                    "endpoints": [
                        {
                            "uid": shard.uid,
                            "address": f"127.0.0.1:{shard.advertised}",
                            "state": (states or {}).get(shard.uid, "ready"),
                        }
                        for shard in members
                    ],
                }
                for (start, end), members in sorted(ranges.items())
            ]
            layouts.append({"id": name, "fingerprint": self.fingerprint, "shards": entries})
        write_whole(self.folder / "routes.json", json.dumps({"uid": "t", "epoch": self.epoch, "layouts": layouts}))

    async def resolve(self, service: str) -> list[str]:
        """The cluster's DNS, as far as the head asks it."""
        if not self.services.get(service):
            raise OSError("no such name")
        return self.services[service]

    async def until(self, condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
        """Looked at on each beat of the head's endpoints: every heartbeat, and every change."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
            await Pulse.wait(self.mesh.context.endpoints.changed.next(), 0.02)

    async def linked(self) -> None:
        """Until the head has links to all shards that are up."""
        up = {shard.uid for shard in self.shards if shard.up}

        def all_linked() -> bool:
            return up <= {endpoint.uid for endpoint in self.mesh.context.endpoints.all.values() if endpoint.opens}

        await self.until(all_linked, "links to all shards")

    async def generate(
        self,
        prompt: Sequence[int],
        tokens: int,
        on_token: Callable[[int], Any] = lambda _: None,
        keep: bool = False,
        **sampling: Any,
    ) -> list[Score]:
        """One generation to its end; on_token(k) after the k-th token, awaited where it returns an awaitable.

        keep: park its state. `cached` then says how many prompt positions the last generation did not compute.
        """
        request = GenerationRequest(
            prompt=tuple(prompt),
            max_new_tokens=tokens,
            sampling=Sampling(gen_start=len(prompt), **sampling),
            stop_ids=frozenset(),
        )
        generation = await self.mesh.start(request)
        scores: list[Score] = []
        try:
            async for token in generation:
                scores.append(token.score)
                waiting = on_token(len(scores))
                if waiting is not None:
                    await waiting
        finally:
            self.cached = generation.cached_tokens
            await generation.aclose(keep=keep)
        return scores

    async def idle(self) -> None:
        """Until nothing runs and every shard that is up has given all back; its accounts must add up."""

        def given_back() -> bool:
            return not self.mesh.context.running and all(s.held() == (0, 0) for s in self.shards if s.up)

        await self.until(given_back, "all sessions to be given back")


def service_of(start: int, end: int) -> str:
    """The Service of a range, as the table names it."""
    return f"layers-{start}-{end}.ns.svc.cluster.local:8100"


@asynccontextmanager
async def small_mesh(model: Path, folder: Path, **options: Any) -> AsyncIterator[SmallMesh]:
    """A mesh without shards yet; options are head settings."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    small = SmallMesh(model, folder)
    context = options.pop("max_context", 512)
    fields = {"chunk": 16, "routes": str(folder / "routes.json"), **options}
    settings = HeadSettings(model=str(model), **fields)
    small.mesh = Mesh(settings, context, CollectorRegistry(), small.resolve)
    try:
        yield small
    finally:
        await small.mesh.aclose()
        await asyncio.gather(*(asyncio.to_thread(shard.crash) for shard in small.shards))
