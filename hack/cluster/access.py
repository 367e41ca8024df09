"""Rights of a run: the operator's service account with the least RBAC, as a kubeconfig."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from cluster.pki import write_kubeconfig
from meshnet_operator import kinds
from meshnet_operator.cluster import Cluster
from meshnet_operator.errors import Conflict
from meshnet_operator.kinds import Kind

ROOT = Path(__file__).resolve().parent.parent.parent
RBAC = ROOT / "operator" / "rbac.yaml"
CLUSTER_ROLE = Kind("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_BINDING = Kind("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
CRD = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)


def rules(part: str) -> list[dict[str, Any]]:
    """part: `watched` (where MeshModels are), `lease` (the operator's own namespace)."""
    found: list[dict[str, Any]] = yaml.safe_load(RBAC.read_text())[part]
    return found


async def account(cluster: Cluster, namespace: str, clusterwide: bool = False) -> str:
    """A service account `operator` in `namespace` with the operator's rights there (or everywhere); returns a token."""
    metadata = {"name": "operator", "namespace": namespace}
    subject = {"kind": "ServiceAccount", **metadata}
    await cluster.create({"metadata": metadata}, kinds.ACCOUNT, namespace)
    wanted = rules("lease") + ([] if clusterwide else rules("watched"))
    await cluster.create({"metadata": metadata, "rules": wanted}, kinds.ROLE, namespace)
    api = "rbac.authorization.k8s.io"
    reference = {"apiGroup": api, "kind": "Role", "name": "operator"}
    await cluster.create({"metadata": metadata, "roleRef": reference, "subjects": [subject]}, kinds.BINDING, namespace)
    if clusterwide:
        name = {"name": f"operator-{namespace}"}
        await cluster.create({"metadata": name, "rules": rules("watched")}, CLUSTER_ROLE, None)
        reference = {"apiGroup": api, "kind": "ClusterRole", "name": name["name"]}
        body = {"metadata": name, "roleRef": reference, "subjects": [subject]}
        await cluster.create(body, CLUSTER_BINDING, None)
    request = {"spec": {"expirationSeconds": 7200}}
    url_kind = Kind("", "v1", "serviceaccounts/operator/token", "TokenRequest")
    answer = await cluster.create(request, url_kind, namespace)
    return str(answer["status"]["token"])


def kubeconfig(path: Path, server: str, token: str, authority: Path | None) -> Path:
    place = {"server": server} | ({"certificate-authority": str(authority)} if authority else {})
    return write_kubeconfig(path, place, {"token": token})


async def install_crd(cluster: Cluster) -> None:
    """Puts the CRD in, or the newest form of it, and waits until it is served."""
    body = yaml.safe_load((ROOT / "crds" / "meshnet.dev_meshmodels.yaml").read_text())
    try:
        await cluster.create(body, CRD, None)
    except Conflict:
        await cluster.patch(CRD, None, body["metadata"]["name"], body)
