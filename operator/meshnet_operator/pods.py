"""What we keep of a pod: a few fields of each, so that a thousand pods cost little, and changes that mean nothing are
seen to.

Pure. A pod's trouble (why it does not run) is read here too, in words for a person.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshnet_operator import names
from meshnet_operator.resource import Key, Range

CLIP = 300
SECONDS = re.compile(r"[0-9]{1,9}")
# Waiting reasons that are a normal part of starting.
STARTING = {"", "ContainerCreating", "PodInitializing"}
PULL = {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}


@dataclass(frozen=True)
class Trouble:
    """Why a pod does not serve. `reason` is one of the reasons of the condition Degraded."""

    reason: str
    message: str


@dataclass(frozen=True)
class Pod:
    """A pod of ours. `running`: the container runs; `ready`: the Ready condition; `address`: pod IP, may be empty."""

    key: Key
    name: str
    uid: str
    model_uid: str
    role: str
    workload: str
    revision: str
    image: str
    node: str
    range: Range | None
    address: str
    ready: bool
    running: bool
    deleting: bool
    deletion: str | None
    grace: int
    drain: int
    phase: str
    restarts: int
    created: str
    trouble: Trouble | None


def read(body: Mapping[str, Any]) -> Pod:
    """The fields of a pod as the API server sends it. Labels that somebody broke make `range` None."""
    metadata, status = body["metadata"], body.get("status") or {}
    labels = metadata.get("labels") or {}
    container: Mapping[str, Any] = next(iter(status.get("containerStatuses") or []), {})
    phase = status.get("phase", "Pending")
    conditions = {one["type"]: one for one in status.get("conditions") or []}
    failed = phase in ("Failed", "Succeeded")
    annotations = metadata.get("annotations") or {}
    return Pod(
        key=Key(metadata["namespace"], labels.get(names.MODEL, "")),
        name=metadata["name"],
        uid=metadata["uid"],
        model_uid=labels.get(names.UID, ""),
        role=labels.get(names.ROLE, ""),
        workload=labels.get(names.WORKLOAD, ""),
        revision=labels.get(names.REVISION, ""),
        image=labels.get(names.IMAGE, ""),
        node=(body.get("spec") or {}).get("nodeName", ""),
        range=_range(labels),
        address=status.get("podIP", ""),
        ready=not failed and conditions.get("Ready", {}).get("status") == "True",
        running=not failed and "running" in (container.get("state") or {}),
        deleting="deletionTimestamp" in metadata,
        deletion=metadata.get("deletionTimestamp"),
        grace=int(metadata.get("deletionGracePeriodSeconds") or 0),
        drain=_number(annotations.get(names.DRAIN)),
        phase=phase,
        restarts=sum(one.get("restartCount", 0) for one in status.get("containerStatuses") or []),
        created=metadata.get("creationTimestamp") or "",
        trouble=_trouble(status, phase, container, conditions),
    )


def _number(text: str | None) -> int:
    """Anybody who may make a pod may write the annotation; what is no number of seconds is none."""
    return int(text) if text and SECONDS.fullmatch(text) else 0


def _range(labels: Mapping[str, str]) -> Range | None:
    try:
        return Range(labels[names.SHARD], int(labels[names.START]), int(labels[names.END]))
    except (KeyError, ValueError):
        return None


def _trouble(
    status: Mapping[str, Any], phase: str, container: Mapping[str, Any], conditions: Mapping[str, Any]
) -> Trouble | None:
    if phase == "Failed":
        reason = status.get("reason") or "Failed"
        return Trouble("PodFailed", _clip(f"{reason}: {status.get('message') or _ended(container)}"))
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return Trouble("Unschedulable", _clip(scheduled.get("message", "")))
    for one in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        if found := _container(one):
            return found
    return None


def _container(status: Mapping[str, Any]) -> Trouble | None:
    name = status.get("name", "")
    waiting = (status.get("state") or {}).get("waiting")
    ended = _ended(status)
    if waiting and waiting.get("reason", "") in PULL:
        return Trouble("ImagePullFailed", _clip(f"{name}: {waiting['reason']}: {waiting.get('message', '')}"))
    oom = any(_terminated(status, part).get("reason") == "OOMKilled" for part in ("state", "lastState"))
    if oom and not status.get("ready"):
        return Trouble("OOMKilled", _clip(f"{name}: {ended}; give it more memory"))
    if waiting and waiting.get("reason", "") not in STARTING:
        detail = ended or waiting.get("message", "")
        return Trouble("CrashLoop", _clip(f"{name}: {waiting['reason']}: {detail}"))
    if status.get("restartCount", 0) >= 2 and not status.get("ready") and ended:
        return Trouble("CrashLoop", _clip(f"{name}: restarted {status['restartCount']} times: {ended}"))
    return None


def _terminated(status: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (status.get(part) or {}).get("terminated") or {}
    return found


def _ended(status: Mapping[str, Any]) -> str:
    """How the container ended last, with its last words."""
    end = _terminated(status, "state") or _terminated(status, "lastState")
    if not end:
        return ""
    # One that was killed (128 + SIGKILL) had no time for any: its log's last lines are about something else.
    words = "" if end.get("exitCode") == 137 else " ".join(end.get("message", "").split())[-CLIP:]
    return f"{end.get('reason', 'Error')}, exit code {end.get('exitCode')}" + (f": {words}" if words else "")


def _clip(text: str) -> str:
    return " ".join(text.split())[: 2 * CLIP]
