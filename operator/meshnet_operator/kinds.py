"""The kinds of objects that the operator reads and writes, and their URLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from meshnet_operator.resource import GROUP, PLURAL, VERSION


@dataclass(frozen=True)
class Kind:
    """One API resource. `group` is empty for the core API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def url(self, namespace: str | None = None, name: str | None = None, part: str | None = None) -> str:
        """Path of the collection, of one object, or of its subresource `part`."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        where = f"/namespaces/{quote(namespace)}" if namespace and self.namespaced else ""
        parts = [root + where, self.plural, *(quote(one) for one in (name, part) if one)]
        return "/".join(parts)


MESHMODEL = Kind(GROUP, VERSION, PLURAL, "MeshModel")
POD = Kind("", "v1", "pods", "Pod")
CONFIGMAP = Kind("", "v1", "configmaps", "ConfigMap")
SECRET = Kind("", "v1", "secrets", "Secret")
SERVICE = Kind("", "v1", "services", "Service")
ACCOUNT = Kind("", "v1", "serviceaccounts", "ServiceAccount")
EVENT = Kind("", "v1", "events", "Event")
CLAIM = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
NAMESPACE = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
NODE = Kind("", "v1", "nodes", "Node", namespaced=False)
DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment")
REVISION = Kind("apps", "v1", "controllerrevisions", "ControllerRevision")
BUDGET = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
POLICY = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
ROLE = Kind("rbac.authorization.k8s.io", "v1", "roles", "Role")
BINDING = Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease")
MONITOR = Kind("monitoring.coreos.com", "v1", "servicemonitors", "ServiceMonitor")
RULE = Kind("monitoring.coreos.com", "v1", "prometheusrules", "PrometheusRule")

# What the slow lane compares and makes, in the order in which it is made.
CHILDREN = (ACCOUNT, ROLE, BINDING, SERVICE, BUDGET, POLICY, REVISION, DEPLOYMENT)
MONITORING = (MONITOR, RULE)
ORDER = {kind: index for index, kind in enumerate((*CHILDREN[:-1], *MONITORING, DEPLOYMENT))}
BY_NAME = {kind.kind: kind for kind in (*CHILDREN, *MONITORING)}


def of(body: dict[str, Any]) -> Kind:
    """The kind of a child."""
    return BY_NAME[body["kind"]]
