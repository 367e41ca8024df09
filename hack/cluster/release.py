"""Our chart and the sample on a cluster, whoever made that, and the way to talk to it."""

from __future__ import annotations

import json
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from images import recipes

from cluster.binaries import HACK, ensure
from cluster.machines import Machine

CHART = HACK.parent / "charts" / "meshnet"
SAMPLE = HACK.parent / "samples" / "smollm2.yaml"
NAMESPACE = "models"
OPERATOR = "meshnet"
MODEL = "smollm2"
DEFINITION = "meshmodels.meshnet.dev"
# On the namespace of the models: `install` made it, so tests may use what is there and take it away.
MARK = "meshnet.dev/tests"
ASK = (
    f'{{"model": "{MODEL}", "stream": true, "temperature": 0,'
    ' "messages": [{"role": "user", "content": "What is the capital of France?"}]}'
)


class ClusterError(Exception):
    """The cluster can't be made or does not get ready; the message says what is missing or holds what was printed."""


class Cluster(ABC):
    """`registry` has our images. `machines` are the nodes, where they are ours to kill."""

    registry = recipes.REGISTRY

    @property
    @abstractmethod
    def kubeconfig(self) -> Path: ...

    @property
    def machines(self) -> list[Machine]:
        return []

    @abstractmethod
    def url(self, service: str = MODEL) -> str:
        """The way to a chat Service from this machine."""

    # Commands

    def _run(self, *command: str, stdin: str | None = None, check: bool = True) -> str:
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment)
        if check and done.returncode != 0:
            raise ClusterError(f"{' '.join(command[1:])}: {(done.stderr or done.stdout).strip()[-3000:]}")
        return done.stdout

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Its output. Raises ClusterError unless `check` is off."""
        return self._run(str(ensure("kubectl")), *arguments, stdin=stdin, check=check)

    def helm(self, *arguments: str, check: bool = True) -> str:
        return self._run(str(ensure("helm")), *arguments, check=check)

    # Our product on it

    @property
    def installed(self) -> bool:
        """Whether `install` was here and `uninstall` was not since."""
        found = self.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found", "--output=json")
        return bool(found) and MARK in json.loads(found)["metadata"]["labels"]

    def install_chart(self, *settings: str) -> None:
        """The release, anew or with other values."""
        local = f"--set=global.registry={self.registry}"
        release = ("meshnet", str(CHART), f"--namespace={OPERATOR}", "--create-namespace")
        self.helm("upgrade", "--install", *release, local, *settings)

    def install(self, say: Callable[[str], None]) -> None:
        """The chart and, when its operator is ready, the sample; returns when that is Ready.

        Raises ClusterError, before anything is written, where something of that name is there which it did not make.
        """
        if taken := self._taken():
            raise ClusterError(f"this cluster has {', '.join(taken)} already, which are not of these tests: left alone")
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")} | {MARK: "yes"}
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
        self.kubectl("apply", "--filename=-", stdin=json.dumps(space))
        self.install_chart()
        self.kubectl("wait", "--for=condition=Established", f"crd/{DEFINITION}", "--timeout=30s")
        self.apply_sample()
        self.operator_ready()
        say("operator ready")
        self.kubectl(f"--namespace={NAMESPACE}", "wait", "--for=condition=Ready", f"mm/{MODEL}", "--timeout=300s")
        say(f"mm/{MODEL} Ready")

    def _taken(self) -> list[str]:
        if self.installed:
            return []
        names = (f"namespace/{NAMESPACE}", f"namespace/{OPERATOR}", f"customresourcedefinition/{DEFINITION}")
        return self.kubectl("get", *names, "--ignore-not-found", "--output=name").split()

    def operator_ready(self) -> None:
        """Returns when all of the operator's pods are of the newest kind and ready."""
        self.kubectl(f"--namespace={OPERATOR}", "rollout", "status", "deployment/meshnet", "--timeout=120s")

    def uninstall(self) -> None:
        """What `install` made, in the order of docs/uninstall.md; does nothing where it is not there."""
        if self.installed:
            if self.kubectl("get", "crd", DEFINITION, "--ignore-not-found"):
                self.kubectl(f"--namespace={NAMESPACE}", "delete", "mm", "--all", "--timeout=60s")
            self.helm("uninstall", "meshnet", f"--namespace={OPERATOR}", "--wait", "--ignore-not-found")
            self.kubectl("delete", "crd", DEFINITION, "--ignore-not-found", "--timeout=60s")
            self.kubectl("delete", "namespace", OPERATOR, NAMESPACE, "--ignore-not-found", "--timeout=60s")

    def apply_sample(self) -> None:
        """samples/smollm2.yaml, its weights from where our images are."""
        text = SAMPLE.read_text().replace(f"image://{recipes.REGISTRY}/", f"image://{self.registry}/")
        self.kubectl("apply", f"--namespace={NAMESPACE}", "--filename=-", stdin=text)


def curl(url: str) -> str:
    """A line to paste into a shell, which asks the sample at an address."""
    return f"curl -N {url}/v1/chat/completions -d '{ASK}'"
