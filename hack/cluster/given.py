"""A cluster that somebody else made: its nodes are not touched, its Services reached by port-forwards.

MESHNET_TEST_KUBECONFIG names it, never KUBECONFIG: a cluster of value, at which a shell just happens to point, must not
be drained by a test. MESHNET_TEST_REGISTRY says where it pulls our images from.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from images import recipes

from cluster.binaries import ensure
from cluster.release import MODEL, NAMESPACE, Cluster, ClusterError


@dataclass
class GivenCluster(Cluster):
    given: Path
    registry: str = recipes.REGISTRY
    forwards: dict[str, tuple[subprocess.Popen[bytes], str]] = field(default_factory=dict)

    @classmethod
    def from_environment(cls) -> GivenCluster | None:
        path = os.environ.get("MESHNET_TEST_KUBECONFIG")
        registry = os.environ.get("MESHNET_TEST_REGISTRY", recipes.REGISTRY)
        return cls(Path(path), registry) if path else None

    @property
    def kubeconfig(self) -> Path:
        return self.given

    def url(self, service: str = MODEL) -> str:
        """By a port-forward to one of its heads, as the Service chooses: a ready one, else one on its way out."""
        listing = ("get", "endpointslices", f"--selector=kubernetes.io/service-name={service}", "--output=json")
        slices = json.loads(self.kubectl(f"--namespace={NAMESPACE}", *listing))["items"]
        heads = [end for one in slices for end in one["endpoints"] or () if end["conditions"]["serving"]]
        if not heads:
            raise ClusterError(f"{service} has no head that serves")
        pod = min(heads, key=lambda end: bool(end["conditions"].get("terminating")))["targetRef"]["name"]
        process, url = self.forwards.get(pod, (None, ""))
        if process is None or process.poll() is not None:
            process, url = self.forwards[pod] = self._forward(pod)
        return url

    def _forward(self, pod: str) -> tuple[subprocess.Popen[bytes], str]:
        command = [str(ensure("kubectl")), f"--namespace={NAMESPACE}", "port-forward", f"pod/{pod}", ":8000"]
        with tempfile.NamedTemporaryFile() as said:
            process = subprocess.Popen(
                command, stdout=said, stderr=said, env={**os.environ, "KUBECONFIG": str(self.given)}
            )
            end = time.monotonic() + 30
            while not (line := Path(said.name).read_text()).startswith("Forwarding from ") or "\n" not in line:
                if process.poll() is not None or time.monotonic() > end:
                    process.kill()
                    process.wait()
                    raise ClusterError(f"no port-forward to {pod}: {line}")
                time.sleep(0.05)
        return process, f"http://{line.split()[2]}"

    def close(self) -> None:
        for process, _ in self.forwards.values():
            process.kill()
            process.wait()
