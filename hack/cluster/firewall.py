"""Something that enforces NetworkPolicies: kube-router on every node, as a firewall and nothing else.

Built on first use (minutes with an empty Go cache), hence not part of what `make nodes` builds.
"""

from __future__ import annotations

import shutil

from cluster import network
from cluster.binaries import HACK, ensure
from cluster.pki import Authority
from cluster.real import RealCluster
from cluster.release import ClusterError

PROGRAM = "kube-router"
TOOLS = ("iptables", "ip6tables", "ipset")


def start(cluster: RealCluster) -> None:
    """On all nodes; ends with them. Raises ClusterError where a tool is missing."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise ClusterError(f"missing on this machine: {', '.join(missing)} (Debian's packages iptables and ipset)")
    binary = str(ensure(PROGRAM))
    cluster.kubectl("apply", f"--filename={HACK / 'cluster' / 'firewall.yaml'}")
    authority = Authority(cluster.folder / "pki", new=False)
    authority.sign(PROGRAM, f"/CN={PROGRAM}")
    server = cluster.kubectl("config", "view", "--output=jsonpath={.clusters[0].cluster.server}")
    made = authority.kubeconfig(PROGRAM, server)
    for machine in cluster.machines:
        own = machine.own / made.name
        shutil.copy(made, own)
        machine.run(
            PROGRAM,
            [binary, f"--kubeconfig={own}", f"--hostname-override={machine.name}", "--run-firewall=true",
             "--run-router=false", "--run-service-proxy=false", "--run-loadbalancer=false",
             f"--service-cluster-ip-range={network.SERVICES}", "--health-port=0", "--metrics-port=0",
             "--iptables-sync-period=5s"],
        )  # fmt: skip


def stop(cluster: RealCluster) -> None:
    """The program and its rules, which are all of iptables' filter: kube-proxy has a table of its own."""
    for machine in cluster.machines:
        machine.end(PROGRAM)
        for tool in ("iptables", "ip6tables"):
            for action in ("--flush", "--delete-chain"):
                network.run_inside(machine.number, tool, action)
