"""The end, in the order that docs/uninstall.md tells: MeshModels, chart, definition. Nothing of ours is left."""

from __future__ import annotations

from cluster.release import MODEL, NAMESPACE
from meshnet_site import Site

KINDS = (
    "deployments,replicasets,pods,services,endpointslices,configmaps,secrets,serviceaccounts,roles,rolebindings,"
    "networkpolicies,poddisruptionbudgets,controllerrevisions,leases"
)


def test_uninstalling_leaves_nothing(site: Site) -> None:
    cluster = site.cluster
    assert site.owned(MODEL)
    try:
        _uninstall(site)
    finally:
        if site.stays:
            cluster.uninstall()
            cluster.install(print)


def _uninstall(site: Site) -> None:
    cluster = site.cluster
    cluster.kubectl(f"--namespace={NAMESPACE}", "delete", "mm", "--all")
    site.until(lambda: not site.owned(MODEL), 60, "the children go with their MeshModel")
    cluster.helm("uninstall", "meshnet", "--namespace=meshnet", "--wait")
    cluster.kubectl("delete", "crd", "meshmodels.meshnet.dev")
    site.until(lambda: not _named(site), 60, "nothing of the operator is left")
    cluster.kubectl("delete", "namespace", NAMESPACE, "meshnet", "--timeout=60s")


def _named(site: Site) -> list[str]:
    """Objects with our name in the operator's namespace, and of the whole cluster."""
    everywhere = "clusterroles,clusterrolebindings,customresourcedefinitions"
    lines = site.cluster.kubectl("--namespace=meshnet", "get", KINDS, "--output=name", "--ignore-not-found").split()
    lines += site.cluster.kubectl("get", everywhere, "--output=name").split()
    # A Lease outlives its holder by design of the API; it belongs to the namespace.
    return [line for line in lines if "meshnet" in line and not line.startswith("lease")]
