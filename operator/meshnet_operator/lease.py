"""The Lease of the leader: one instance works, the others stand by.

Times are measured by this process's own clock from when it saw the Lease change, never by the clock of another
machine. Taking and renewing are PUTs with a resourceVersion, so that two can't win.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from meshnet_operator import kinds
from meshnet_operator.cluster import Cluster
from meshnet_operator.errors import ClusterError, Conflict, LeaseLost, NotFound

log = logging.getLogger(__name__)

Object = dict[str, Any]


@dataclass(frozen=True)
class LeaseTimes:
    """Seconds: a lease not renewed for `duration` may be taken; a holder that could not renew for `deadline` ends."""

    duration: float
    deadline: float
    retry: float


class Lease:
    def __init__(self, cluster: Cluster, namespace: str, name: str, identity: str, times: LeaseTimes) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._times = times
        self._body: Object | None = None
        self._seen: tuple[str, float] = ("", 0.0)
        self._jitter = random.Random()

    async def acquire(self) -> None:
        """Returns when this instance leads."""
        while True:
            try:
                if await self._try():
                    log.info("leading", extra={"identity": self._identity})
                    return
            except Conflict:
                pass
            except ClusterError as error:
                log.warning("lease not read", extra={"reason": str(error)})
            await asyncio.sleep(self._times.retry * self._jitter.uniform(0.8, 1.2))

    async def hold(self) -> None:
        """Renews until cancelled. Raises LeaseLost."""
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(self._times.retry)
            left = self._times.deadline - (time.monotonic() - renewed)
            if left <= 0:
                raise LeaseLost(f"not renewed for {self._times.deadline:.0f} s")
            try:
                async with asyncio.timeout(left):
                    begun = time.monotonic()
                    await self._renew()
                    renewed = begun
            except Conflict as error:
                raise LeaseLost("another instance has written the lease") from error
            except (ClusterError, TimeoutError) as error:
                log.warning("lease not renewed", extra={"reason": str(error) or "time-out"})

    async def release(self) -> None:
        """Gives the lease away at a clean end, so that the next need not wait."""
        if self._body is None:
            return
        try:
            await self._put({**self._body["spec"], "holderIdentity": "", "leaseDurationSeconds": 1})
        except ClusterError as error:
            log.info("lease not released", extra={"reason": str(error)})

    async def _try(self) -> bool:
        try:
            body = await self._cluster.get(kinds.LEASE, self._namespace, self._name)
        except NotFound:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": self._spec(0),
            }
            self._body = await self._cluster.create(body, kinds.LEASE, self._namespace)
            return True
        version = body["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, time.monotonic())
        spec = body.get("spec") or {}
        holder = spec.get("holderIdentity")
        fresh = time.monotonic() - self._seen[1] < float(spec.get("leaseDurationSeconds") or self._times.duration)
        if holder and holder != self._identity and fresh:
            return False
        self._body = body
        await self._put(self._spec(int(spec.get("leaseTransitions") or 0) + 1))
        return True

    async def _renew(self) -> None:
        if self._body is None:
            raise LeaseLost("never held")
        try:
            await self._put({**self._body["spec"], "renewTime": _now()})
        except Conflict:
            # Also what an own write looks like whose answer was lost: who holds it now decides.
            found = await self._cluster.get(kinds.LEASE, self._namespace, self._name)
            if (found.get("spec") or {}).get("holderIdentity") != self._identity:
                raise
            self._body = found
            await self._put({**found["spec"], "renewTime": _now()})

    def _spec(self, transitions: int) -> Object:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._times.duration)),
            "acquireTime": _now(),
            "renewTime": _now(),
            "leaseTransitions": transitions,
        }

    async def _put(self, spec: Object) -> None:
        body = {**(self._body or {}), "spec": spec}
        self._body = await self._cluster.replace(body, kinds.LEASE, self._namespace)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
