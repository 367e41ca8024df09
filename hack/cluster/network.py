"""The network of the nodes: a bridge in a namespace of its own, one namespace for each node, routes between them.

    this machine 10.89.0.1 ── bridge ── node N 10.89.0.(10+N) ── its pods 10.90.N.0/24          Services 10.96.0.0/16

Pods have no way out: nodes have no default route, and on this machine the networks of pods and Services end in
blackhole routes before anything else is made, so that no packet of a test leaves by the default route while the real
ones are not there yet.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

HOST = "10.89.0.1"
# This machine and the nodes.
MACHINES = "10.89.0.0/24"
PODS = "10.90.0.0/16"
SERVICES = "10.96.0.0/16"
DNS = "10.96.0.10"
FABRIC = "meshnet-fabric"
LINK = "meshnet0"
LINK_FOLDER = Path("/sys/class/net", LINK)
NAMESPACES = Path("/run/netns")
# A blackhole of a worse metric than the real route, which takes its place as long as it is there.
LAST = "4000"
OURS = ("10.89.", "10.90.", "10.96.", "blackhole 10.90.", "blackhole 10.96.")
# What the kubelet changes on the machine, and what `down` puts back.
SYSCTLS = (
    "vm.overcommit_memory",
    "vm.panic_on_oom",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.keys.root_maxkeys",
    "kernel.keys.root_maxbytes",
)


class NetworkError(Exception):
    """The network can't be made here; the message says why."""


def ip(*arguments: str, namespace: str = "") -> str:
    """`ip` in a namespace. Raises NetworkError."""
    return _checked("ip", [*(["-n", namespace] if namespace else []), *arguments])


def _checked(program: str, arguments: Sequence[str], before: Sequence[str] = (), stdin: str = "") -> str:
    """What it prints. Raises NetworkError."""
    done = subprocess.run([*before, program, *arguments], input=stdin, capture_output=True, text=True)
    if done.returncode != 0:
        raise NetworkError(f"{program} {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _quiet(*command: str) -> None:
    subprocess.run(command, capture_output=True)


def node_address(number: int) -> str:
    return f"10.89.0.{10 + number}"


def pod_network(number: int) -> str:
    return f"10.90.{number}.0/24"


def namespace(number: int) -> str:
    return f"meshnet-n{number}"


def inside(number: int) -> list[str]:
    """Before a command: run it in a node's network. `ip netns exec` would give it other mounts, too."""
    return ["nsenter", f"--net={NAMESPACES / namespace(number)}"]


def run_inside(number: int, program: str, *arguments: str, stdin: str = "") -> None:
    """A command in a node's network. Raises NetworkError."""
    _checked(program, arguments, inside(number), stdin)


def save_sysctls(file: Path) -> None:
    if not file.exists():
        file.write_text(json.dumps({name: _sysctl(name).read_text().strip() for name in SYSCTLS}))


def restore_sysctls(file: Path) -> None:
    if file.exists():
        for name, value in json.loads(file.read_text()).items():
            _sysctl(name).write_text(value)


def _sysctl(name: str) -> Path:
    return Path("/proc/sys", name.replace(".", "/"))


def routes() -> list[str]:
    """This machine's routes to our networks, whoever made them. Raises NetworkError."""
    return [line for line in ip("route", "show").splitlines() if line.startswith(OURS)]


def check_unused() -> None:
    """Raises NetworkError where this machine knows one of our networks already."""
    if taken := routes():
        raise NetworkError(f"these networks are in use on this machine: {'; '.join(taken)}")


def make() -> None:
    """The bridge and this machine's link to it. Raises NetworkError."""
    for network in (PODS, SERVICES):
        ip("route", "add", "blackhole", network, "metric", LAST)
    ip("netns", "add", FABRIC)
    ip("link", "set", "lo", "up", namespace=FABRIC)
    ip("link", "add", "bridge", "type", "bridge", namespace=FABRIC)
    ip("link", "set", "bridge", "up", namespace=FABRIC)
    for version in ("iptables", "ip6tables"):
        setting = _sysctl(f"net.bridge.bridge-nf-call-{version}")
        _quiet("nsenter", f"--net={NAMESPACES / FABRIC}", "sh", "-c", f"echo 0 > {setting}")
    ip("link", "add", LINK, "type", "veth", "peer", "name", "host", "netns", FABRIC)
    ip("link", "set", "host", "master", "bridge", "up", namespace=FABRIC)
    ip("addr", "add", f"{HOST}/24", "dev", LINK)
    ip("link", "set", LINK, "up")


def add_node(number: int, others: list[int]) -> None:
    """A node's namespace, its link and its routes to the pods of `others`. Does nothing when it is there."""
    name, peer = namespace(number), f"node{number}"
    if not (NAMESPACES / name).exists():
        ip("netns", "add", name)
        ip("link", "set", "lo", "up", namespace=name)
        ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", peer, "netns", FABRIC)
        ip("addr", "add", f"{node_address(number)}/24", "dev", "eth0", namespace=name)
        ip("link", "set", "eth0", "up", namespace=name)
        for setting, value in (("net.ipv4.ip_forward", "1"), ("net.ipv4.conf.all.rp_filter", "0")):
            run_inside(number, "tee", str(_sysctl(setting)), stdin=value)
        # Not there where bridges can't be filtered, and then not needed.
        _quiet(*inside(number), "sh", "-c", f"echo 1 > {_sysctl('net.bridge.bridge-nf-call-iptables')}")
        for other in others:
            ip("route", "add", pod_network(other), "via", node_address(other), namespace=name)
        ip("route", "add", pod_network(number), "via", node_address(number))
    ip("link", "set", peer, "master", "bridge", "up", namespace=FABRIC)


def route_services(number: int) -> None:
    """This machine reaches Services by the kube-proxy of one node."""
    ip("route", "add", SERVICES, "via", node_address(number))


def plug(number: int, connected: bool) -> None:
    """Puts a node's cable in or takes it out."""
    ip("link", "set", f"node{number}", "up" if connected else "down", namespace=FABRIC)


def block_host(number: int, blocked: bool) -> None:
    """Lets a node and its pods no longer talk to this machine, where the control plane is, or lets them again."""
    rules = "".join(
        f"add chain inet cut {hook} {{ type filter hook {hook} priority 0; }}\n"
        f"add rule inet cut {hook} ip daddr {HOST} drop\n"
        for hook in ("output", "forward")
    )
    script = f"add table inet cut\n{rules}" if blocked else "delete table inet cut\n"
    run_inside(number, "nft", "--file", "-", stdin=script)


def remove(count: int) -> None:
    """Takes everything away, in whatever state it is."""
    for network in (PODS, SERVICES):
        _quiet("ip", "route", "del", "blackhole", network, "metric", LAST)
    _quiet("ip", "link", "del", LINK)
    for number in range(1, count + 1):
        _quiet("ip", "netns", "del", namespace(number))
    _quiet("ip", "netns", "del", FABRIC)
