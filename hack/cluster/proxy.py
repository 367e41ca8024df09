"""A proxy between the operator and the API server that does to requests what networks and busy servers do.

Plain HTTP on the operator's side (the token passes through), or TLS for clients that speak nothing else; TLS on the
other. Faults are set while it runs:

    refuse(path part, status, times, retry_after)   answers instead of the API server
    lose(type, kind)                                 leaves events out of watches: a DELETED that nobody hears
    stream_error(kind, code)                         puts an ERROR object into running watches
    cut()                                            closes all running watches
    silent(True)                                     accepts requests and answers nothing: half-open connections
    slow                                             seconds before each answer
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

CODES = {410: "Expired", 429: "TooManyRequests", 500: "InternalError", 504: "Timeout"}


@dataclass
class Refusal:
    part: str
    status: int
    times: int
    method: str
    message: str
    retry_after: int | None


@dataclass
class FaultProxy:
    """server: https address of the API server; authority: its CA file; identity: certificate and key to serve with.
    `seen` counts requests by method and path.
    """

    server: str
    authority: Path
    identity: tuple[Path, Path] | None = None
    refusals: list[Refusal] = field(default_factory=list)
    lost: set[tuple[str, str]] = field(default_factory=set)
    slow: float = 0.0
    seen: list[tuple[str, str]] = field(default_factory=list)
    accepts: dict[str, set[str]] = field(default_factory=dict)
    address: str = ""
    _watches: dict[asyncio.Task[None] | None, tuple[str, web.StreamResponse]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._voice = asyncio.Event()
        self._voice.set()

    async def start(self) -> None:
        context = ssl.create_default_context(cafile=str(self.authority))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=0), auto_decompress=False, read_bufsize=2**21
        )
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        secure: ssl.SSLContext | None = None
        if self.identity is not None:
            secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            secure.load_cert_chain(*self.identity)
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=secure)
        await site.start()
        self.address = f"{'https' if secure else 'http'}://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        self.silent(False)
        self.cut()
        await self._runner.cleanup()
        await self._session.close()

    def refuse(
        self,
        part: str,
        status: int,
        times: int = 1,
        method: str = "",
        retry_after: int | None = None,
        message: str = "refused",
    ) -> None:
        self.refusals.append(Refusal(part, status, times, method, message, retry_after))

    def lose(self, type: str, kind: str) -> None:
        self.lost.add((type, kind))

    def silent(self, on: bool) -> None:
        if on:
            self._voice.clear()
        else:
            self._voice.set()

    def cut(self) -> None:
        for task in self._watches:
            if task is not None:
                task.cancel()

    async def stream_error(self, part: str, code: int) -> None:
        """An ERROR object in each running watch whose path has `part` in it."""
        status = {"kind": "Status", "code": code, "reason": CODES[code], "message": "made by a test"}
        line = json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"
        for path, response in list(self._watches.values()):
            if part in path:
                with contextlib.suppress(ConnectionError):  # a watch that its client has left
                    await response.write(line)

    @property
    def watching(self) -> int:
        return len(self._watches)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.method, request.path_qs))
        if request.method == "GET":
            last = "/" + request.path.rsplit("/", 1)[1]
            self.accepts.setdefault(last, set()).add(request.headers.get("Accept", ""))
        if self.slow:
            await asyncio.sleep(self.slow)
        await self._voice.wait()
        if (refusal := self._refused(request)) is not None:
            return refusal
        headers = {key: value for key, value in request.headers.items() if key.lower() not in ("host", "connection")}
        timeout = aiohttp.ClientTimeout(total=None)
        body = await request.read()
        async with self._session.request(
            request.method, self.server + request.path_qs, headers=headers, data=body or None, timeout=timeout
        ) as answer:
            if request.query.get("watch") in ("true", "1"):
                return await self._watch(request, answer)
            return web.Response(
                status=answer.status, body=await answer.read(), headers={"Content-Type": answer.content_type}
            )

    def _refused(self, request: web.Request) -> web.Response | None:
        for one in self.refusals:
            if one.times > 0 and one.part in request.path_qs and one.method in ("", request.method):
                one.times -= 1
                status = {
                    "kind": "Status",
                    "code": one.status,
                    "reason": CODES.get(one.status, ""),
                    "message": one.message,
                }
                extra = {} if one.retry_after is None else {"Retry-After": str(one.retry_after)}
                return web.json_response(status, status=one.status, headers=extra)
        return None

    async def _watch(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
        await response.prepare(request)
        task = asyncio.current_task()
        self._watches[task] = (request.path_qs, response)
        try:
            async for line in answer.content:
                await self._voice.wait()
                event = json.loads(line)
                if (event["type"], event["object"].get("kind", "")) not in self.lost:
                    await response.write(line)
        except asyncio.CancelledError:
            # Our own `cut`: the connection ends without the end of the stream.
            if request.transport is not None:
                request.transport.abort()
        except (ConnectionError, aiohttp.ClientError):
            pass
        finally:
            self._watches.pop(task, None)
        return response
