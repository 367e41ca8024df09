"""A whole Kubernetes on this machine: control plane, nodes, network, DNS.

Everything lies in one folder and goes with `down`, which needs nothing but that folder and can be called after any end.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from images import recipes
from images.layout import Layout

from cluster import containers, network
from cluster.binaries import HACK, cache_folder
from cluster.host import CGROUPS, missing_packages, obstacles
from cluster.machines import Machine, command_lines, mounts, program, unmount
from cluster.pki import Authority
from cluster.plane import PROGRAMS, Plane, stop_folder
from cluster.release import MODEL, NAMESPACE, Cluster, ClusterError

NODES = 3
# Traces in places that no setting moves: sockets of shims, states of runc, links to logs, what the CNI remembers.
SOCKETS = Path("/run/containerd/s")
RUNC = Path("/run/containerd/runc/k8s.io")
LOG_LINKS = Path("/var/log/containers")
CNI_RESULTS = Path("/var/lib/cni/results")
DEVICES = Path("/var/lib/kubelet/device-plugins")
# Of each log, when a cluster does not come up.
LOG_LINES = 8


def default_folder() -> Path:
    return cache_folder().parent / "cluster"


def _built_images() -> Layout:
    store = recipes.layout()
    for name in recipes.ALL:
        recipes.build(store, name)
    return store


@dataclass
class RealCluster(Cluster):
    """`folder` holds everything of it."""

    folder: Path = field(default_factory=default_folder)
    count: int = NODES
    # Where this object started it.
    plane: Plane | None = None

    @property
    def machines(self) -> list[Machine]:
        """Those that are there, else those that `up` will make."""
        found = [machine for machine in self._all_machines() if machine.own.exists()]
        return found or [Machine(number, self.folder) for number in range(1, self.count + 1)]

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "pki" / "admin.kubeconfig"

    @property
    def running(self) -> bool:
        """Whether its API server answers."""
        ready = self.kubeconfig.exists() and self.kubectl("get", "--raw=/readyz", "--request-timeout=5s", check=False)
        return ready == "ok"

    # Up

    def up(self, say: Callable[[str], None]) -> None:
        """Nodes ready, DNS applied, all images there. Raises ClusterError or another error with the last lines of the
        logs, and leaves what there is to look at: `down` takes it away.
        """
        self.check()
        try:
            self._up(say)
        except Exception as error:
            raise ClusterError(f"{error}\n{self._log_ends()}") from error

    def _up(self, say: Callable[[str], None]) -> None:
        store = _built_images()
        self.folder.mkdir(parents=True)
        network.save_sysctls(self.folder / "sysctls.json")
        network.make()
        plane = Plane(self.folder, outlive=True, kubelets=True, address=network.HOST, services=network.SERVICES)
        self.plane = plane
        with ThreadPoolExecutor(self.count) as pool:
            images = pool.submit(containers.image_root, store, list(recipes.ALL))
            plane.start()
            say("control plane ready")
            root = images.result()
            say("images ready")
            self._start_machines(pool, plane, root)
        self._note_images(store)
        self.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=60s")
        say(f"{self.count} nodes ready")
        network.route_services(1)
        self.kubectl("apply", f"--filename={HACK / 'cluster' / 'coredns.yaml'}")

    def check(self) -> None:
        """Raises ClusterError, or NetworkError, where no cluster can be made; nothing is touched."""
        if missing := missing_packages():
            raise ClusterError(f"missing on this machine: {' '.join(missing)}; `make packages` installs them")
        if found := obstacles(self.folder.parent):
            raise ClusterError(f"this machine can't run nodes: {'; '.join(found)}")
        if self.folder.exists():
            raise ClusterError(f"{self.folder} is there already: `make cluster-down` first")
        network.check_unused()

    def renew(self) -> bool:
        """Brings a running cluster's images to the state of this checkout; whether there were newer ones."""
        store = _built_images()
        if self._images.exists() and self._images.read_text() == containers.digests(store, recipes.ALL):
            return False
        for machine in self.machines:
            machine.bring(store, list(recipes.ALL))
        self._note_images(store)
        return True

    @property
    def _images(self) -> Path:
        return self.folder / "images.json"

    def _note_images(self, store: Layout) -> None:
        self._images.write_text(containers.digests(store, recipes.ALL))

    def _log_ends(self) -> str:
        """The last lines of each log."""
        logs = sorted((*self.folder.glob("*.log"), *self.folder.glob("n*/*.log")))
        ends = {log: log.read_text(errors="replace").splitlines()[-LOG_LINES:] for log in logs}
        return "\n".join(f"--- {log}\n" + "\n".join(lines) for log, lines in ends.items() if lines)

    def _start_machines(self, pool: ThreadPoolExecutor, plane: Plane, images: Path) -> None:
        authority = Authority(plane.pki, new=False)
        authority.sign("proxy", "/CN=system:kube-proxy")
        authority.kubeconfig("proxy", plane.server)
        numbers = [machine.number for machine in self.machines]
        for machine in self.machines:
            machine.prepare(authority, plane.server)

        def start(machine: Machine) -> None:
            containers.clone(images, machine.own / "root")
            machine.start([number for number in numbers if number != machine.number])

        list(pool.map(start, self.machines))
        end = time.monotonic() + 30
        while len(self.kubectl("get", "nodes", "--output=name").split()) < self.count:
            if time.monotonic() > end:
                raise ClusterError(f"nodes did not register: see the logs in {self.folder}")
            time.sleep(0.2)

    def url(self, service: str = MODEL) -> str:
        """By the Service's own address, which this machine reaches through one node."""
        body = json.loads(self.kubectl("get", "service", service, f"--namespace={NAMESPACE}", "--output=json"))
        return f"http://{body['spec']['clusterIP']}:{body['spec']['ports'][0]['port']}"

    # Down

    def down(self) -> list[str]:
        """Takes everything away; returns what could not be."""
        if self.folder.exists():
            machines = self.machines
            with ThreadPoolExecutor(len(machines)) as pool:
                list(pool.map(Machine.remove, machines))
            if self.plane:
                self.plane.stop()
            stop_folder(self.folder)
            network.remove(len(machines))
            network.restore_sysctls(self.folder / "sysctls.json")
            unmount(self.folder)
            self._remove_traces()
            if not mounts(self.folder):
                shutil.rmtree(self.folder)
        return self.left()

    def _all_machines(self) -> list[Machine]:
        """Also those that other runs may have made."""
        return [Machine(number, self.folder) for number in range(1, 10)]

    def _remove_traces(self) -> None:
        listening = Path("/proc/net/unix").read_text()
        for socket in (*SOCKETS.glob("*"), DEVICES / "kubelet.sock"):
            if str(socket) not in listening:
                socket.unlink(missing_ok=True)
        for link in LOG_LINKS.glob("*.log"):
            if link.is_symlink() and str(link.readlink()).startswith(f"{self.folder}/"):
                link.unlink()
        for state in RUNC.glob("*/state.json"):
            if f"{self.folder}/" in state.read_text():
                shutil.rmtree(state.parent)
        self._forget_cni()
        _remove_empty()

    def _forget_cni(self) -> None:
        """A pod's interfaces, its loopback too: only the bridge's configuration names our folder."""
        results = {file: json.loads(file.read_text()) for file in CNI_RESULTS.glob("*")}
        mark = f"{self.folder}/".encode()
        own = {one["containerId"] for one in results.values() if mark in base64.b64decode(one["config"])}
        for file, one in results.items():
            if one["containerId"] in own:
                file.unlink()

    def left(self) -> list[str]:
        """What of a cluster is still on this machine."""
        found = [f"process {pid}" for machine in self._all_machines() for pid in machine.processes()]
        found += [f"container {pid}" for machine in self._all_machines() for pid in machine.contained()]
        found += [f"mount {mount}" for mount in mounts(self.folder)]
        found += [f"cgroup {path}" for path in CGROUPS.glob("**/meshnet-n*") if path.is_dir()]
        with contextlib.suppress(FileNotFoundError):
            found += [f"namespace {path.name}" for path in network.NAMESPACES.iterdir() if "meshnet-" in path.name]
        found += [f"process {pid}" for pid in self._plane_processes()]
        found += [f"route {route}" for route in network.routes()]
        found += [f"file {path}" for path in (self.folder, network.LINK_FOLDER) if path.exists()]
        return found

    def _plane_processes(self) -> list[int]:
        mark = f"{self.folder}/".encode()
        return [pid for pid, line in command_lines() if program(line) in PROGRAMS and mark in line]


def _remove_empty() -> None:
    """Folders of traces, where nothing of somebody else is in them."""
    for place in (SOCKETS, RUNC, LOG_LINKS, CNI_RESULTS, DEVICES):
        for folder in (place, *place.parents[:2]):
            with contextlib.suppress(OSError):
                folder.rmdir()
