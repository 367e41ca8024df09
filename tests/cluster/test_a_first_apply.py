"""From `kubectl apply` to a chat: what somebody sees who tries Meshnet on a cluster for the first time."""

from __future__ import annotations

import base64

import pytest
from cluster.release import MODEL, NAMESPACE, OPERATOR
from meshnet_site import Site
from meshnet_view import OPERATORS
from openai import NotFoundError


def test_the_sample_answers_through_its_service(site: Site) -> None:
    answer = site.client().chat.completions.create(
        model=MODEL, temperature=0, messages=[{"role": "user", "content": "What is the capital of France?"}]
    )
    assert "Paris" in (answer.choices[0].message.content or "")


def test_two_runs_say_the_same(site: Site) -> None:
    with site.streams("undisturbed"):
        pass


def test_every_condition_of_a_served_model_is_as_it_should_be(site: Site) -> None:
    body = site.model()
    found = {one["type"]: (one["status"], one["reason"]) for one in body["status"]["conditions"]}
    assert found == {
        "Ready": ("True", "Serving"),
        "ShardsReady": ("True", "AllShardsReady"),
        "RoutesPublished": ("True", "Published"),
        "Progressing": ("False", "Complete"),
        "Degraded": ("False", "AsExpected"),
    }
    generations = {one["observedGeneration"] for one in body["status"]["conditions"]}
    assert generations == {body["metadata"]["generation"]}
    assert body["status"]["readyShards"] == "2/2"
    assert {one["name"]: one["ready"] for one in body["status"]["shards"]} == {"front": 1, "back": 1}


def test_the_columns_tell_model_shards_readiness_and_epoch(site: Site) -> None:
    head, row = site.cluster.kubectl(f"--namespace={NAMESPACE}", "get", "mm").splitlines()
    assert head.split() == ["NAME", "MODEL", "SHARDS", "READY", "EPOCH", "AGE"]
    assert row.split()[0] == MODEL
    assert row.split()[2:4] == ["2/2", "True"]


def test_explain_has_a_text_for_the_fields(site: Site) -> None:
    for path in ("mm.spec.shards.startLayer", "mm.spec.recovery.holdSeconds", "mm.status.routeEpoch"):
        said = site.cluster.kubectl("explain", path)
        assert "<empty>" not in said, path
        assert len(said.split("DESCRIPTION:")[1].split()) > 3


def test_a_name_that_is_not_served_is_not_found(site: Site) -> None:
    with pytest.raises(NotFoundError):
        site.client().chat.completions.create(model="nothing", messages=[{"role": "user", "content": "Hello"}])


def test_helm_test_sends_a_chat_request(site: Site) -> None:
    values = ("--set=test.model=smollm2", f"--set=test.namespace={NAMESPACE}")
    before = site.uids("front", "back", "head")
    site.cluster.install_chart("--reuse-values", *values)
    said = site.cluster.helm("test", "meshnet", "--namespace=meshnet", "--timeout=120s")
    assert "Succeeded" in said
    assert site.uids("front", "back", "head") == before, "an upgrade of the chart leaves model pods alone"


def test_shards_hold_no_token_of_the_api_server(site: Site) -> None:
    for shard in ("front", "back"):
        (pod,) = site.pods(shard)
        assert pod["spec"]["automountServiceAccountToken"] is False
        said = site.run_in(pod, "ls", "-R", "/var/run/secrets")
        assert said
        assert "serviceaccount" not in said
        assert "kubernetes.io" not in said


def test_pods_run_as_nobody_with_a_read_only_root(site: Site) -> None:
    for shard in ("front", "head"):
        (pod,) = site.pods(shard)
        said = site.run_in(pod, "sh", "-c", "id -u; touch /x")
        assert said.splitlines()[0] != "0"
        assert "Read-only file system" in said


def test_logs_hold_neither_prompts_nor_secrets(site: Site) -> None:
    secret = "xyzzy-plugh-prompt"
    site.client().chat.completions.create(
        model=MODEL, max_tokens=4, messages=[{"role": "user", "content": f"Repeat: {secret}"}]
    )
    token = site.read("get", "secret", f"{MODEL}-mesh")["data"]["token"]
    secrets = [secret, token, *base64.b64decode(token).decode().split()]
    assert len(secrets) > 2
    operators = site.read("get", "pods", OPERATORS, namespace=OPERATOR)["items"]
    pods = [*site.pods("front"), *site.pods("back"), *site.pods("head"), *operators]
    assert len(pods) > 3
    for pod in pods:
        lines = site.logs(pod)
        assert lines, pod["metadata"]["name"]
        assert not [one for one in secrets if one in lines], pod["metadata"]["name"]
