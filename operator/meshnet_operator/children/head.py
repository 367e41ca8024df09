"""The pods of the head: the API. They mount a token that may read the route table and nothing else."""

from __future__ import annotations

from meshnet_operator import names
from meshnet_operator.children import common
from meshnet_operator.children.common import KEYS_FOLDER, NO_DEFAULTS, Object, value
from meshnet_operator.resource import MeshModel
from meshnet_operator.settings import PodDefaults
from meshnet_operator.source import weights

# Longer than a Service needs to learn that a head goes, and than another one needs to start when it was the only one: a
# Service sends to a pod that is being deleted while it has no other.
LINGER_SECONDS = 15
# What spec.head may change without another pod.
NOT_PODS = ("replicas", "service", "allowUnauthenticated")


def inputs(model: MeshModel, image: str, revision: str | None) -> Object:
    """Everything of the MeshModel that the head's pods depend on."""
    model_part = {key: part for key, part in model.stated("model").items() if key not in ("dtype", "revision")}
    made = {
        "image": image,
        "model": model_part | ({"revision": revision} if revision else {}),
        "head": {key: part for key, part in model.stated("head").items() if key not in NOT_PODS},
        **{part: model.stated(part) for part in ("recovery", "options", "weights", "security")},
        **{part: model.spec.get(part) for part in ("imagePullPolicy", "imagePullSecrets", "restartedAt")},
    }
    return {key: part for key, part in made.items() if part}


def template(
    model: MeshModel, image: str, revision: str | None, stamp: str, defaults: PodDefaults = NO_DEFAULTS
) -> Object:
    workload = names.head_workload(model.name)
    head = model.section("head")
    files = weights(model)
    box = common.container(model, "head", image, names.HEAD_PORT, _env(model, revision))
    box["resources"] = head.get("resources", {})
    spec = common.pod(model, box, files, int(head["drainSeconds"]))
    spec["serviceAccountName"] = workload
    spec["automountServiceAccountToken"] = True
    spec["tolerations"] = common.tolerations(head.get("tolerations", []))
    spec["topologySpreadConstraints"] = common.spread(model, workload)
    if "nodeSelector" in head:
        spec["nodeSelector"] = head["nodeSelector"]
    if model.api_keys:
        source = {"secretName": model.api_keys, "defaultMode": 0o440}
        spec["volumes"].append({"name": "meshnet-keys", "secret": source})
        box["volumeMounts"].append({"name": "meshnet-keys", "mountPath": KEYS_FOLDER, "readOnly": True})
    annotations = {names.DRAIN: str(head["drainSeconds"])}
    if restarted := model.spec.get("restartedAt"):
        annotations[f"{names.PREFIX}restarted-at"] = restarted
    labels = names.labels(model, "head") | {names.WORKLOAD: workload, names.REVISION: stamp}
    return {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": common.with_defaults(spec, model, defaults),
    }


def _env(model: MeshModel, revision: str | None) -> list[Object]:
    env = [
        *common.base_env(model, revision),
        value("MESHNET_SERVED_NAME", model.served_name),
        value("MESHNET_ROUTES", f"configmap://{model.namespace}/{names.routes(model.name)}"),
        value("MESHNET_HOLD_SECONDS", model.section("recovery")["holdSeconds"]),
        value("MESHNET_REPLAY_BYTES", model.size("recovery", "replayBytes")),
        value("MESHNET_DRAIN_SECONDS", model.section("head")["drainSeconds"]),
        value("MESHNET_LINGER_SECONDS", LINGER_SECONDS),
    ]
    if model.api_keys:
        env.append(value("MESHNET_API_KEYS_FILE", f"{KEYS_FOLDER}/keys"))
    return env
