"""The API's Service, which has the MeshModel's name, and a headless Service for each range.

A head that has no usable endpoint in its table looks into the range's Service, which also lists pods that are not
ready: that works while the operator is down.
"""

from __future__ import annotations

from meshnet_operator import names
from meshnet_operator.children import common
from meshnet_operator.children.common import Object
from meshnet_operator.children.workload import Workload
from meshnet_operator.resource import MeshModel


def api(model: MeshModel) -> Object:
    stated = model.service
    more = {"annotations": stated["annotations"]} if stated.get("annotations") else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": common.metadata(model, model.name, "head", **more),
        "spec": {
            "type": stated["type"],
            "selector": common.selector(model, names.head_workload(model.name)),
            "ports": [{"name": "http", "port": int(stated["port"]), "targetPort": "http", "protocol": "TCP"}],
        },
    }


def shards(model: MeshModel, workload: Workload) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": common.metadata(model, workload.name, "shard"),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": common.selector(model, workload.name),
            "ports": [{"name": "http", "port": names.SHARD_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }
