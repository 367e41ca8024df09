"""The head dies, or has no path to offer."""

from __future__ import annotations

import time

import openai
import pytest
from cluster.release import MODEL, NAMESPACE
from meshnet_site import Site


def test_a_killed_head_is_replaced_and_the_next_request_works(site: Site) -> None:
    expected = site.undisturbed("Count to ten.", 40)
    (head,) = site.pods("head")
    reader = site.start()
    site.under_way(reader)
    site.delete_at_once(head)
    reader.join(60)
    assert reader.error is not None, "a stream ends with its head"
    site.settle()
    again = site.start("Count to ten.", 40)
    again.join(120)
    assert again.error is None
    assert again.text == expected


def test_a_head_that_is_told_to_go_lets_its_streams_end(site: Site) -> None:
    """The only one, and who comes before another one is ready comes to it."""
    (head,) = site.pods("head")
    with site.load("head deleted"):
        site.delete(head)
        fresh = site.until(lambda: _others(site, head["metadata"]["uid"]), 120, "another head is ready")
        assert fresh


def test_a_head_is_rolled_out(site: Site) -> None:
    before = site.uids("head")
    with site.load("head rolled out"):
        now = site.model()["spec"]["head"]["resources"]["requests"]["cpu"]
        other = "110m" if now == "100m" else "100m"
        site.patch([{"op": "replace", "path": "/spec/head/resources/requests/cpu", "value": other}])
        site.roll("the rollout")
    assert not site.uids("head")["head"] & before["head"]


def test_without_a_path_new_requests_are_refused_with_a_time_to_come_again(site: Site) -> None:
    (back,) = site.pods("back")
    # Its Deployment can't make another one.
    quota = {"metadata": {"name": "no-more-pods"}, "spec": {"hard": {"pods": "0"}}}
    site.apply({"apiVersion": "v1", "kind": "ResourceQuota", **quota})
    site.until(lambda: site.read("get", "quota", "no-more-pods").get("status"), 30, "the quota counts")
    try:
        site.delete_at_once(back)
        site.until(lambda: site.condition("Ready")["reason"] == "NoCompletePath", 30, "no path is said")
        began = time.monotonic()
        with pytest.raises(openai.APIStatusError) as refused:
            site.client().chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello"}])
        assert refused.value.status_code == 503
        assert int(refused.value.response.headers["Retry-After"]) > 0
        assert time.monotonic() - began < 30
    finally:
        site.cluster.kubectl(f"--namespace={NAMESPACE}", "delete", "quota", "no-more-pods")
    site.settle()


def _others(site: Site, uid: str) -> bool:
    return any(
        pod["metadata"]["uid"] != uid
        and all(one["ready"] for one in pod["status"].get("containerStatuses", [{"ready": 0}]))
        for pod in site.pods("head")
    )
