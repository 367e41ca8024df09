"""A value for each leaf of the chart's schema that is not its default, and what must be set beside it to matter."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

VALUES: dict[str, Any] = {
    "global.registry": "registry.example",
    "global.imagePullSecrets": [{"name": "pull"}],
    "global.imagePullSecrets[].name": "pull",
    "image.digest": f"sha256:{'a' * 64}",
    "nodeImage.digest": f"sha256:{'b' * 64}",
    "hub.endpoint": "https://mirror.example:8443",
    "proxy.http": "http://proxy.example:3128",
    "proxy.https": "http://proxy.example:3128",
    "clusterDomain": "cluster.example",
    "extraEnv": [{"name": "MESHNET_OPERATOR_WORKERS", "value": "4"}],
    "extraEnv[].name": "OTHER",
    "extraEnv[].valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}},
    "resources": {"requests": {"cpu": "200m"}, "limits": {"memory": "1Gi"}},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    "tolerations[].key": "spot",
    "tolerations[].tolerationSeconds": 30,
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "podSecurityContext": {"runAsUser": 20002},
    "securityContext": {"runAsUser": 20002},
    "labels": {"team": "x"},
    "annotations": {"note": "x"},
    "podLabels": {"team": "y"},
    "podAnnotations": {"note": "y"},
    "serviceAccount.annotations": {"note": "z"},
    "networkPolicy.apiServerPorts": [16443],
    "networkPolicy.metricsFrom": [{"podSelector": {}}],
    "networkPolicy.extraEgress": [{"ports": [{"port": 3128, "protocol": "TCP"}]}],
    "metrics.serviceMonitor.interval": "30s",
    "metrics.serviceMonitor.labels": {"release": "prometheus"},
    "metrics.rules.labels": {"release": "prometheus"},
    "metrics.dashboards.labels": {"folder": "models"},
    "ingresses": [{"model": "demo", "host": "demo.example"}],
    "ingresses[].annotations": {"time-out": "3600"},
    "routes": [{"model": "demo", "parentRefs": [{"name": "gateway"}]}],
    "routes[].hostnames": ["demo.example"],
    "routes[].parentRefs": [{"name": "other"}],
    "routes[].timeout": "1h",
    "routes[].annotations": {"note": "r"},
    "test.url": "http://demo.example/v1",
}
TEST = {"test": {"model": "demo"}}
# What must be set, so that the value below the key means anything.
WITH: dict[str, Object] = {
    "proxy.noProxy": {"proxy": {"http": "http://proxy.example:3128"}},
    "caBundle.key": {"caBundle": {"configMap": "authorities"}},
    "metrics.serviceMonitor": {"metrics": {"serviceMonitor": {"enabled": True}}},
    "metrics.rules": {"metrics": {"rules": {"enabled": True}}},
    "metrics.dashboards": {"metrics": {"dashboards": {"enabled": True}}},
    "test.namespace": TEST,
    "test.url": TEST,
    "test.timeoutSeconds": TEST,
    "test.keySecret": TEST,
    "test.keySecret.key": {"test": {"model": "demo", "keySecret": {"name": "keys"}}},
}
# An item of each list, which one of its fields then differs from.
ITEMS: dict[str, Object] = {
    "global.imagePullSecrets": {"name": "first"},
    "extraEnv": {"name": "FIRST"},
    "tolerations": {"key": "first", "operator": "Equal", "value": "v", "effect": "NoExecute"},
    "ingresses": {"model": "first", "host": "first.example"},
    "routes": {"model": "first", "parentRefs": [{"name": "gateway"}]},
}

MODEL = {"model": "demo", "namespace": "models", "name": "demo-chat", "port": 80}
# Sets of values under which the whole chart is checked: all that is off by default is on in one of them.
SETS: dict[str, Object] = {
    "defaults": {},
    "one-namespace": {"scope": "Namespace", "crds": {"install": False}},
    "little": {
        "rbac": {"create": False},
        "serviceAccount": {"create": False},
        "disruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "hub": {"endpoint": ""},
        "replicas": 1,
    },
    "openshift": {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}},
    "all": {
        "global": {"registry": "registry.example/mirror", "imagePullSecrets": [{"name": "pull"}]},
        "image": {"digest": f"sha256:{'a' * 64}", "pullPolicy": "Always"},
        "nodeImage": {"digest": f"sha256:{'b' * 64}"},
        "hub": {"endpoint": "https://mirror.example:8443"},
        "proxy": {
            "http": "http://proxy.example:3128",
            "https": "http://proxy.example:3128",
            "noProxy": "10.0.0.0/8,.corp.example",
        },
        "caBundle": {"configMap": "authorities", "key": "bundle.pem"},
        "extraEnv": [
            {"name": "MESHNET_OPERATOR_WORKERS", "value": "4"},
            {"name": "WHERE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"disk": "fast"},
        "tolerations": [
            {"key": "spot", "operator": "Exists", "effect": "NoSchedule"},
            {
                "key": "node.kubernetes.io/unreachable",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 60,
            },
        ],
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "meshnet-operator"}},
                    }
                ]
            }
        },
        "labels": {"team": "x"},
        "annotations": {"note": "x"},
        "podLabels": {"team": "y"},
        "podAnnotations": {"note": "y"},
        "serviceAccount": {"name": "other", "annotations": {"note": "z"}},
        "networkPolicy": {
            "apiServerPorts": [16443],
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            "extraEgress": [{"ports": [{"port": 3128, "protocol": "TCP"}]}],
        },
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "rules": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboards": {"enabled": True},
        },
        "ingresses": [
            {
                **MODEL,
                "host": "demo.example",
                "className": "nginx",
                "tlsSecret": "demo-tls",
                "annotations": {"nginx.ingress.kubernetes.io/proxy-read-timeout": "3600"},
            },
            {"model": "second", "host": "second.example"},
        ],
        "routes": [
            {**MODEL, "hostnames": ["demo.example"], "parentRefs": [{"name": "gateway"}], "timeout": "1h30m"},
            {"model": "second", "parentRefs": [{"name": "gateway", "namespace": "infra", "sectionName": "https"}]},
        ],
        "test": {"model": "demo", "namespace": "models", "keySecret": {"name": "keys"}},
    },
}
