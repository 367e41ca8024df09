"""Real nodes: each a network namespace with its own containerd, kubelet and kube-proxy; pods are real containers.

All processes of a node name its folder in their command line, and all containers are in its cgroup: that is how they
are found again, by whatever process, after whatever end. A crash is a power cut: first the cable, then everything at
once. A partition takes the cable only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from images.layout import Layout

from cluster import containers, network
from cluster.binaries import ensure
from cluster.host import CGROUPS, cgroup_hierarchies
from cluster.pki import Authority

ZONE = "topology.kubernetes.io/zone"
PROGRAMS = ("containerd", "containerd-shim-runc-v2", "kubelet", "kube-proxy", "kube-router", "runc")


@dataclass(frozen=True)
class Machine:
    """Node `number`, from 1. `folder` is the cluster's; the node's own is in it."""

    number: int
    folder: Path

    @property
    def name(self) -> str:
        return f"n{self.number}"

    @property
    def own(self) -> Path:
        return self.folder / self.name

    @property
    def cgroup(self) -> str:
        return f"meshnet-{self.name}"

    # Made once

    def prepare(self, authority: Authority, server: str) -> None:
        """Certificates and configuration, before the first start."""
        for part in ("cni", "kubelet", "manifests", "plugins", "logs"):
            (self.own / part).mkdir(parents=True, exist_ok=True)
        subject = f"/O=system:nodes/CN=system:node:{self.name}"
        authority.sign(self.name, subject)
        authority.sign(f"{self.name}-serving", subject, (network.node_address(self.number), self.name))
        authority.kubeconfig(self.name, server)
        containers.write_config(self.own)
        self._write("cni/10-bridge.conflist", self._cni())
        self._write("kubelet.yaml", self._kubelet(authority.folder))
        self._write("kube-proxy.yaml", self._proxy(authority.folder))
        # Pods that ask for the node's DNS have none.
        (self.own / "resolv.conf").write_text("nameserver 127.0.0.1\n")

    def _write(self, name: str, document: object) -> None:
        # JSON, which is YAML too: the CNI reads nothing else.
        (self.own / name).write_text(json.dumps(document, indent=1))

    def _cni(self) -> object:
        pods = {
            "type": "host-local",
            "dataDir": str(self.own / "ipam"),
            "ranges": [[{"subnet": network.pod_network(self.number)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": pods}
        return {"cniVersion": "1.0.0", "name": "bridge", "plugins": [bridge]}

    def _kubelet(self, pki: Path) -> object:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "address": network.node_address(self.number),
            "healthzPort": 0,
            "containerRuntimeEndpoint": f"unix://{self.own / 'containerd.sock'}",
            "staticPodPath": str(self.own / "manifests"),
            "volumePluginDir": str(self.own / "plugins"),
            "podLogsDir": str(self.own / "logs"),
            "resolvConf": str(self.own / "resolv.conf"),
            "clusterDomain": "cluster.local",
            "clusterDNS": [network.DNS],
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / f"{self.name}-serving.crt"),
            "tlsPrivateKeyFile": str(pki / f"{self.name}-serving.key"),
            "maxPods": 60,
            # A test that kills a process three times should not wait for minutes.
            "crashLoopBackOff": {"maxContainerRestartPeriod": "2s"},
            "nodeStatusUpdateFrequency": "4s",
            "nodeLeaseDurationSeconds": 10,
            "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "serializeImagePulls": False,
        }

    def _proxy(self, pki: Path) -> object:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(pki / "proxy.kubeconfig")},
            "clusterCIDR": network.PODS,
            "detectLocalMode": "ClusterCIDR",
            "bindAddress": network.node_address(self.number),
            "hostnameOverride": self.name,
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            # The limits of connection tracking belong to the machine.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "nftables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
        }

    # Life and death

    def start(self, others: list[int]) -> None:
        """The first time, and after a crash or a stop."""
        network.add_node(self.number, others)
        self._make_cgroups()
        self.run("containerd", containers.command(self.own))
        containers.wait(self.own)
        self.run(
            "kubelet",
            [str(ensure("kubelet")), f"--config={self.own / 'kubelet.yaml'}",
             f"--kubeconfig={self.folder / 'pki' / self.name}.kubeconfig", f"--root-dir={self.own / 'kubelet'}",
             f"--cert-dir={self.own / 'kubelet' / 'pki'}", f"--hostname-override={self.name}",
             f"--node-ip={network.node_address(self.number)}", f"--node-labels={ZONE}=z{self.number}", "--v=2"],
        )  # fmt: skip
        self.run("kube-proxy", [str(ensure("kube-proxy")), f"--config={self.own / 'kube-proxy.yaml'}"])

    def run(self, name: str, command: list[str]) -> None:
        """A process that is nobody's child: it outlives the one that starts it."""
        with (self.own / f"{name}.log").open("ab") as log:
            subprocess.run(
                ["setsid", "--fork", *network.inside(self.number), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=containers.environment(),
                check=True,
            )

    def end(self, name: str) -> None:
        """Kills one of the node's programs; it is gone when this returns."""
        while found := [pid for pid, line in command_lines() if self._is_own(line) and program(line) == name]:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def _make_cgroups(self) -> None:
        for hierarchy in cgroup_hierarchies():
            made = hierarchy / self.cgroup
            made.mkdir(exist_ok=True)
            # A new group of cpuset has no CPU to run on.
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (hierarchy / name).exists() and (made / name).exists():
                    (made / name).write_text((hierarchy / name).read_text())

    def processes(self) -> list[int]:
        """The node's own, containers not counted."""
        return [pid for pid, line in command_lines() if self._is_own(line) and program(line) in PROGRAMS]

    def _is_own(self, line: bytes) -> bool:
        return f"{self.own}/".encode() in line

    def contained(self) -> list[int]:
        """Processes in the node's containers."""
        mark = f"/{self.cgroup}/"
        return [pid for pid in _pids() if mark in _read(Path(f"/proc/{pid}/cgroup"))]

    def in_container(self, container: str) -> list[int]:
        """Processes of one container by its id, the first one first."""
        return sorted(pid for pid in self.contained() if container in _read(Path(f"/proc/{pid}/cgroup")))

    def fill_memory(self, container: str) -> None:
        """Takes memory at a container's cost until its limit has the kernel kill its largest process."""
        (pid, *_) = self.in_container(container)
        controllers = dict(line.split(":")[1:] for line in _read(Path(f"/proc/{pid}/cgroup")).splitlines())
        group = controllers.get("memory", controllers.get("", ""))
        folder = CGROUPS / "memory" if "memory" in controllers else CGROUPS
        with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="meshnet-ballast-") as ballast:
            fill = f"echo $$ > {folder}{group}/cgroup.procs && exec dd if=/dev/zero of={ballast.name} bs=1M"
            with subprocess.Popen(["sh", "-c", fill], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as filler:
                end = time.monotonic() + 60
                while pid in self.in_container(container) and time.monotonic() < end:
                    time.sleep(0.02)
                filler.kill()

    def crash(self) -> None:
        """A power cut. `start` brings the node back."""
        with contextlib.suppress(network.NetworkError):
            network.plug(self.number, connected=False)
        for _ in range(50):
            alive = [*self.processes(), *self.contained()]
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not alive:
                return
            time.sleep(0.1)

    def partition(self) -> None:
        network.plug(self.number, connected=False)

    def heal(self) -> None:
        network.plug(self.number, connected=True)

    def cut_off(self) -> None:
        """No packet to the API server; the other nodes are there."""
        network.block_host(self.number, blocked=True)

    def reconnect(self) -> None:
        network.block_host(self.number, blocked=False)

    def bring(self, store: Layout, names: list[str]) -> None:
        """More images while the node runs."""
        containers.bring(self.own, store, names)

    def remove(self) -> None:
        """Ends everything and takes mounts and cgroups away."""
        self.crash()
        for _ in range(5):
            if not unmount(self.own):
                break
        for hierarchy in cgroup_hierarchies():
            made = hierarchy / self.cgroup
            for folder in sorted((path for path in made.rglob("*") if path.is_dir()), reverse=True):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            with contextlib.suppress(OSError):
                made.rmdir()


def mounts(folder: Path) -> list[str]:
    """What is mounted under a folder, the deepest first."""
    lines = Path("/proc/mounts").read_text().splitlines()
    return sorted((line.split()[1] for line in lines if line.split()[1].startswith(f"{folder}/")), reverse=True)


def unmount(folder: Path) -> int:
    """Takes all mounts under a folder off; how many there were."""
    found = mounts(folder)
    for mount in found:
        subprocess.run(["umount", "--lazy", mount], capture_output=True)
    return len(found)


def _pids() -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            yield int(entry)


def command_lines() -> Iterator[tuple[int, bytes]]:
    """Of living processes but this one; a zombie has none."""
    for pid in _pids():
        if pid != os.getpid():
            with contextlib.suppress(OSError):
                yield pid, Path(f"/proc/{pid}/cmdline").read_bytes()


def program(line: bytes) -> str:
    """Of a command line."""
    return Path(line.split(b"\0")[0].decode(errors="replace")).name


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
