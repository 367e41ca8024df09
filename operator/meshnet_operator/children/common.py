"""What all children share: metadata with the owner, and the parts of a pod that head and shard have in common."""

from __future__ import annotations

from typing import Any

from meshnet_operator import names
from meshnet_operator.resource import GROUP, KIND, VERSION, MeshModel
from meshnet_operator.settings import PodDefaults
from meshnet_operator.source import STATE, Weights, weights

Object = dict[str, Any]

TOKEN_FOLDER = "/etc/meshnet/mesh"
KEYS_FOLDER = "/etc/meshnet/keys"
CA_FOLDER = "/etc/meshnet/ca"
NO_DEFAULTS = PodDefaults()
# A pod stops its server this long before the kubelet would kill it.
GRACE_RESERVE = 10
HUNG_GRACE = 5
# How long a pod stays on a node that is lost. The default of 300 s would outlast every held stream.
LOST_NODE_SECONDS = 10
LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def metadata(model: MeshModel, name: str, role: str, **more: Any) -> Object:
    owner = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": model.name,
        "uid": model.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": model.namespace,
        "labels": names.labels(model, role) | more.pop("labels", {}),
        "ownerReferences": [owner],
        **more,
    }


def selector(model: MeshModel, workload: str) -> dict[str, str]:
    """Pods of one workload of this very MeshModel, not of an earlier one with its name."""
    return {names.WORKLOAD: workload, names.UID: model.uid}


def value(name: str, content: object) -> Object:
    text = str(content).lower() if isinstance(content, bool) else str(content)
    return {"name": name, "value": text}


def base_env(model: MeshModel, revision: str | None) -> list[Object]:
    """The variables that head and shard share."""
    files = weights(model)
    env = [
        value("MESHNET_MODEL", files.model),
        value("MESHNET_TOKEN_FILE", f"{TOKEN_FOLDER}/token"),
        {"name": "MESHNET_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        value("MESHNET_STATELESS", model.section("options")["stateless"]),
        value("MESHNET_TRUST_REMOTE_CODE", model.section("model")["trustRemoteCode"]),
        value("HOME", STATE),
        value("HF_HOME", f"{STATE}/hub"),
        value("HF_HUB_OFFLINE", 1 if files.offline else 0),
    ]
    if revision:
        env.append(value("MESHNET_REVISION", revision))
    if (limit := model.section("model").get("maxContext")) is not None:
        env.append(value("MESHNET_MAX_CONTEXT", limit))
    if secret := model.section("model").get("tokenSecret"):
        reference = {"name": secret["name"], "key": secret["key"]}
        env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return env


def volumes(model: MeshModel, files: Weights) -> list[Object]:
    return [
        {"name": "meshnet-tmp", "emptyDir": {}},
        {"name": "meshnet-state", "emptyDir": {}},
        {"name": "meshnet-mesh", "secret": {"secretName": names.secret(model.name), "defaultMode": 0o440}},
        *files.volumes,
    ]


def mounts(files: Weights) -> list[Object]:
    return [
        {"name": "meshnet-tmp", "mountPath": "/tmp"},
        {"name": "meshnet-state", "mountPath": STATE},
        {"name": "meshnet-mesh", "mountPath": TOKEN_FOLDER, "readOnly": True},
        *files.mounts,
    ]


def container_security(model: MeshModel) -> Object:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": bool(model.section("security")["readOnlyRootFilesystem"]),
    }


def pod_security(model: MeshModel) -> Object:
    """Pod Security "restricted". A user or group of null is left to the platform."""
    wanted = model.section("security")
    made: Object = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if wanted["runAsUser"] is not None:
        made["runAsUser"] = wanted["runAsUser"]
    if wanted["fsGroup"] is not None:
        made |= {"fsGroup": wanted["fsGroup"], "fsGroupChangePolicy": "OnRootMismatch"}
    if wanted.get("supplementalGroups"):
        made["supplementalGroups"] = wanted["supplementalGroups"]
    return made


