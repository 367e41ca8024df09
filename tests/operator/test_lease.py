"""The Lease against an API server that loses answers: who holds it decides, not who wrote last."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from meshnet_operator.errors import Conflict, LeaseLost, NotFound, Unreachable
from meshnet_operator.lease import Lease, LeaseTimes


class Leases:
    """One Lease as the API server keeps it; `lost`: so many answers to writes never arrive."""

    def __init__(self) -> None:
        self.body: dict[str, Any] | None = None
        self.version = 0
        self.writes = 0
        self.lost = 0

    async def get(self, *_: object) -> dict[str, Any]:
        if self.body is None:
            raise NotFound("no lease", 404)
        return self.body

    async def create(self, body: dict[str, Any], *_: object) -> dict[str, Any]:
        self.version += 1
        self.body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return self.body

    async def replace(self, body: dict[str, Any], *_: object) -> dict[str, Any]:
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict("somebody wrote first", 409)
        stored = await self.create(body)
        self.writes += 1
        if self.lost:
            self.lost -= 1
            raise Unreachable("the connection was reset")
        return stored

    async def take(self, holder: str) -> None:
        assert self.body is not None
        await self.create({**self.body, "spec": {**self.body["spec"], "holderIdentity": holder}})


async def holding(leases: Leases) -> asyncio.Task[None]:
    lease = Lease(leases, "ns", "operator", "me", LeaseTimes(1.0, 0.5, 0.01))  # type: ignore[arg-type]
    await lease.acquire()
    return asyncio.create_task(lease.hold())


async def renewed(leases: Leases, held: asyncio.Task[None]) -> None:
    """Until it was written some times more."""
    wanted = leases.writes + 5
    while leases.writes < wanted and not held.done():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.01)


async def test_a_renewal_whose_answer_was_lost_is_no_loss_of_the_lease() -> None:
    leases = Leases()
    held = await holding(leases)
    leases.lost = 1
    await renewed(leases, held)
    assert not held.done()
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)


async def test_a_lease_that_somebody_else_took_is_lost() -> None:
    leases = Leases()
    held = await holding(leases)
    await leases.take("another")
    with pytest.raises(LeaseLost, match="another instance"):
        await asyncio.wait_for(held, 5)
    assert leases.body is not None
    assert leases.body["spec"]["holderIdentity"] == "another"
