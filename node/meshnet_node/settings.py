"""The one place that reads the environment: a frozen settings object per process, built in `__main__`.

Names are the contract between operator and node: field `kv_ttl_seconds` is MESHNET_KV_TTL_SECONDS. A bad value is a
`ConfigError` that names the variable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import AliasChoices, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from meshnet_node.errors import ConfigError

CONFIGMAP = "configmap://"
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
ORIGIN_FORM = re.compile(r"https?://[^/\s,]+")
CONFIGMAP_FORM = re.compile(rf"{CONFIGMAP}(?P<namespace>{_LABEL})/(?P<name>{_LABEL}([.]{_LABEL})*)")

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class NodeSettings(BaseSettings):
    """What head and shard share."""

    model_config = SettingsConfigDict(env_prefix="MESHNET_", frozen=True, extra="ignore", protected_namespaces=())

    model: str = Field(description="folder with config.json and safetensors, a GGUF file, or a Hugging Face hub id")
    revision: str | None = Field(default=None, description="commit, tag or branch of a hub id")
    trust_remote_code: bool = False
    stateless: bool = Field(default=False, description="hold no session state: each step runs the whole sequence")
    host: str = Field(default="0.0.0.0", description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="port to listen on")
    token_file: Path | None = Field(default=None, description="the shard token, shared by heads and shards; one a line")
    pod_uid: str = Field(default="", description="uid of this process's pod; one is made where it is empty")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"


class ShardSettings(NodeSettings):
    """A shard: layers [start_layer, end_layer] of the model, both inclusive; end_layer None = the last."""

    port: int = Field(default=8100, ge=0, le=65535, description="port to listen on")
    start_layer: int = Field(default=0, ge=0, description="first layer of the range, counted from 0")
    end_layer: int | None = Field(
        default=None, ge=0, description="last layer of the range, itself included; default: the model's last"
    )
    dtype: Dtype = Field(
        default="auto", description="auto (what the checkpoint is stored in), float32, bfloat16 or float16"
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1 ...")
    threads: int = Field(default=0, ge=0, description="compute threads on a CPU; 0 = all cores")
    kv_ttl_seconds: float = Field(default=600, gt=0, description="life of a parked session")
    kv_max_sessions: int = Field(default=8, ge=1, description="active and parked sessions together")
    kv_max_bytes: int | None = Field(
        default=None, gt=0, description="bytes of session state; default: a share of memory"
    )
    max_context: int | None = Field(
        default=None, gt=0, description="positions a session may hold; default: the model's"
    )
    chunk: int = Field(default=128, ge=1, description="positions of a prompt computed between two decode batches")
    lease_seconds: float = Field(default=15, gt=0)
    drain_seconds: float = Field(default=30, ge=0)
    determinism: Literal["fast", "strict"] = Field(
        default="fast", description="strict: the same tokens in any dtype, company and loss, at a price in speed"
    )
    allow_cast: bool = Field(default=False, description="work with shards of another dtype: refused so far")
    cache_dir: Path = Field(default=Path("~/.cache/meshnet"), description="converted GGUF files")

    @field_validator("allow_cast")
    @classmethod
    def _no_casts_yet(cls, wanted: bool) -> bool:
        if wanted:
            raise ValueError("boundaries are not cast: give all shards one dtype")
        return wanted


class HeadSettings(NodeSettings):
    """A head: the API, the tokenizer and the drive of the shards."""

    served_name: str | None = Field(default=None, description="what the API calls the model; default: as it was given")
    max_context: int | None = Field(default=None, gt=0)
    routes: str = Field(description="the route table: a file's path, or configmap://namespace/name inside a cluster")
    watch_seconds: int = Field(default=120, ge=1, description="life of one watch of the route table's ConfigMap")
    lookup_seconds: float = Field(
        default=1.0, gt=0, description="a range without a usable endpoint for so long is looked up by its Service"
    )
    account_folder: Path = Field(
        default=Path("/var/run/secrets/kubernetes.io/serviceaccount"),
        description="folder with token and ca.crt for the API server, as the kubelet mounts it",
    )
    # These two come from the kubelet, under its names.
    kubernetes_service_host: str = Field(
        default="", validation_alias=AliasChoices("kubernetes_service_host", "KUBERNETES_SERVICE_HOST")
    )
    kubernetes_service_port: int = Field(
        default=443, validation_alias=AliasChoices("kubernetes_service_port", "KUBERNETES_SERVICE_PORT")
    )
    api_keys_file: Path | None = Field(default=None, description="accepted bearer keys, one a line; absent = open")
    hold_seconds: float = Field(default=120, ge=0, description="how long a stream is held while no shard can go on")
    queue_seconds: float = Field(default=10, ge=0, description="how long a request may wait for a free session")
    replay_bytes: int = Field(default=2 * 1024**3, ge=0, description="budget of the boundary logs of all generations")
    chunk: int = Field(default=128, ge=1)
    max_requests: int = Field(
        default=256, ge=1, description="requests that a head works on at once, queued ones included"
    )
    key_max_requests: int | None = Field(
        default=None, ge=1, description="requests that one API key may have in work at this head; default: no bound"
    )
    cors_origins: str = Field(
        default="", description="origins of web pages that may call the API, separated by commas; * = any"
    )
    fold_system: bool = Field(
        default=False, description="where the template takes no system message, put its text before the first user's"
    )
    max_body_bytes: int = Field(default=8 * 1024**2, gt=0)
    heartbeat_seconds: float = Field(default=0.25, gt=0)
    silent_seconds: float = Field(default=2.0, gt=0, description="no pong for so long: the link is silent")
    reader_seconds: float = Field(default=60, gt=0, description="a client that takes nothing for so long is given up")
    drain_seconds: float = Field(default=600, ge=0)
    linger_seconds: float = Field(
        default=0, ge=0, description="how long new requests are still served after SIGTERM, at most drain_seconds"
    )
    keepalive_seconds: float = Field(default=10, gt=0)

    @field_validator("routes")
    @classmethod
    def _routes_name_one_object(cls, wanted: str) -> str:
        if wanted.startswith(CONFIGMAP) and CONFIGMAP_FORM.fullmatch(wanted) is None:
            raise ValueError(f"write {CONFIGMAP}NAMESPACE/NAME, for example {CONFIGMAP}default/demo-routes")
        return wanted

    @property
    def origins(self) -> list[str]:
        """`cors_origins` one by one."""
        return [origin.strip() for origin in self.cors_origins.split(",") if origin.strip()]

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: str) -> str:
        for origin in filter(None, map(str.strip, value.split(","))):
            if origin != "*" and not ORIGIN_FORM.fullmatch(origin):
                raise ValueError(f"{origin} is no origin: write scheme://host or scheme://host:port, without a path")
        return value

    @property
    def routes_object(self) -> tuple[str, str] | None:
        """Namespace and name of the ConfigMap with the routes; None = they are in a file."""
        form = CONFIGMAP_FORM.fullmatch(self.routes)
        return (form["namespace"], form["name"]) if form else None


S = TypeVar("S", bound=NodeSettings)


def load(kind: type[S], overrides: Mapping[str, Any]) -> S:
    """Settings from the environment, with the command line's values on top (None = not given).

    Raises ConfigError that names each variable which is missing or wrong.
    """
    try:
        return kind(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        faults = (f"{_variable(e['loc'])}: {_reason(e)}" for e in error.errors(include_input=False))
        raise ConfigError("; ".join(faults)) from None


def _variable(loc: tuple[int | str, ...]) -> str:
    name = "_".join(map(str, loc)).upper()
    return name if name.startswith("KUBERNETES_") else f"MESHNET_{name}"


def _reason(error: ErrorDetails) -> str:
    """What is wrong with it, in words that fit after the name."""
    return "is needed" if error["type"] == "missing" else error["msg"].removeprefix("Value error, ")
