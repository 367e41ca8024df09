"""Our chart and the sample on a cluster, whoever made that, and the way to talk to it."""

from __future__ import annotations

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
MODEL = "smollm2"
ASK = (
    '{{"model": "{model}", "stream": true, "temperature": 0,'
    ' "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'
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

    def install_chart(self, *settings: str) -> None:
        """The release, anew or with other values."""
        local = f"--set=global.registry={self.registry}"
        release = ("meshnet", str(CHART), "--namespace=meshnet", "--create-namespace")
        self.helm("upgrade", "--install", *release, local, *settings)

    def install(self, say: Callable[[str], None], *settings: str) -> None:
        """The chart and, when its operator is ready, the sample; returns when that is Ready."""
        self.install_chart(*settings)
        self.kubectl("create", "namespace", NAMESPACE)
        restricted = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
        self.kubectl("label", "namespace", NAMESPACE, *restricted)
        self.apply_sample()
        self.kubectl("--namespace=meshnet", "rollout", "status", "deployment/meshnet", "--timeout=120s")
        say("operator ready")
        self.kubectl(f"--namespace={NAMESPACE}", "wait", "--for=condition=Ready", f"mm/{MODEL}", "--timeout=300s")
        say(f"mm/{MODEL} Ready")

    def apply_sample(self) -> None:
        """samples/smollm2.yaml, its weights from where our images are."""
        text = SAMPLE.read_text().replace(f"image://{recipes.REGISTRY}/", f"image://{self.registry}/")
        self.kubectl("apply", f"--namespace={NAMESPACE}", "--filename=-", stdin=text)

    def curl(self, model: str = MODEL) -> str:
        """A line to paste into a shell."""
        return f"curl -N {self.url(model)}/v1/chat/completions -d '{ASK.format(model=model)}'"
