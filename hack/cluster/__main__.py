"""The control plane, or a whole cluster with nodes, from a shell.

build                 find or build the binaries of the control plane and of the chart's checks
up FOLDER             start a control plane without nodes on loopback; prints the KUBECONFIG to use
down FOLDER           end it
packages              install the Debian packages that nodes and images need
possible              can nodes run on this machine? Ends with code 3 and says why where they can't
build-nodes           find or build what the nodes need
nodes-up              a cluster with nodes, the chart and samples/smollm2.yaml on it; prints how to talk to it
nodes-down            end it, and say what could not be removed

Where MESHNET_TEST_KUBECONFIG names a cluster, nodes-up puts chart and sample on that one, nodes-down takes them away.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from images.layout import ImageError

from cluster.binaries import CHART, NODE, PLANE, BuildError, Tool, ensure
from cluster.containers import ContainerError
from cluster.given import GivenCluster
from cluster.host import HostError, install_packages, obstacles
from cluster.network import NetworkError
from cluster.plane import Plane, PlaneError, stop_folder
from cluster.real import RealCluster, default_folder
from cluster.release import MODEL, NAMESPACE, ClusterError, curl

# Not 1 or 2: those of a program that failed.
IMPOSSIBLE = 3
ACTIONS = ("build", "up", "down", "packages", "possible", "build-nodes", "nodes-up", "nodes-down")


def _build(tools: tuple[Tool, ...]) -> int:
    for tool in tools:
        start = time.monotonic()
        print(f"{tool.name:26}{ensure(tool.name)}  {time.monotonic() - start:.1f} s", flush=True)
    return 0


def _up(folder: Path) -> int:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    plane = Plane(folder.resolve(), outlive=True)
    plane.start()
    print(f"export KUBECONFIG={plane.kubeconfig}")
    return 0


def _down(folder: Path) -> int:
    print("ended:", ", ".join(stop_folder(folder)) or "nothing")
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _packages() -> int:
    print("installed:", " ".join(install_packages()) or "nothing, all are there")
    return 0


def _possible() -> int:
    found = obstacles(default_folder().parent)
    print("\n".join(found) or "nodes can run here")
    return IMPOSSIBLE if found else 0


def _nodes_up(count: int, empty: bool) -> int:
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)

    if given := GivenCluster.from_environment():
        given.install(say)
        kubectl = f"kubectl --kubeconfig={given.kubeconfig} --namespace={NAMESPACE}"
        print(f"\n{kubectl} port-forward service/{MODEL} 8000:http &\n{curl('http://127.0.0.1:8000')}\n")
        return 0
    cluster = RealCluster(count=count)
    cluster.up(say)
    if not empty:
        cluster.install(say)
        print(f"\n{curl(cluster.url())}\n")
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    return 0


def _nodes_down() -> int:
    if given := GivenCluster.from_environment():
        given.uninstall()
        print("chart and sample are gone; the cluster is as it was")
        return 0
    left = RealCluster().down()
    print("\n".join(["left behind:", *left]) if left else "nothing left")
    return 1 if left else 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(".cache/cluster"))
    parser.add_argument("--nodes", type=int, default=3, choices=range(1, 6), help="how many (default: %(default)s)")
    parser.add_argument("--empty", action="store_true", help="without the chart and the sample")
    args = parser.parse_args(argv)
    actions = {
        "build": lambda: _build((*PLANE, *CHART)),
        "up": lambda: _up(args.folder),
        "down": lambda: _down(args.folder),
        "packages": _packages,
        "possible": _possible,
        "build-nodes": lambda: _build(NODE),
        "nodes-up": lambda: _nodes_up(args.nodes, args.empty),
        "nodes-down": _nodes_down,
    }
    try:
        return actions[args.action]()
    except (BuildError, PlaneError, ImageError, ContainerError, NetworkError, HostError, ClusterError) as error:
        print(error, file=sys.stderr)
        if args.action == "nodes-up":
            print("`make cluster-down` takes away what is there, logs included", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
