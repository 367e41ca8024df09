"""The faults of the recovery bench: what is done to the shard that serves the stream, by name.

Only processes of the bench's own mesh are touched, by their pid.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx2

from meshnet_node.bench.session import Result, describe
from meshnet_node.errors import ConfigError
from meshnet_node.local.child import Child
from meshnet_node.local.mesh import LocalMesh


@dataclass(frozen=True)
class Scene:
    """The mesh in the middle of one generation: its session id, and the shard that the fault hits."""

    client: httpx2.AsyncClient
    mesh: LocalMesh
    session: str
    victim: Child


Act = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """One row of the bench. replicas: processes per range of the mesh that it needs."""

    name: str
    replicas: int
    act: Act


async def nothing(scene: Scene) -> None:
    """The same stream without a fault, to compare with."""


async def kill(scene: Scene) -> None:
    """The process is gone at once."""
    _signal(scene.victim, signal.SIGKILL)


async def stop(scene: Scene) -> None:
    """The process is there and answers nothing."""
    _signal(scene.victim, signal.SIGSTOP)


async def evict(scene: Scene) -> None:
    """The session's state is dropped at one shard only."""
    token = scene.mesh.token.read_text().strip()
    url = f"{scene.victim.url}/v1/sessions/{scene.session}"
    answer = await scene.client.delete(url, headers={"Authorization": f"Bearer {token}"})
    if answer.status_code >= 300:
        raise ConfigError(f"the session could not be evicted: {answer.status_code} {answer.text}")


async def drain(scene: Scene) -> None:
    """The route table says that this shard is being taken down."""
    scene.mesh.mark(scene.victim, "draining")


FAULTS = (
    Fault("none", 2, nothing),
    Fault("session evicted at one shard", 2, evict),
    Fault("draining, a replica is ready", 2, drain),
    Fault("kill -9, a replica is ready", 2, kill),
    Fault("SIGSTOP, a replica is ready", 2, stop),
    Fault("kill -9 of the only replica", 1, kill),
)


async def scene(client: httpx2.AsyncClient, mesh: LocalMesh) -> Scene:
    """What runs now: the one session, and the shard of the last range that serves it. Raises ConfigError."""
    found = await describe(client, mesh)
    running = found["sessions"]["list"]
    if len(running) != 1:
        raise ConfigError(f"{len(running)} generations run, where the bench's own should be the only one")
    serving = {shard["uid"] for shard in found["shards"] if shard["generations"]}
    last = mesh.plan.ranges[-1]
    for child in mesh.shards:
        if child.layers == last and child.uid in serving:
            return Scene(client, mesh, running[0]["session"], child)
    raise ConfigError("no shard of the last range serves the generation")


def recoveries(found: Result, session: str) -> list[Result]:
    """What GET /mesh says was healed for this session."""
    return [entry for entry in found["recoveries"] if session.startswith(entry["session"])]


def _signal(child: Child, number: int) -> None:
    if child.pid is None:
        raise ConfigError(f"{child.name} is not running")
    os.kill(child.pid, number)
