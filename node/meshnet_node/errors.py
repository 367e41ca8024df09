"""Every error that this package raises on purpose.

    MeshnetError
    ├── ConfigError          environment, command line or a file that the process was given
    ├── ModelError           the model, its checkpoint or the wanted range can't be served
    │   ├── RangeError           the layers do not exist, or the model may not be cut there
    │   ├── WeightsError         a tensor is missing, has another shape, or the file can't be read
    │   ├── DtypeError           the device can't do the wanted dtype
    │   └── FamilyError          this kind of model is not proven to be served right
    ├── WireError            what head and shard say to each other; `code` is the contract's closed list
    │   ├── BadFrame  WrongShard  Unauthorized  TooLarge
    │   ├── CacheMiss            `have`: the position that the shard can resume at
    │   ├── NotOwner  OverCapacity  Stale  SessionClosed
    │   └── NotReady             loading or draining
    ├── IntegrityError       this process's own accounts do not fit what it holds: a bug, never input
    ├── LinkLost             the connection to a shard ended, or another instance answers at its address
    ├── ApiServerError       the Kubernetes API server refused a request or could not be reached
    └── ApiError             what an API client is told: status, type, code, param, retry_after

A WireError crosses the wire as (code, message, have) and is raised again on the other side by `wire_error`.
"""

from __future__ import annotations

from typing import ClassVar


class MeshnetError(Exception):
    """Root of the tree. `retry_helps` tells whether the same call may succeed later, unchanged."""

    retry_helps: ClassVar[bool] = False


class ConfigError(MeshnetError):
    """A setting, argument or file of this process is wrong; the message says what to change."""


class ModelError(MeshnetError):
    """The model can't be served as asked."""


class RangeError(ModelError):
    """The layer range is outside the model, or starts where the model may not be cut."""


class WeightsError(ModelError):
    """The checkpoint lacks a tensor, holds one of another shape, or can't be read."""


class DtypeError(ModelError):
    """The device can't compute in the wanted dtype."""


class FamilyError(ModelError):
    """The model's family is not in the list of those proven equal to the uncut model."""


class WireError(MeshnetError):
    """Something that one side of the wire refuses. `code` and `status` are part of the wire contract."""

    code: ClassVar[str] = "bad_frame"
    status: ClassVar[int] = 400

    def __init__(self, message: str, *, have: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.have = have


class BadFrame(WireError):
    """A frame, header or field breaks the contract."""


class TooLarge(WireError):
    """More bytes or positions than the limits in hello allow."""

    code = "too_large"
    status = 413


class Unauthorized(WireError):
    """The shard token's challenge was not met."""

    code = "unauthorized"
    status = 401


class WrongShard(WireError):
    """The frame is for another model, layer range or instance."""

    code = "wrong_shard"
    status = 421


class CacheMiss(WireError):
    """The shard does not hold the session at that position with that content; `have` says where it can resume."""

    code = "cache_miss"
    status = 409


class NotOwner(WireError):
    """The session belongs to another head."""

    code = "not_owner"
    status = 409


class Stale(WireError):
    """The row is of an attempt that was given up."""

    code = "stale"
    status = 409


class SessionClosed(WireError):
    """The session was closed; rows that arrive late are purged."""

    code = "closed"
    status = 409


class OverCapacity(WireError):
    """No room for another session's state now."""

    code = "over_capacity"
    status = 429
    retry_helps = True


class NotReady(WireError):
    """Base of the two reasons why a shard takes no new work."""

    status = 503
    retry_helps = True


class Loading(NotReady):
    """The weights are not loaded yet."""

    code = "loading"


class Draining(NotReady):
    """The shard is going away and opens no sessions."""

    code = "draining"


class ShardFault(WireError):
    """The model raised while it computed the row; the session's state was dropped."""

    code = "shard_fault"
    status = 500
    retry_helps = True


class IntegrityError(MeshnetError):
    """What is accounted is not what is held. Tests fail on it; production logs and counts it."""


class LinkLost(MeshnetError):
    """The link to a shard is gone; nothing sent on it will be answered."""

    retry_helps = True


class ApiServerError(MeshnetError):
    """`status` is its HTTP status (0 = not reached), `retry_after` what it asked for, in seconds."""

    retry_helps = True

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


WIRE_ERRORS: dict[str, type[WireError]] = {
    cls.code: cls
    for cls in (
        BadFrame, TooLarge, Unauthorized, WrongShard, CacheMiss, NotOwner, Stale, SessionClosed, OverCapacity,
        Loading, Draining, ShardFault,
    )
}  # fmt: skip


def wire_error(code: str, message: str, have: int | None = None) -> WireError:
    """The typed error for a code received from the other side; an unknown code is a `BadFrame`."""
    return WIRE_ERRORS.get(code, BadFrame)(message, have=have)


class ApiError(MeshnetError):
    """An error body of the OpenAI API: {"error": {message, type, param, code}} with its HTTP status.

    `retry_after` is in seconds and becomes the header of that name.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.code = code
        self.param = param
        self.retry_after = retry_after


def overloaded(message: str, retry_after: int = 5) -> ApiError:
    """503 `overloaded`: the mesh is full or has no complete path now (openai-api.md 1.5: 429 = you, 503 = us)."""
    return ApiError(message, status=503, type="server_error", code="overloaded", retry_after=retry_after)
