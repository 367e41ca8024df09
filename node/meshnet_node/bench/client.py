"""A client of the mesh that notes when each token arrived: what a user would feel, HTTP and streaming included."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

from meshnet_node.errors import ConfigError
from meshnet_node.local.mesh import LocalMesh

TIMEOUT = 300.0


@dataclass
class Timed:
    """Token ids with their arrival times (monotonic seconds) after `began`; the same form for mesh and reference.

    error: the error body of a refused or broken answer. cached_tokens: prompt positions that the mesh did not compute.
    """

    began: float
    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    error: str | None = None
    done: bool = False
    cached_tokens: int = 0

    @property
    def steps(self) -> list[float]:
        """Seconds from each token to the next: the decode steps, without the prompt's."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.began

    @property
    def failed(self) -> bool:
        """It ended with an error, or without its end."""
        return self.error is not None or not self.done


async def complete(
    client: httpx2.AsyncClient,
    mesh: LocalMesh,
    prompt: Sequence[int],
    tokens: int,
    on_token: Callable[[int], None] = lambda _: None,
) -> Timed:
    """Stream a greedy /v1/completions of exactly so many tokens; on_token(k) is called after the k-th."""
    body = {
        "model": mesh.plan.served_name,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    timed = Timed(time.monotonic())
    async with client.stream("POST", f"{mesh.url}/v1/completions", json=body, timeout=TIMEOUT) as response:
        if response.status_code != 200:
            timed.error = (await response.aread()).decode(errors="replace")
            return timed
        async for line in response.aiter_lines():
            _take(timed, line, on_token)
    return timed


def checked(name: str, timed: Timed) -> Timed:
    """Raises ConfigError for an answer that failed, or that skipped its prompt."""
    if timed.failed:
        raise ConfigError(f"{name}: the answer failed: {timed.error}")
    if timed.cached_tokens:
        raise ConfigError(f"{name}: {timed.cached_tokens} tokens of the prompt were not computed")
    return timed


def _take(timed: Timed, line: str, on_token: Callable[[int], None]) -> None:
    if line == "data: [DONE]":
        timed.done = True
    elif line.startswith("data: "):
        now = time.monotonic()
        event: dict[str, Any] = json.loads(line.removeprefix("data: "))
        if "error" in event:
            timed.error = json.dumps(event["error"])
            return
        _count_usage(timed, event)
        for choice in event["choices"]:
            for id_ in choice.get("token_ids") or ():
                timed.ids.append(id_)
                timed.times.append(now)
                on_token(len(timed.ids))


def _count_usage(timed: Timed, event: dict[str, Any]) -> None:
    details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
    timed.cached_tokens = details.get("cached_tokens") or 0
