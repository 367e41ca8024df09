"""The pods of a shard: one device, the weights of one range, no API token."""

from __future__ import annotations

from meshnet_operator import names
from meshnet_operator.children import common
from meshnet_operator.children.common import NO_DEFAULTS, Object, value
from meshnet_operator.resource import MeshModel, Shard
from meshnet_operator.settings import PodDefaults
from meshnet_operator.source import weights

# Fields of a shard that go to the pod's spec under the same name.
POD_FIELDS = (
    "nodeSelector",
    "affinity",
    "topologySpreadConstraints",
    "runtimeClassName",
    "priorityClassName",
    "serviceAccountName",
)


def inputs(model: MeshModel, shard: Shard, image: str, revision: str | None) -> Object:
    """Everything of the MeshModel that this shard's pods depend on: another value is another revision of them.

    Replicas, and values that equal their default, are not in it.
    """
    own = {key: part for key, part in shard.raw.items() if key != "replicas"}
    model_part = {key: part for key, part in model.stated("model").items() if key not in ("servedName", "revision")}
    made = {
        "image": image,
        "model": model_part | ({"revision": revision} if revision else {}),
        "shard": own,
        "drain": model.stated("rollout").get("drainSeconds"),
        **{part: model.stated(part) for part in ("sessions", "options", "weights", "security")},
        **{part: model.spec.get(part) for part in ("imagePullPolicy", "imagePullSecrets", "restartedAt")},
    }
    return {key: part for key, part in made.items() if part}


def template(
    model: MeshModel, shard: Shard, image: str, revision: str | None, stamp: str, defaults: PodDefaults = NO_DEFAULTS
) -> Object:
    """The pod template. `stamp` is the digest of `inputs` and becomes a label."""
    workload = names.shard_workload(model.name, shard.range)
    drain = model.number("rollout", "drainSeconds")
    files = weights(model)
    box = common.container(model, "shard", image, names.SHARD_PORT, _env(model, shard, revision))
    box["resources"] = _resources(shard)
    box["volumeMounts"] += shard.raw.get("volumeMounts", [])
    if source := shard.raw.get("envFrom"):
        box["envFrom"] = source
    spec = common.pod(model, box, files, drain)
    spec["automountServiceAccountToken"] = False
    spec["volumes"] += shard.raw.get("volumes", [])
    spec["tolerations"] = common.tolerations(shard.raw.get("tolerations", []), shard.gpu)
    spec["topologySpreadConstraints"] = common.spread(model, workload)
    spec |= {name: shard.raw[name] for name in POD_FIELDS if name in shard.raw}
    annotations = {names.DRAIN: str(drain), **shard.raw.get("podAnnotations", {})}
    if restarted := model.spec.get("restartedAt"):
        annotations[f"{names.PREFIX}restarted-at"] = restarted
    labels = {
        **shard.raw.get("podLabels", {}),
        **pod_labels(model, shard),
        names.REVISION: stamp,
        names.IMAGE: names.digest(image, 10),
    }
    return {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": common.with_defaults(spec, model, defaults),
    }


def pod_labels(model: MeshModel, shard: Shard) -> dict[str, str]:
    return names.labels(model, "shard") | {
        names.WORKLOAD: names.shard_workload(model.name, shard.range),
        names.SHARD: shard.range.name,
        names.START: str(shard.range.start),
        names.END: str(shard.range.end),
    }


def _resources(shard: Shard) -> Object:
    """The stated ones, and exactly one device."""
    stated = shard.raw.get("resources", {})
    made = {kind: dict(stated[kind]) for kind in ("limits", "requests") if kind in stated}
    if shard.gpu:
        made.setdefault("limits", {})[shard.gpu] = "1"
        made.setdefault("requests", {})[shard.gpu] = "1"
    return made


def _env(model: MeshModel, shard: Shard, revision: str | None) -> list[Object]:
    env = [
        *common.base_env(model, revision),
        value("MESHNET_DETERMINISM", model.section("options")["determinism"]),
        value("MESHNET_ALLOW_CAST", model.section("options")["allowCast"]),
        value("MESHNET_DTYPE", model.section("model")["dtype"]),
        value("MESHNET_START_LAYER", shard.range.start),
        value("MESHNET_END_LAYER", shard.range.end),
        value("MESHNET_KV_TTL_SECONDS", model.section("sessions")["ttlSeconds"]),
        value("MESHNET_KV_MAX_SESSIONS", model.section("sessions")["maxSessions"]),
        value("MESHNET_DRAIN_SECONDS", model.number("rollout", "drainSeconds")),
    ]
    if (limit := model.size("sessions", "maxBytes")) is not None:
        env.append(value("MESHNET_KV_MAX_BYTES", limit))
    return env + list(shard.raw.get("env", []))
