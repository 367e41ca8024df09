"""Finds the binaries of control plane and nodes, and builds those that are nowhere to be found.

Order of search: the folder in KUBEBUILDER_ASSETS, the cache folder, then `go build` into the cache folder. Each tool
that pins other versions of the same libraries has a go.mod of its own beside this package. A build with an empty Go
cache takes about ten minutes of two cores, one with a full cache seconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HACK = Path(__file__).resolve().parent.parent
KUBERNETES = "1.36.3"
VERSION = "k8s.io/component-base/version"
# kubectl and Helm refuse a server whose version is not semver, which an unstamped build reports.
STAMP = (
    f"-s -w -X {VERSION}.gitVersion=v{KUBERNETES} -X {VERSION}.gitMajor=1 -X {VERSION}.gitMinor=36"
    f" -X {VERSION}.gitCommit=modproxy -X {VERSION}.gitTreeState=clean"
)


@dataclass(frozen=True)
class Tool:
    """One binary: the folder of its go.mod, the Go package, the linker's flags."""

    name: str
    module: str
    package: str
    flags: str = "-s -w"
    tags: str = ""


PLANE = (
    Tool("etcd", "control-plane", "go.etcd.io/etcd/server/v3"),
    Tool("kube-apiserver", "control-plane", "k8s.io/kubernetes/cmd/kube-apiserver", STAMP),
    Tool("kube-controller-manager", "control-plane", "k8s.io/kubernetes/cmd/kube-controller-manager", STAMP),
    Tool("kube-scheduler", "control-plane", "k8s.io/kubernetes/cmd/kube-scheduler", STAMP),
    Tool("kubectl", "control-plane", "k8s.io/kubernetes/cmd/kubectl", STAMP),
)
CHART = (
    Tool("helm", "helm", "helm.sh/helm/v3/cmd/helm"),
    Tool("kubeconform", "kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform"),
    Tool("kube-score", "kube-score", "github.com/zegl/kube-score/cmd/kube-score"),
    Tool("promql", "promql", "."),
)
CONTAINERD = "2.3.7"
CONTAINERD_FLAGS = f"-s -w -X github.com/containerd/containerd/v2/version.Version={CONTAINERD}"
# Snapshotters that want headers of C libraries, and that no test uses.
CONTAINERD_TAGS = "no_btrfs no_devmapper no_zfs"
NODE = (
    Tool("kubelet", "control-plane", "k8s.io/kubernetes/cmd/kubelet", STAMP),
    Tool("kube-proxy", "control-plane", "k8s.io/kubernetes/cmd/kube-proxy", STAMP),
    *(
        Tool(name, "containerd", f"github.com/containerd/containerd/v2/cmd/{name}", CONTAINERD_FLAGS, CONTAINERD_TAGS)
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    ),
    Tool("coredns", "coredns", "."),
    Tool("pause", "pause", "."),
)
# For the tests of NetworkPolicies alone.
FIREWALL = Tool("kube-router", "kube-router", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router")
TOOLS = {tool.name: tool for tool in (*PLANE, *CHART, *NODE, FIREWALL)}


class BuildError(Exception):
    """A binary is missing and could not be built; the message holds the compiler's last lines."""


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """`.cache/control-plane` of the checkout where it exists, else the user's cache."""
    local = HACK.parent / ".cache" / "control-plane"
    if local.is_dir():
        return local
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshnet" / "control-plane"


def find(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The binary in KUBEBUILDER_ASSETS or the cache folder; None where neither has it."""
    folders = [cache_folder(environ)]
    if assets := environ.get("KUBEBUILDER_ASSETS"):
        folders.insert(0, Path(assets))
    return next((path for folder in folders if os.access(path := folder / name, os.X_OK)), None)


def build(tool: Tool, environ: Mapping[str, str] = os.environ) -> Path:
    """Compiles one tool into the cache folder. Raises BuildError."""
    if shutil.which("go") is None:
        raise BuildError(
            f"{tool.name} is not in KUBEBUILDER_ASSETS nor cached, and there is no Go compiler to build it"
        )
    target = cache_folder(environ) / tool.name
    target.parent.mkdir(parents=True, exist_ok=True)
    # Built under another name: a build that is cut short must not leave a binary that `find` would take.
    part = target.with_name(f"{tool.name}.{os.getpid()}.part")
    command = ["go", "build", "-o", str(part), "-ldflags", tool.flags, "-tags", tool.tags, tool.package]
    done = subprocess.run(
        command, cwd=HACK / tool.module, env={**environ, "CGO_ENABLED": "0"}, capture_output=True, text=True
    )
    if done.returncode != 0:
        part.unlink(missing_ok=True)
        raise BuildError(f"{tool.name}: {done.stderr[-2000:]}")
    part.rename(target)
    return target


def ensure(name: str) -> Path:
    """Finds the binary or builds it."""
    if path := find(name):
        return path
    print(f"building {name} (once; minutes with an empty Go cache)", file=sys.stderr, flush=True)
    return build(TOOLS[name])
