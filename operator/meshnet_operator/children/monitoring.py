"""ServiceMonitor and PrometheusRule, made only where the Prometheus operator's API is served."""

from __future__ import annotations

from meshnet_operator import names
from meshnet_operator.children import common
from meshnet_operator.children.common import Object
from meshnet_operator.resource import MeshModel

GROUP = "monitoring.coreos.com"


def monitor(model: MeshModel) -> Object:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ServiceMonitor",
        "metadata": common.metadata(model, model.name, "mesh"),
        "spec": {
            "selector": {"matchLabels": {names.UID: model.uid}},
            "endpoints": [{"port": "http", "path": "/metrics", "interval": "15s"}],
            "podTargetLabels": [names.SHARD, names.ROLE],
        },
    }


def rule(model: MeshModel) -> Object:
    """Alerts on this MeshModel, from the operator's own metrics."""
    where = f'namespace="{model.namespace}",model="{model.name}"'
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "PrometheusRule",
        "metadata": common.metadata(model, model.name, "mesh"),
        "spec": {
            "groups": [
                {
                    "name": f"meshnet.{model.namespace}.{model.name}",
                    "rules": [
                        _alert(
                            "MeshModelNotReady",
                            f"meshnet_model_ready{{{where}}} == 0",
                            "2m",
                            "no complete path",
                            "critical",
                        ),
                        _alert(
                            "MeshModelDegraded", f"meshnet_model_degraded{{{where}}} == 1", "15m", "degraded", "warning"
                        ),
                    ],
                }
            ]
        },
    }


def _alert(name: str, expression: str, wait: str, what: str, severity: str) -> Object:
    return {
        "alert": name,
        "expr": expression,
        "for": wait,
        "labels": {"severity": severity},
        "annotations": {
            "summary": f"{{{{ $labels.namespace }}}}/{{{{ $labels.model }}}}: {what}",
            "runbook_url": f"docs/operations-operator.md#{name.lower()}",
        },
    }
