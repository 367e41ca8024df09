"""Starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback, and stops them.

With `kubelets` the API server listens where nodes reach it, and serves them as a real cluster's does.

RBAC is on, Pod Security and quotas are enforced, anonymous requests are refused. Every process belongs to the run's
folder and ends with `stop`; a run that was killed leaves its pids in the folder, and `stop_folder` ends those.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from cluster.binaries import ensure
from cluster.pki import NAMES, Authority, service_ip

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


class PlaneError(Exception):
    """A process of the control plane ended or did not become ready; the message holds the end of its log."""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _die_with_parent() -> None:
    """In the child: the kernel ends it when the thread that started it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@dataclass
class Plane:
    """A control plane in `folder`; unless it shall `outlive` this process, it ends with it. `kubeconfig` is the
    administrator's once `start` has returned.
    """

    folder: Path
    controller_qps: int = 200
    outlive: bool = False
    external: Path | None = None
    kubelets: bool = False
    address: str = "127.0.0.1"
    services: str = "10.0.0.0/16"
    server: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    @property
    def kubeconfig(self) -> Path:
        """Of our own control plane, or of the cluster that `external` names."""
        return self.external or self.pki / "admin.kubeconfig"

    @property
    def authority(self) -> Path:
        return self.pki / "ca.crt"

    def start(self, deadline: float = 60.0) -> None:
        """Returns when /readyz is ok and the default namespace has its service account. Raises PlaneError."""
        names = ("etcd", "peer", "apiserver", "manager", "scheduler")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        if self.kubelets:
            # NetworkPolicies of the product name this port: it is the one that a Service's 443 usually stands for.
            self.ports["apiserver"] = 6443
        self.server = f"https://{self.address}:{self.ports['apiserver']}"
        self._certificates()
        try:
            self._start_etcd()
            self.start_apiserver()
            self._wait_ready(deadline)
            self.start_controllers()
        except BaseException:
            self.stop()
            raise

    def _certificates(self) -> None:
        authority = Authority(self.pki)
        places = (*dict.fromkeys(("127.0.0.1", self.address)), service_ip(self.services))
        authority.sign("apiserver", "/CN=kube-apiserver", (*places, *NAMES))
        authority.sign("admin", "/O=system:masters/CN=admin")
        authority.sign("manager", "/CN=system:kube-controller-manager")
        authority.sign("scheduler", "/CN=system:kube-scheduler")
        if self.kubelets:
            # What the API server is to kubelets: logs and exec go this way.
            authority.sign("kubelets", "/O=system:masters/CN=kube-apiserver-kubelet-client")
        authority.service_account_keys()
        for name in ("admin", "manager", "scheduler"):
            authority.kubeconfig(name, self.server)

    def _run(self, name: str, *flags: str) -> None:
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            command = [str(ensure(name)), *flags]
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                start_new_session=True,
                # A test run that is killed can stop nothing any more.
                preexec_fn=None if self.outlive else _die_with_parent,
            )
        self.processes[name] = process
        (self.folder / f"{name}.pid").write_text(str(process.pid))

    def _start_etcd(self) -> None:
        client = f"http://127.0.0.1:{self.ports['etcd']}"
        peer = f"http://127.0.0.1:{self.ports['peer']}"
        self._run(
            "etcd", "--name=e0", f"--data-dir={self.folder / 'etcd'}", "--unsafe-no-fsync", "--log-level=error",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=e0={peer}",
        )  # fmt: skip

    def start_apiserver(self) -> None:
        pki = self.pki
        self._run(
            "kube-apiserver", f"--bind-address={self.address}", f"--advertise-address={self.address}",
            f"--secure-port={self.ports['apiserver']}", f"--etcd-servers=http://127.0.0.1:{self.ports['etcd']}",
            f"--client-ca-file={pki / 'ca.crt'}", f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}", "--anonymous-auth=false",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={pki / 'sa.pub'}", f"--service-account-signing-key-file={pki / 'sa.key'}",
            f"--service-cluster-ip-range={self.services}", "--profiling=false", "--max-requests-inflight=2000",
            "--max-mutating-requests-inflight=1000", "--delete-collection-workers=2", *self._apiserver_and_nodes(),
        )  # fmt: skip

    def _apiserver_and_nodes(self) -> tuple[str, ...]:
        if not self.kubelets:
            return "--authorization-mode=RBAC", "--endpoint-reconciler-type=none"
        pki = self.pki
        return (
            "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
            f"--kubelet-certificate-authority={pki / 'ca.crt'}", "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={pki / 'kubelets.crt'}", f"--kubelet-client-key={pki / 'kubelets.key'}",
        )  # fmt: skip

    def start_controllers(self) -> None:
        pki = self.pki
        qps = self.controller_qps
        self._run(
            "kube-controller-manager", "--bind-address=127.0.0.1", f"--secure-port={self.ports['manager']}",
            f"--cert-dir={self.folder / 'manager'}", f"--kubeconfig={pki / 'manager.kubeconfig'}",
            f"--service-account-private-key-file={pki / 'sa.key'}", f"--root-ca-file={pki / 'ca.crt'}",
            "--use-service-account-credentials", "--leader-elect=false", "--profiling=false",
            f"--kube-api-qps={qps}", f"--kube-api-burst={2 * qps}",
            # Without kubelets nobody renews a lease: a node is lost when a test says so.
            f"--node-monitor-grace-period={'16s' if self.kubelets else '2h'}", "--node-monitor-period=2s",
            "--pvclaimbinder-sync-period=5s",
        )  # fmt: skip
        self._run(
            "kube-scheduler", "--bind-address=127.0.0.1", f"--secure-port={self.ports['scheduler']}",
            f"--cert-dir={self.folder / 'scheduler'}", f"--kubeconfig={pki / 'scheduler.kubeconfig'}",
            "--leader-elect=false", "--profiling=false", f"--kube-api-qps={qps}", f"--kube-api-burst={2 * qps}",
        )  # fmt: skip

    def kubectl(self, *args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(ensure("kubectl")), f"--kubeconfig={self.kubeconfig}", *args]
        return subprocess.run(command, input=stdin, capture_output=True, text=True)

    def _wait_ready(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise PlaneError(f"{name} ended: {self._log_end(name)}")
            if self.kubectl("get", "--raw=/readyz").stdout == "ok":
                return
            time.sleep(0.1)
        raise PlaneError(f"not ready in {seconds:.0f} s: {self._log_end('kube-apiserver')}")

    def _log_end(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-1500:]

    def end(self, name: str) -> None:
        """Ends one process at once (kube-apiserver without its etcd ignores SIGTERM)."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()
        (self.folder / f"{name}.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        for name in reversed(list(self.processes)):
            self.end(name)


def _await_end(pid: int) -> None:
    """A process writes into its folder until it is gone."""
    end = time.monotonic() + 5
    while time.monotonic() < end and Path(f"/proc/{pid}/cmdline").read_bytes():
        time.sleep(0.01)


def stop_folder(folder: Path) -> list[str]:
    """Ends what an earlier `up` left running in `folder`; returns the names. A pid is checked to be the same
    program.
    """
    ended = []
    for file in sorted(folder.glob("*.pid")):
        pid = int(file.read_text())
        try:
            program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
            if program.endswith(file.stem.encode()):
                os.kill(pid, signal.SIGKILL)
                ended.append(file.stem)
                _await_end(pid)
        except (FileNotFoundError, ProcessLookupError):
            pass
        file.unlink()
    return ended