def tolerations(stated: list[Object], device: str | None = None) -> list[Object]:
    """The stated ones, the device's own taint, and a short stay on lost nodes unless those taints are named."""
    made = list(stated)
    if device:
        made.append({"key": device, "operator": "Exists", "effect": "NoSchedule"})
    named = {one.get("key") for one in stated}
    made += [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
        for key in LOST_NODE
        if key not in named
    ]
    return made


def probes(port: int, load_seconds: int) -> Object:
    """Started when /readyz is; liveness asks /healthz only, which a thread of its own answers whatever the load is.

    A process that fails it hangs: it can drain nothing, and is not given the time for that.
    """

    def probe(path: str, period: int, failures: int) -> Object:
        return {
            "httpGet": {"path": path, "port": port},
            "periodSeconds": period,
            "timeoutSeconds": 5,
            "failureThreshold": failures,
        }

    return {
        "startupProbe": probe("/readyz", 2, max(1, -(-load_seconds // 2))),
        "readinessProbe": probe("/readyz", 2, 2),
        "livenessProbe": probe("/healthz", 10, 3) | {"terminationGracePeriodSeconds": HUNG_GRACE},
    }


def pod(model: MeshModel, container: Object, files: Weights, drain: int) -> Object:
    """The part of a pod's spec that head and shard share. Empty parts are left out."""
    made: Object = {
        # Service links would set MESHNET_PORT in the namespace of a Service named `meshnet`.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": drain + GRACE_RESERVE,
        "securityContext": pod_security(model),
        "containers": [container],
        "volumes": volumes(model, files),
    }
    if secrets := model.spec.get("imagePullSecrets"):
        made["imagePullSecrets"] = secrets
    return made


def container(model: MeshModel, role: str, image: str, port: int, env: list[Object]) -> Object:
    made: Object = {
        "name": role,
        "image": image,
        "command": ["meshnet", role],
        "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
        "env": env,
        "securityContext": container_security(model),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts(weights(model)),
        **probes(port, model.number("weights", "loadTimeoutSeconds")),
    }
    if policy := model.spec.get("imagePullPolicy"):
        made["imagePullPolicy"] = policy
    return made


def with_defaults(spec: Object, model: MeshModel, defaults: PodDefaults) -> Object:
    """The pod's spec with what the operator gives to every pod; what the MeshModel states itself goes before it.

    Mirror, proxies and authorities are the hub's: pods that never ask it get none of them.
    """
    if defaults.pull_secrets and "imagePullSecrets" not in spec:
        spec["imagePullSecrets"] = [{"name": name} for name in defaults.pull_secrets]
    if not weights(model).hub:
        return spec
    given = {
        "HF_ENDPOINT": defaults.hub_endpoint,
        "HTTP_PROXY": defaults.http_proxy,
        "HTTPS_PROXY": defaults.https_proxy,
        "NO_PROXY": defaults.no_proxy,
        "SSL_CERT_FILE": f"{CA_FOLDER}/{defaults.ca_key}" if defaults.ca_configmap else "",
    }
    (box,) = spec["containers"]
    stated = {entry["name"] for entry in box["env"]}
    box["env"] += [value(name, text) for name, text in given.items() if text and name not in stated]
    if defaults.ca_configmap:
        spec["volumes"].append({"name": "meshnet-ca", "configMap": {"name": defaults.ca_configmap}})
        box["volumeMounts"].append({"name": "meshnet-ca", "mountPath": CA_FOLDER, "readOnly": True})
    return spec


def spread(model: MeshModel, workload: str) -> list[Object]:
    """Pods of one workload on several nodes where that is possible.

    Those of one revision are counted: during a rollout the old ones, which leave, would push the new ones together.
    """
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector(model, workload)},
            "matchLabelKeys": ["pod-template-hash"],
        }
    ]
