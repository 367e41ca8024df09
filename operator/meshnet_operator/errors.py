"""Every error that this package raises on purpose.

    OperatorError
    ├── ConfigError      environment or kubeconfig of this process
    ├── ResourceError    a MeshModel that the schema should have refused
    ├── LeaseLost        another instance leads, or the lease could not be renewed in time: the process must end
    ├── Stalled          the watch delivers less than the lists show: the process must end
    └── ClusterError     what the API server answered: status, reason, message, retry_after
        ├── Unreachable      no answer: connection, TLS, time-out (status 0)
        ├── Invalid          400, 422: the object is wrong; the same call will fail again
        ├── Forbidden        401, 403: RBAC, quota or an admission policy
        ├── NotFound         404
        ├── Conflict         409: somebody else wrote first
        │   └── NameTaken        an object of that name belongs to somebody else; `leftover`: to an earlier MeshModel
        ├── Gone             410: the watch's resourceVersion is too old, list again
        ├── Busy             429
        └── ServerFault      5xx

`retry_helps` says whether the same call may succeed later without a change by a person.
"""

from __future__ import annotations

from typing import ClassVar

CLIP = 400


class OperatorError(Exception):
    """Root of the tree."""

    retry_helps: ClassVar[bool] = False


class ConfigError(OperatorError):
    """A setting or the kubeconfig is wrong; the message says what to change."""


class ResourceError(OperatorError):
    """The MeshModel can't be read; the message names the field."""


class LeaseLost(OperatorError):
    """This instance does not lead any more."""


class Stalled(OperatorError):
    """This instance works on an old view of the cluster."""


class ClusterError(OperatorError):
    """An answer of the API server that is not a success. `message` is clipped before it can reach a log."""

    retry_helps: ClassVar[bool] = True

    def __init__(self, message: str, status: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        self.message = message[:CLIP]
        super().__init__(f"{status} {reason}: {self.message}" if status else self.message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class Unreachable(ClusterError):
    """No answer in time, or none at all."""


class Invalid(ClusterError):
    """The API server refuses the object itself."""

    retry_helps: ClassVar[bool] = False


class Forbidden(ClusterError):
    """Rights, quota or policy; retried slowly, since all three may change."""


class NotFound(ClusterError):
    """No such object, or no such API."""


class Conflict(ClusterError):
    """A resourceVersion that is not the newest, a name that is taken, or fields of another manager."""


class NameTaken(Conflict):
    """Left alone. A leftover goes by itself, so the same call succeeds later."""

    def __init__(self, what: str, leftover: bool) -> None:
        owner = "an earlier MeshModel of this name" if leftover else "somebody else"
        super().__init__(f"{what} belongs to {owner}", 409, "NameTaken")
        self.what = what
        self.leftover = leftover


class Gone(ClusterError):
    """The resourceVersion has been compacted away."""


class Busy(ClusterError):
    """The API server asks for fewer requests."""


class ServerFault(ClusterError):
    """5xx."""


def cluster_error(status: int, reason: str, message: str, retry_after: float | None = None) -> ClusterError:
    """The class for an HTTP status."""
    kinds: dict[int, type[ClusterError]] = {
        400: Invalid, 401: Forbidden, 403: Forbidden, 404: NotFound, 409: Conflict, 410: Gone, 422: Invalid, 429: Busy,
    }  # fmt: skip
    kind = kinds.get(status, ServerFault if status >= 500 else ClusterError)
    return kind(message, status, reason, retry_after)
