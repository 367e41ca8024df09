"""NetworkPolicies: nothing in or out of the pods but what the mesh needs.

clients -> head 8000     head -> shards 8100, API server 443 and 6443     operator, Prometheus -> head 8000, shards 8100
both -> DNS; both -> hub where the model comes from one: 443, 80, and the ports of the operator's hub mirror and proxies
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from meshnet_operator import names
from meshnet_operator.children import common
from meshnet_operator.children.common import NO_DEFAULTS, Object
from meshnet_operator.resource import MeshModel
from meshnet_operator.settings import PodDefaults
from meshnet_operator.source import weights

PROMETHEUS = [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}}]
OPERATOR = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "meshnet-operator"}}}
EVERYWHERE: list[Object] = [{"namespaceSelector": {}}]


def policies(model: MeshModel, defaults: PodDefaults = NO_DEFAULTS) -> list[Object]:
    if not model.section("networkPolicy")["enabled"]:
        return []
    return [
        _policy(model, "head", _head_in(model), _head_out(model, defaults)),
        _policy(model, "shard", _shard_in(model), _out(model, defaults)),
    ]


def _policy(model: MeshModel, role: str, ingress: list[Object], egress: list[Object]) -> Object:
    pods = {names.UID: model.uid, names.ROLE: role}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": common.metadata(model, f"{model.name}-{role}", role),
        "spec": {
            "podSelector": {"matchLabels": pods},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }


def _ports(*numbers: int, protocols: tuple[str, ...] = ("TCP",)) -> list[Object]:
    return [{"port": number, "protocol": protocol} for number in numbers for protocol in protocols]


def _metrics(model: MeshModel) -> Any:
    return model.section("networkPolicy").get("metricsFrom") or PROMETHEUS


def _head_in(model: MeshModel) -> list[Object]:
    outside = model.service["type"] != "ClusterIP"
    clients = model.section("networkPolicy").get("clientsFrom") or ([] if outside else EVERYWHERE)
    ports = _ports(names.HEAD_PORT)
    asked = {"ports": ports} | ({"from": clients} if clients else {})
    return [asked, {"ports": ports, "from": [*_metrics(model), OPERATOR]}]


def _head_out(model: MeshModel, defaults: PodDefaults) -> list[Object]:
    shards = {"podSelector": {"matchLabels": {names.UID: model.uid, names.ROLE: "shard"}}}
    # The API server's address is not known here, and a Service's port 443 is its own port after translation.
    return [{"ports": _ports(names.SHARD_PORT), "to": [shards]}, {"ports": _ports(443, 6443)}, *_out(model, defaults)]


def _shard_in(model: MeshModel) -> list[Object]:
    head = {"podSelector": {"matchLabels": {names.UID: model.uid, names.ROLE: "head"}}}
    ports = _ports(names.SHARD_PORT)
    return [{"ports": ports, "from": [head, OPERATOR]}, {"ports": ports, "from": _metrics(model)}]


def _out(model: MeshModel, defaults: PodDefaults) -> list[Object]:
    rules: list[Object] = [{"ports": _ports(53, 5353, protocols=("UDP", "TCP"))}]
    if weights(model).hub:
        rules.append({"ports": _ports(*_hub_ports(defaults))})
    return rules + list(model.section("networkPolicy").get("extraEgress") or [])


def _hub_ports(defaults: PodDefaults) -> list[int]:
    ways = (defaults.hub_endpoint, defaults.http_proxy, defaults.https_proxy)
    others = {port for way in ways if (port := urlsplit(way).port) is not None}
    return [443, 80, *sorted(others - {443, 80})]
