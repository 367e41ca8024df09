"""What the operator gives to every pod: mirror, proxies, authorities and pull secrets, in new pod templates only."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from meshnet_operator.children import head, network, shard
from meshnet_operator.errors import ConfigError
from meshnet_operator.resource import MeshModel, parse
from meshnet_operator.settings import PodDefaults, load

Object = dict[str, Any]
Make = Callable[..., Any]

ALL = PodDefaults(
    hub_endpoint="https://hub.example:8443",
    http_proxy="http://proxy.example:3128",
    https_proxy="http://proxy.example:3129",
    no_proxy=".svc,10.0.0.1",
    ca_configmap="authorities",
    ca_key="bundle.pem",
    pull_secrets=("pull", "other"),
)
HUB = {"model": {"source": "hf://org/name"}}


def view(body: Object) -> MeshModel:
    body["metadata"] |= {"namespace": "ns", "uid": "u"}
    return parse(body)


def specs(model: MeshModel, defaults: PodDefaults) -> list[Object]:
    """The pod specs of a shard and of the head."""
    made = (
        shard.template(model, model.shards[0], "image", None, "s", defaults),
        head.template(model, "image", None, "s", defaults),
    )
    return [one["spec"] for one in made]


def env(spec: Object) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in spec["containers"][0]["env"]}


def test_a_model_from_the_hub_gets_mirror_proxies_and_authorities(meshmodel: Make) -> None:
    for spec in specs(view(meshmodel(**HUB)), ALL):
        found = env(spec)
        assert found["HF_ENDPOINT"] == "https://hub.example:8443"
        assert found["HTTP_PROXY"] == "http://proxy.example:3128"
        assert found["HTTPS_PROXY"] == "http://proxy.example:3129"
        assert found["NO_PROXY"] == ".svc,10.0.0.1"
        assert found["SSL_CERT_FILE"] == "/etc/meshnet/ca/bundle.pem"
        assert {"name": "meshnet-ca", "configMap": {"name": "authorities"}} in spec["volumes"]
        mount = {"name": "meshnet-ca", "mountPath": "/etc/meshnet/ca", "readOnly": True}
        assert mount in spec["containers"][0]["volumeMounts"]
        assert spec["imagePullSecrets"] == [{"name": "pull"}, {"name": "other"}]


def test_a_model_that_never_asks_the_hub_gets_pull_secrets_only(meshmodel: Make) -> None:
    model = view(meshmodel())
    for with_all, without in zip(specs(model, ALL), specs(model, PodDefaults()), strict=True):
        assert with_all == without | {"imagePullSecrets": [{"name": "pull"}, {"name": "other"}]}


def test_a_process_that_hangs_gets_no_time_to_drain(meshmodel: Make) -> None:
    """Else a stopped shard would keep its streams waiting for the whole grace of a pod that drains."""
    for spec in specs(view(meshmodel()), PodDefaults()):
        assert spec["containers"][0]["livenessProbe"]["terminationGracePeriodSeconds"] == 5
        assert spec["terminationGracePeriodSeconds"] > 5


def test_pods_of_one_revision_are_spread_whatever_the_old_ones_do(meshmodel: Make) -> None:
    """After a rollout two replicas were on one node, since the old pods on both had been counted."""
    for spec in specs(view(meshmodel()), PodDefaults()):
        (constraint,) = spec["topologySpreadConstraints"]
        assert constraint["topologyKey"] == "kubernetes.io/hostname"
        assert constraint["matchLabelKeys"] == ["pod-template-hash"]


def test_what_the_meshmodel_states_goes_first(meshmodel: Make) -> None:
    body = meshmodel(**HUB, imagePullSecrets=[{"name": "own"}])
    body["spec"]["shards"][0]["env"] = [{"name": "HTTPS_PROXY", "value": "http://own.example:1"}]
    front, top = specs(view(body), ALL)
    assert front["imagePullSecrets"] == top["imagePullSecrets"] == [{"name": "own"}]
    names = [entry["name"] for entry in front["containers"][0]["env"]]
    assert names.count("HTTPS_PROXY") == 1
    assert env(front)["HTTPS_PROXY"] == "http://own.example:1"


def test_network_policies_open_the_ports_of_mirror_and_proxies(meshmodel: Make) -> None:
    for policy in network.policies(view(meshmodel(**HUB)), ALL):
        ports = [[port["port"] for port in rule["ports"]] for rule in policy["spec"]["egress"]]
        assert [443, 80, 3128, 3129, 8443] in ports
    for policy in network.policies(view(meshmodel()), ALL):
        assert not [rule for rule in policy["spec"]["egress"] if any(p["port"] == 3128 for p in rule["ports"])]


async def test_other_defaults_reach_new_templates_only(space: Any, start: Any, meshmodel: Make) -> None:
    first = await start()
    await space.create(meshmodel())
    await space.until_ready()
    before = {pod["metadata"]["uid"] for pod in await space.pods()}
    await first.stop()

    await start(pod_pull_secrets=("pull",), resync_seconds=0.5)
    await space.patch("demo", {"head": {"replicas": 2}})

    async def scaled() -> bool:
        return len(await space.pods()) == 4

    await space.until(scaled)
    await space.until_ready()
    after = await space.pods()
    assert before < {pod["metadata"]["uid"] for pod in after}
    assert not [pod for pod in after if "imagePullSecrets" in pod["spec"]]

    await space.patch("demo", {"restartedAt": "2026-01-01T00:00:00Z"})

    async def fresh() -> bool:
        pods = await space.pods()
        return len(pods) == 4 and all(pod["spec"].get("imagePullSecrets") == [{"name": "pull"}] for pod in pods)

    await space.until(fresh)


@pytest.mark.parametrize("field", [one.name for one in fields(PodDefaults)])
def test_every_default_changes_a_pod(meshmodel: Make, field: str) -> None:
    others = {"pull_secrets": ("another",)}
    model = view(meshmodel(**HUB))
    assert specs(model, replace(ALL, **{field: others.get(field, "http://another:1")})) != specs(model, ALL)


def test_the_defaults_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "NODE_IMAGE": "i",
        "HUB_ENDPOINT": ALL.hub_endpoint,
        "POD_HTTP_PROXY": ALL.http_proxy,
        "POD_HTTPS_PROXY": ALL.https_proxy,
        "POD_NO_PROXY": ALL.no_proxy,
        "POD_CA_CONFIGMAP": ALL.ca_configmap,
        "POD_CA_KEY": ALL.ca_key,
        "POD_PULL_SECRETS": json.dumps(ALL.pull_secrets),
    }.items():
        monkeypatch.setenv(f"MESHNET_OPERATOR_{name}", text)
    assert load().pod_defaults == ALL


@pytest.mark.parametrize("wrong", ["proxy.example:3128", "ftp://proxy.example", "http://proxy.example:99999"])
def test_an_address_that_is_none_is_refused_by_name(wrong: str) -> None:
    with pytest.raises(ConfigError, match="MESHNET_OPERATOR_POD_HTTP_PROXY"):
        load(node_image="i", pod_http_proxy=wrong)
