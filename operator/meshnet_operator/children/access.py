"""The shard token's Secret, and the head's right to read its route table: one ConfigMap by name."""

from __future__ import annotations

from meshnet_operator import names
from meshnet_operator.children import common
from meshnet_operator.children.common import Object
from meshnet_operator.resource import MeshModel


def secret(model: MeshModel, token: str) -> Object:
    """Made when missing and never overwritten: a person may put more tokens in, one a line."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": common.metadata(model, names.secret(model.name), "mesh"),
        "stringData": {"token": token},
    }


def account(model: MeshModel) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": common.metadata(model, names.head_workload(model.name), "head"),
        "automountServiceAccountToken": False,
    }


def role(model: MeshModel) -> Object:
    rule = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [names.routes(model.name)],
        "verbs": ["get", "watch"],
    }
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": common.metadata(model, names.head_workload(model.name), "head"),
        "rules": [rule],
    }


def binding(model: MeshModel) -> Object:
    name = names.head_workload(model.name)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": common.metadata(model, name, "head"),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": model.namespace}],
    }
