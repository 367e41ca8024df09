"""What the API server refuses, with a message that says what to change; and near misses that it takes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from cluster.access import ROOT

from meshnet_operator import kinds
from meshnet_operator.errors import Invalid

FRONT = {"name": "front", "startLayer": 0, "endLayer": 14}
BACK = {"name": "back", "startLayer": 15, "endLayer": 29}


def shard(**more: Any) -> dict[str, Any]:
    """A spec whose first shard has these fields too."""
    return {"shards": [{**FRONT, **more}, BACK]}


def ranges(*pairs: tuple[int, int]) -> dict[str, Any]:
    return {"shards": [{"name": f"s{at}", "startLayer": a, "endLayer": b} for at, (a, b) in enumerate(pairs)]}


def source(text: str, **more: Any) -> dict[str, Any]:
    return {"model": {"source": text, **more}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no shards": ({"shards": []}, "should have at least 1 items"),
    "65 shards": (ranges(*((at, at) for at in range(65))), "must have at most 64 items"),
    "start above end": (ranges((5, 0), (0, 29)), "startLayer must not be above endLayer"),
    "cover does not begin at 0": (ranges((1, 14), (15, 29)), "no shard has startLayer 0"),
    "gap of one layer": (ranges((0, 14), (16, 29)), "shards leave a gap"),
    "gap hidden by an overlap": (ranges((0, 10), (12, 20), (5, 9)), "shards leave a gap"),
    "two shards of one name": ({"shards": [FRONT, {**BACK, "name": "front"}]}, "Duplicate value"),
    "negative layer": (ranges((-1, 14), (15, 29)), "greater than or equal to 0"),
    "layer is text": (shard(endLayer="14"), "must be of type integer"),
    "reserved name head": (shard(name="head"), "reserved"),
    "reserved name routes": (shard(name="routes"), "reserved"),
    "reserved name mesh": (shard(name="mesh"), "reserved"),
    "shard name in capitals": (shard(name="Front"), "must be a DNS label"),
    "shard name ends in a dash": (shard(name="front-"), "must be a DNS label"),
    "shard name begins with a digit": (shard(name="1front"), "must be a DNS label"),
    "shard name of 21 characters": (shard(name="a" * 21), "may not be more than 20"),
    "zero replicas": (shard(replicas=0), "greater than or equal to 1"),
    "device without a domain": (shard(gpu={"resource": "gpu"}), "extended resource with its domain"),
    "device without a name": (shard(gpu={}), "Required value"),
    "device also in limits": (
        shard(gpu={"resource": "nvidia.com/gpu"}, resources={"limits": {"nvidia.com/gpu": 1}}),
        "remove it from resources",
    ),
    "device also in requests": (
        shard(gpu={"resource": "nvidia.com/gpu"}, resources={"requests": {"nvidia.com/gpu": "1"}}),
        "remove it from resources",
    ),
    "env of ours": (shard(env=[{"name": "MESHNET_DTYPE", "value": "float16"}]), "must not set MESHNET_*"),
    "env HF_HOME": (shard(env=[{"name": "HF_HOME", "value": "/x"}]), "use weights.volume and model.tokenSecret"),
    "env HF_TOKEN": (shard(env=[{"name": "HF_TOKEN", "value": "x"}]), "use weights.volume and model.tokenSecret"),
    "a variable twice": (shard(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]), "Duplicate value"),
    "a volume twice": (
        shard(volumes=[{"name": "x", "emptyDir": {}}, {"name": "x", "emptyDir": {}}]),
        "Duplicate value",
    ),
    "a mount path twice": (
        shard(volumeMounts=[{"name": "x", "mountPath": "/x"}, {"name": "y", "mountPath": "/x"}]),
        "Duplicate value",
    ),
    "a spread constraint twice": (
        shard(
            topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "ScheduleAnyway"}] * 2
        ),
        "Duplicate value",
    ),
    "a pull secret twice": ({"imagePullSecrets": [{"name": "x"}, {"name": "x"}]}, "Duplicate value"),
    "env without a name": (shard(env=[{"value": "x"}]), "Required value"),
    "label of ours": (shard(podLabels={"meshnet.dev/shard": "x"}), "they select the pods"),
    "label app.kubernetes.io": (shard(podLabels={"app.kubernetes.io/name": "x"}), "they select the pods"),
    "annotation of ours": (shard(podAnnotations={"meshnet.dev/drain-seconds": "x"}), "must not use the prefix"),
    "volume of ours": (shard(volumes=[{"name": "meshnet-tmp", "emptyDir": {}}]), "choose another name"),
    "mount over /models": (shard(volumeMounts=[{"name": "x", "mountPath": "/models/a"}]), "these are the operator's"),
    "mount over /tmp": (shard(volumeMounts=[{"name": "x", "mountPath": "/tmp"}]), "these are the operator's"),
    "mount of our volume": (shard(volumeMounts=[{"name": "meshnet-mesh", "mountPath": "/x"}]), "are the operator's"),
    "source of no kind": (source("s3://bucket/model"), "must start with hf://, pvc://, image:// or file:///"),
    "source without a scheme": (source("org/name"), "must start with hf://, pvc://, image:// or file:///"),
    "hub source with a revision in it": (source("hf://org/name@main"), "in model.revision"),
    "hub source without an organisation": (source("hf://name"), "hf://org/name"),
    "hub source with a path": (source("hf://org/name/file"), "hf://org/name"),
    "claim in capitals": (source("pvc://Claim/x"), "pvc://claim"),
    "claim with an empty path element": (source("pvc://claim//x"), "no empty path elements"),
    "source with ..": (source("pvc://claim/../x"), "must not contain . or .."),
    "image without a tag": (source("image://registry.example/model"), "reference:tag"),
    "file with two slashes": (source("file://models/demo"), "three slashes"),
    "file with a trailing slash": (source("file:///models/demo/"), "no trailing one"),
    "revision of a file": (source("file:///m", revision="main"), "for hf:// models only"),
    "hub token for a claim": (
        source("pvc://claim/x", tokenSecret={"name": "a", "key": "b"}),
        "model.tokenSecret is for hf://",
    ),
    "unknown dtype": (source("hf://org/name", dtype="int8"), "Unsupported value"),
    "no source": ({"model": {"dtype": "auto"}}, "Required value"),
    "context of zero": (source("hf://org/name", maxContext=0), "greater than or equal to 1"),
    "token secret without a key": (source("hf://org/name", tokenSecret={"name": "a"}), "Required value"),
    "volume for a model that is no hub's": ({"weights": {"volume": {"emptyDir": {}}}}, "remove it"),
    "two volumes": (
        source("hf://org/name")
        | {"weights": {"volume": {"emptyDir": {}, "persistentVolumeClaim": {"claimName": "c"}}}},
        "exactly one of",
    ),
    "volume of no kind": (source("hf://org/name") | {"weights": {"volume": {}}}, "exactly one of"),
    "load timeout too short": ({"weights": {"loadTimeoutSeconds": 1}}, "greater than or equal to 10"),
    "bytes of zero": ({"sessions": {"maxBytes": 0}}, "must be a number of bytes above 0"),
    "bytes as words": ({"sessions": {"maxBytes": "two gigabytes"}}, "must be a number of bytes above 0"),
    "negative bytes": ({"recovery": {"replayBytes": "-1Gi"}}, "must be a number of bytes above 0"),
    "sessions of zero": ({"sessions": {"maxSessions": 0}}, "greater than or equal to 1"),
    "service of no kind": ({"head": {"service": {"type": "ExternalName"}}}, "Unsupported value"),
    "open load balancer": ({"head": {"service": {"type": "LoadBalancer"}}}, "set head.apiKeySecret"),
    "open node port": ({"head": {"service": {"type": "NodePort"}}}, "or head.allowUnauthenticated: true"),
    "port too large": ({"head": {"service": {"port": 70000}}}, "less than or equal to 65535"),
    "no heads": ({"head": {"replicas": 0}}, "greater than or equal to 1"),
    "unknown strategy": ({"rollout": {"strategy": "RollingUpdate"}}, "Unsupported value"),
    "user root": ({"security": {"runAsUser": 0}}, "greater than or equal to 1"),
    "unknown determinism": ({"options": {"determinism": "maybe"}}, "Unsupported value"),
    "restart at no time": ({"restartedAt": "now"}, "date-time"),
    "unknown pull policy": ({"imagePullPolicy": "Sometimes"}, "Unsupported value"),
}

TAKEN: dict[str, dict[str, Any]] = {
    "one shard": ranges((0, 0)),
    "64 shards": ranges(*((at, at) for at in range(64))),
    "overlapping ranges": ranges((0, 20), (10, 29)),
    "ranges in any order": ranges((15, 29), (0, 14)),
    "a range inside another": ranges((0, 29), (3, 5)),
    "shard name of 20 characters": shard(name="a" * 20),
    "another device in resources": shard(
        gpu={"resource": "nvidia.com/gpu"}, resources={"limits": {"example.com/fpga": 1}}
    ),
    "a MIG device": shard(gpu={"resource": "nvidia.com/mig-1g.10gb"}),
    "HF_ENDPOINT for a mirror": shard(env=[{"name": "HF_ENDPOINT", "value": "http://mirror"}]),
    "mount beside /models": shard(
        volumes=[{"name": "x", "emptyDir": {}}], volumeMounts=[{"name": "x", "mountPath": "/models2"}]
    ),
    "claim without a path": source("pvc://claim"),
    "image with a port and a path": source("image://localhost:5000/models/demo:v1/float32"),
    "image by digest": source("image://registry.example/m@sha256:" + "a" * 64),
    "bytes as a number": {"sessions": {"maxBytes": 1073741824}},
    "bytes with a fraction": {"sessions": {"maxBytes": "1.5Gi"}},
    "load balancer with keys": {"head": {"service": {"type": "LoadBalancer"}, "apiKeySecret": {"name": "k"}}},
    "load balancer left open on purpose": {"head": {"service": {"type": "LoadBalancer"}, "allowUnauthenticated": True}},
    "no user of ours": {"security": {"runAsUser": None, "fsGroup": None}},
}


@pytest.mark.parametrize(("spec", "message"), REFUSED.values(), ids=REFUSED)
async def test_refused(admin: Any, meshmodel: Callable[..., Any], spec: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid) as caught:
        await admin.create(meshmodel(**spec), kinds.MESHMODEL, "default")
    assert message in caught.value.message


@pytest.mark.parametrize("spec", TAKEN.values(), ids=TAKEN)
async def test_taken(admin: Any, meshmodel: Callable[..., Any], spec: dict[str, Any]) -> None:
    await admin.create(meshmodel("near-miss", **spec), kinds.MESHMODEL, "default")
    await admin.delete(kinds.MESHMODEL, "default", "near-miss")


NAMES = {
    "a dot": ("my.model", "no dots"),
    "a digit first": ("7b", "start with a letter"),
    "36 characters": ("a" * 36, "35 characters or shorter"),
}


@pytest.mark.parametrize(("name", "message"), NAMES.values(), ids=NAMES)
async def test_refused_names(admin: Any, meshmodel: Callable[..., Any], name: str, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        await admin.create(meshmodel(name), kinds.MESHMODEL, "default")
    assert message in caught.value.message


async def test_the_longest_name_is_taken(space: Any, meshmodel: Callable[..., Any]) -> None:
    await space.create(meshmodel("a" * 35))


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "source": ({"model": {"source": "hf://org/other"}}, "model.source is immutable"),
    "revision": ({"model": {"revision": "v2"}}, "model.revision is immutable"),
    "revision taken away": ({"model": {"revision": None}}, "model.revision is immutable"),
    "dtype": ({"model": {"dtype": "bfloat16"}}, "model.dtype is immutable"),
    "token": ({"model": {"tokenSecret": {"name": "a", "key": "b"}}}, "model.tokenSecret is immutable"),
    "remote code": ({"model": {"trustRemoteCode": True}}, "model.trustRemoteCode is immutable"),
    "cut under OneByOne": (
        {"rollout": {"strategy": "OneByOne"}, **ranges((0, 9), (10, 29))},
        "OneByOne can't change the layer ranges",
    ),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
async def test_refused_changes(space: Any, meshmodel: Callable[..., Any], change: dict[str, Any], message: str) -> None:
    await space.create(meshmodel(**source("hf://org/name", revision="main", dtype="float32")))
    with pytest.raises(Invalid) as caught:
        await space.patch("demo", copy.deepcopy(change))
    assert message in caught.value.message


async def test_served_name_and_context_may_change(space: Any, meshmodel: Callable[..., Any]) -> None:
    await space.create(meshmodel())
    await space.patch("demo", {"model": {"servedName": "other", "maxContext": 100}})
    await space.patch("demo", {"rollout": {"strategy": "Recreate"}, **ranges((0, 9), (10, 29))})


def samples() -> list[str]:
    return sorted(path.name for path in (ROOT / "samples").glob("*.yaml"))


@pytest.mark.parametrize("name", samples())
async def test_samples_pass_strict_decoding(space: Any, name: str) -> None:
    done = space.plane.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-n", space.name, "-f", str(ROOT / "samples" / name)
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr


async def test_nothing_is_defaulted_that_was_not_written(space: Any, meshmodel: Callable[..., Any]) -> None:
    """GitOps compares: only plain values are defaulted, no list and no whole section."""
    stated = meshmodel()
    made = await space.create(stated)
    added = set(made["spec"]) - set(stated["spec"])
    assert added == {"paused", "suspend"}
    assert made["spec"]["shards"] == stated["spec"]["shards"]


def test_the_definition_is_small_and_holds_no_empty_list_default() -> None:
    path = ROOT / "crds" / "meshnet.dev_meshmodels.yaml"
    assert path.stat().st_size < 200_000

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            assert node.get("default") != []
            for value in node.values():
                walk(value)
        if isinstance(node, list):
            for value in node:
                walk(value)

    walk(yaml.safe_load(path.read_text()))


async def test_every_field_is_explained(space: Any) -> None:
    """kubectl explain has a text for each of our own fields."""
    body = yaml.safe_load((ROOT / "hack" / "crd" / "meshmodel.yaml").read_text())
    schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    missing: list[str] = []

    def walk(node: dict[str, Any], path: str) -> None:
        if "description" not in node:
            missing.append(path)
        for name, below in node.get("properties", {}).items():
            walk(below, f"{path}.{name}")
        items = node.get("items")
        if items:
            for name, below in items.get("properties", {}).items():
                walk(below, f"{path}[].{name}")

    walk(schema["spec"], "spec")
    walk(schema["status"], "status")
    assert [path for path in missing if not path.startswith("status.conditions[].status")] == []
    assert space.plane.kubectl("explain", "mm.spec.shards.gpu.resource").returncode == 0
    assert kinds.MESHMODEL.plural == body["spec"]["names"]["plural"]
