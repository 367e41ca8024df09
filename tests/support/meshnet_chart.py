"""The chart as Helm renders and installs it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from chart.made import CHART
from cluster.binaries import KUBERNETES, ensure

Object = dict[str, Any]
RELEASE = "meshnet"


def helm(*args: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    place = (f"--kubeconfig={kubeconfig}",) if kubeconfig else ()
    return subprocess.run([str(ensure("helm")), *args, *place], capture_output=True, text=True)


def stated(values: Object) -> list[str]:
    """Values as arguments. JSON, so that types stay what they are; null takes a default away."""
    return [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]


def template(values: Object | None = None, namespace: str = "here", *more: str) -> subprocess.CompletedProcess[str]:
    return helm(
        "template", RELEASE, str(CHART), f"--namespace={namespace}", f"--kube-version={KUBERNETES}",
        *stated(values or {}), *more,
    )  # fmt: skip


def render(values: Object | None = None, namespace: str = "here", *more: str) -> list[Object]:
    """The rendered objects."""
    done = template(values, namespace, *more)
    assert done.returncode == 0, done.stderr
    return [body for body in yaml.safe_load_all(done.stdout) if body]


def find(objects: Iterable[Object], kind: str, name: str | None = None) -> Object:
    """The only object of that kind (and name)."""
    (found,) = [one for one in objects if one["kind"] == kind and name in (None, one["metadata"]["name"])]
    return found


def pod_of(objects: Iterable[Object]) -> Object:
    """Spec of the operator's pods."""
    spec: Object = find(objects, "Deployment")["spec"]["template"]["spec"]
    return spec


def environment(objects: Iterable[Object]) -> dict[str, str]:
    """What the operator's container is told."""
    return {entry["name"]: entry.get("value", "") for entry in pod_of(objects)["containers"][0]["env"]}
