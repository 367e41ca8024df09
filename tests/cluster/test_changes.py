"""The spec changes under load: no failed request, no other text."""

from __future__ import annotations

import time

import pytest
from cluster.release import MODEL, NAMESPACE
from images import recipes
from meshnet_site import PROMPTS, Site
from meshnet_view import Object

FOREIGN_USER = 1000650000


def test_a_changed_environment_rolls_one_shard_alone(site: Site) -> None:
    before = site.uids("front", "back", "head")
    with site.load("environment of one shard changed"):
        site.patch([{"op": "add", "path": "/spec/shards/1/env/-", "value": {"name": "ROLLED", "value": _now()}}])
        site.until(lambda: site.uids("back")["back"] != before["back"], 120, "another pod of back")
    after = site.uids("front", "back", "head")
    assert after["front"] == before["front"]
    assert after["head"] == before["head"]
    assert not after["back"] & before["back"]


def test_a_new_image_rolls_all_pods(site: Site) -> None:
    machines, store = site.machines, recipes.layout()
    name = recipes.other_node(store, f"test{_now()}")
    for machine in machines:
        machine.bring(store, [name])
    before = site.uids("front", "back", "head")
    with site.as_before(), site.load("new image"):
        site.patch([{"op": "add", "path": "/spec/image", "value": name}])
        site.roll("the rollout")
        after = site.uids("front", "back", "head")
    for part, uids in after.items():
        assert uids
        assert not uids & before[part], part


def _three_shards(two: list[Object]) -> list[Object]:
    """The sample's layers in three ranges."""
    return [
        two[0] | {"name": "front", "startLayer": 0, "endLayer": 9},
        two[0] | {"name": "middle", "startLayer": 10, "endLayer": 19},
        two[1] | {"name": "back", "startLayer": 20, "endLayer": 29},
    ]


def test_another_cut_takes_over_and_back(site: Site) -> None:
    two = site.model()["spec"]["shards"]
    before = site.epoch()
    with site.as_before():
        with site.load("two shards become three"):
            site.patch([{"op": "replace", "path": "/spec/shards", "value": _three_shards(two)}])
            site.roll("the change")
        assert site.status()["readyShards"] == "3/3"
        assert site.epoch() > before
        with site.load("three shards become two"):
            site.patch([{"op": "replace", "path": "/spec/shards", "value": two}])
            site.roll("the change back")
        assert site.status()["readyShards"] == "2/2"


@pytest.mark.parametrize("what", ["image", "shards"])
def test_a_change_that_is_taken_back_half_way_leaves_the_serving_pods(site: Site, what: str) -> None:
    """Half-way: pods of the change are there, the table is still the old one."""
    site.until(lambda: not site.leaving(), 60, "pods of the last change are gone")
    spec = site.model()["spec"]
    changed = {"image": recipes.NODE.replace(recipes.VERSION, "none"), "shards": _three_shards(spec["shards"])}
    before, everywhere = site.uids("front", "back"), set(site.pod_uids())
    with site.as_before(), site.load(f"a change of the {what} taken back"):
        site.patch([{"op": "add", "path": f"/spec/{what}", "value": changed[what]}])
        site.until(lambda: set(site.pod_uids()) - everywhere, 30, "pods of the change are there")
        site.until(lambda: site.condition("Progressing")["status"] == "True", 30, "the change is told of")
        site.restore(spec)
    assert site.uids("front", "back") == before
    assert site.until(lambda: set(site.pod_uids()) == everywhere, 60, "pods of the change are gone")


def test_replicas_come_and_go(site: Site) -> None:
    with site.as_before(), site.load("1 -> 2 -> 1 replicas", tokens=320):
        for count in (2, 1):
            site.replicas(count)
            assert [len(site.pods(shard)) for shard in ("front", "back")] == [count, count]


def test_an_upgrade_of_the_chart_leaves_the_model_pods(site: Site) -> None:
    before = site.uids("front", "back", "head")

    def operators() -> set[str]:
        return {pod["metadata"]["uid"] for pod in site.read("get", "pods", namespace="meshnet")["items"]}

    old = operators()
    try:
        with site.load("chart upgraded"):
            site.cluster.install_chart("--set=logLevel=DEBUG", "--wait")
        site.until(lambda: not old & operators(), 60, "the operator's own pods are other ones")
        assert site.uids("front", "back", "head") == before
    finally:
        site.cluster.install_chart("--wait")


def test_two_models_live_in_one_namespace(site: Site) -> None:
    """The second one as a user that the images don't know, as OpenShift would choose one."""
    security = {"runAsUser": FOREIGN_USER, "fsGroup": FOREIGN_USER}
    try:
        with site.load("a second model comes and goes"):
            site.apply_model("second", site.model()["spec"] | {"security": security})
            site.settle("second")
            for part in ("front", "back", "head"):
                assert site.run_in(site.pods(part, "second")[0], "id", "-u").strip() == str(FOREIGN_USER)
            other = site.start(PROMPTS[0], 40, "second")
            other.join(120)
            assert other.error is None
            assert other.text == site.undisturbed(PROMPTS[0], 40)
            site.cluster.kubectl(f"--namespace={NAMESPACE}", "delete", "mm", "second", "--wait")
    finally:
        site.cluster.kubectl(f"--namespace={NAMESPACE}", "delete", "mm", "second", "--ignore-not-found")
    site.until(lambda: not site.owned("second"), 60, "nothing of the second model is left")


def test_a_model_that_is_deleted_and_made_anew_serves_again(site: Site) -> None:
    first = site.model()["metadata"]["uid"]
    try:
        site.cluster.kubectl(f"--namespace={NAMESPACE}", "delete", "mm", MODEL)
    finally:
        site.cluster.apply_sample()
    site.settle()
    assert site.model()["metadata"]["uid"] != first
    reader = site.start()
    site.check(reader)


def _now() -> str:
    return str(int(time.time()))
