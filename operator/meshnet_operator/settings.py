"""The one place that reads the environment: a frozen settings object, built in `__main__`.

Field `resync_seconds` is MESHNET_OPERATOR_RESYNC_SECONDS. A bad value is a `ConfigError` that names the variable.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from meshnet_operator.errors import ConfigError


@dataclass(frozen=True)
class PodDefaults:
    """What the pods of every MeshModel get beside what it states; empty parts are left out.

    They go into a pod template when it is first rendered and are no part of its inputs: another value reaches new
    templates only, and rolls no pod that is there.
    """

    hub_endpoint: str = ""
    http_proxy: str = ""
    https_proxy: str = ""
    no_proxy: str = ""
    ca_configmap: str = ""
    ca_key: str = "ca.crt"
    pull_secrets: tuple[str, ...] = ()


class OperatorSettings(BaseSettings):
    """Everything that an operator's process can be told."""

    model_config = SettingsConfigDict(env_prefix="MESHNET_OPERATOR_", frozen=True, extra="ignore")

    node_image: str = Field(min_length=1, description="image of head and shards where a MeshModel names none")
    namespace: str = Field(default="", description="watch this namespace only; empty: the whole cluster")
    kubeconfig: Path | None = Field(default=None, description="file to use instead of the pod's service account")
    lease_namespace: str = Field(default="default", description="where the Lease of the leader lies")
    lease_name: str = Field(default="meshnet-operator", description="name of that Lease")
    lease_seconds: float = Field(default=15, gt=0, description="a lease that is older may be taken")
    lease_renew_deadline: float = Field(default=10, gt=0, description="not renewed for so long: this process ends")
    lease_retry_seconds: float = Field(default=2, gt=0, description="time between two tries")
    identity: str = Field(default_factory=socket.gethostname, min_length=1, description="holder's name in the Lease")
    resync_seconds: float = Field(default=60, gt=0, description="time between two full comparisons with the cluster")
    stall_seconds: float = Field(default=60, gt=0, description="watch behind the lists for so long: the process ends")
    request_timeout: float = Field(default=15, gt=0, description="of each call but a watch, seconds")
    watch_seconds: int = Field(default=240, ge=5, description="server-side life of one watch connection")
    connections: int = Field(default=32, ge=1, description="requests in flight")
    workers: int = Field(default=8, ge=1, description="MeshModels that the slow lane works on at once")
    route_workers: int = Field(default=24, ge=1, description="route tables written at once")
    coalesce_seconds: float = Field(default=0.005, ge=0, description="pod events in this window make one table")
    status_seconds: float = Field(default=1.0, gt=0, description="time between two status writes of a model")
    probe_pods: bool = Field(
        default=True, description="ask ready shards for their fingerprint, and heads whether a token came through"
    )
    hub_endpoint: str = Field(
        default="", description="hub that resolves tags to commits, and that pods load from; empty: not resolved"
    )
    pod_http_proxy: str = Field(default="", description="proxy between pods and the hub")
    pod_https_proxy: str = Field(default="", description="the same for https")
    pod_no_proxy: str = Field(default="", description="what pods ask without it")
    pod_ca_configmap: str = Field(
        default="", description="ConfigMap in each MeshModel's namespace: authorities of the hub"
    )
    pod_ca_key: str = Field(default="ca.crt", min_length=1, description="key of that ConfigMap")
    pod_pull_secrets: tuple[str, ...] = Field(
        default=(), description="pull secrets where a MeshModel names none; a JSON list"
    )
    exit_seconds: float = Field(default=10, ge=0, description="hanging so long at its end, it is killed; 0: never")
    cluster_domain: str = Field(default="cluster.local", description="DNS domain of the cluster")
    host: str = Field(default="0.0.0.0", description="address to listen on")
    port: int = Field(default=8081, ge=0, le=65535, description="/healthz, /readyz and /metrics")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="of the JSON log lines")

    @field_validator("hub_endpoint", "pod_http_proxy", "pod_https_proxy")
    @classmethod
    def _address(cls, text: str) -> str:
        """The port is read later, where a fault would stop every MeshModel."""
        parts = urlsplit(text)
        if text and (parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0):
            raise ValueError("give it as http://host:port or https://host:port")
        return text

    @property
    def pod_defaults(self) -> PodDefaults:
        return PodDefaults(
            hub_endpoint=self.hub_endpoint,
            http_proxy=self.pod_http_proxy,
            https_proxy=self.pod_https_proxy,
            no_proxy=self.pod_no_proxy,
            ca_configmap=self.pod_ca_configmap,
            ca_key=self.pod_ca_key,
            pull_secrets=self.pod_pull_secrets,
        )


def load(**overrides: Any) -> OperatorSettings:
    """Settings from the environment, with `overrides` on top (None = not given). Raises ConfigError."""
    try:
        return OperatorSettings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        faults = (f"{_variable(e['loc'])}: {_reason(e)}" for e in error.errors(include_input=False))
        raise ConfigError("; ".join(faults)) from None


def _variable(loc: tuple[int | str, ...]) -> str:
    return f"MESHNET_OPERATOR_{'_'.join(map(str, loc))}".upper()


def _reason(error: ErrorDetails) -> str:
    """What is wrong with it, in words that fit after the name."""
    return "is needed" if error["type"] == "missing" else error["msg"].removeprefix("Value error, ")
