"""A cluster that somebody else made: its nodes are not touched, its Services reached by port-forwards.

MESHNET_TEST_KUBECONFIG names it, never KUBECONFIG: a cluster of value, at which a shell just happens to point, must not
be drained by a test. MESHNET_TEST_REGISTRY says where it pulls our images from.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from images import recipes

from cluster.binaries import ensure
from cluster.machines import Machine
from cluster.release import MODEL, NAMESPACE, Cluster, ClusterError


@dataclass
class GivenCluster(Cluster):
    given: Path
    registry: str = recipes.REGISTRY
    forwards: dict[str, tuple[subprocess.Popen[str], str]] = field(default_factory=dict)

    @classmethod
    def from_environment(cls) -> GivenCluster | None:
        path = os.environ.get("MESHNET_TEST_KUBECONFIG")
        registry = os.environ.get("MESHNET_TEST_REGISTRY", recipes.REGISTRY)
        return cls(Path(path), registry) if path else None

    @property
    def kubeconfig(self) -> Path:
        return self.given

    @property
    def machines(self) -> list[Machine]:
        return []

    def url(self, service: str = MODEL) -> str:
        """By a port-forward, which ends with the pod that it leads to; the next call makes another one."""
        process, url = self.forwards.get(service, (None, ""))
        if process is None or process.poll() is not None:
            process, url = self._forward(service)
            self.forwards[service] = process, url
        return url

    def _forward(self, service: str) -> tuple[subprocess.Popen[str], str]:
        command = [str(ensure("kubectl")), f"--namespace={NAMESPACE}", "port-forward", f"service/{service}", ":8000"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env={**os.environ, "KUBECONFIG": str(self.given)}, text=True
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("Forwarding from "):
            process.kill()
            raise ClusterError(f"no port-forward to the Service {service}: {line}")
        return process, f"http://{line.split()[2]}"

    def close(self) -> None:
        for process, _ in self.forwards.values():
            process.kill()
            process.wait()
