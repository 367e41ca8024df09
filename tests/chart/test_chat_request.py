"""`helm test`: the request of its pod, sent to a real head, and the hook on a real API server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from chart.made import CHART
from meshnet_chart import RELEASE, find, helm, render, stated
from meshnet_heads import MODEL, Head, Heads

from meshnet_node.text.text_model import TextModel
from meshnet_operator import kinds

Object = dict[str, Any]
KEYS = "first-key # of the first user\nsecond-key\n"


@pytest.fixture(scope="module")
def text(demo_folder: Path) -> TextModel:
    return TextModel.load(demo_folder)


@pytest.fixture
async def heads(demo_folder: Path, text: TextModel) -> AsyncIterator[Heads]:
    async with AsyncExitStack() as stack:
        yield Heads(demo_folder, text, stack)


def pod(head: Head | None = None, **values: Any) -> Object:
    url = {"url": f"http://127.0.0.1:{head.port}/v1"} if head else {}
    return find(render({"test": {"model": MODEL, "timeoutSeconds": 20, **url, **values}}), "Pod")


async def run(body: Object, keys: str = "") -> subprocess.CompletedProcess[str]:
    """What the pod's container would do, on this machine."""
    (box,) = body["spec"]["containers"]
    assert box["command"] == ["python", "-c"]
    env = {entry["name"]: entry.get("value", keys) for entry in box["env"]}
    command = [sys.executable, "-I", "-c", *box["args"]]
    return await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, text=True)


async def test_the_request_is_answered_by_a_head(heads: Heads) -> None:
    head = await heads.start("Hello there.")
    done = await run(pod(head))
    assert done.returncode == 0, done.stderr
    assert "answered: 'Hello there.'" in done.stdout


async def test_the_first_key_of_the_secret_is_sent(heads: Heads, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(KEYS)
    head = await heads.start("Hello.", api_keys_file=file)
    body = pod(head, keySecret={"name": "keys"})
    reference = body["spec"]["containers"][0]["env"][-1]
    assert reference == {"name": "TEST_KEYS", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "keys"}}}
    assert (await run(body, KEYS)).returncode == 0
    refused = await run(body, "wrong\n")
    assert refused.returncode == 1
    assert "401" in refused.stderr


async def test_a_model_that_does_not_answer_fails_the_test_with_the_reason(heads: Heads) -> None:
    head = await heads.start()
    unknown = await run(pod(head, model="other"))
    assert unknown.returncode == 1
    assert "404" in unknown.stderr
    nobody = await run(pod(url="http://127.0.0.1:1/v1"))
    assert nobody.returncode == 1
    assert "refused" in nobody.stderr


def test_the_address_is_that_of_the_models_service_unless_one_is_given() -> None:
    def url(body: Object) -> str:
        return str(body["spec"]["containers"][0]["env"][0]["value"])

    assert url(pod()) == f"http://{MODEL}.here.svc.cluster.local:8000/v1"
    body = pod(namespace="models")
    assert url(body) == f"http://{MODEL}.models.svc.cluster.local:8000/v1"
    assert body["metadata"]["namespace"] == "models"


def test_there_is_no_test_without_a_model() -> None:
    assert not [one for one in render() if one["kind"] == "Pod"]


@pytest.mark.parametrize("answers", [True, False], ids=["answered", "not-answered"])
async def test_helm_test_tells_how_the_request_went(space: Any, heads: Heads, answers: bool) -> None:
    head = await heads.start("Hello.")
    url = f"http://127.0.0.1:{head.port if answers else 1}/v1"
    values = stated({"scope": "Namespace", "crds": {"install": False}, "test": {"model": MODEL, "url": url}})
    place = (f"--namespace={space.name}", f"--kubeconfig={space.plane.kubeconfig}")
    installed = await asyncio.to_thread(helm, "install", RELEASE, str(CHART), *values, *place)
    assert installed.returncode == 0, installed.stderr
    assert f"helm --namespace {space.name} test {RELEASE}" in installed.stdout
    space.nodes.hold.add(space.name)
    waiting = asyncio.create_task(asyncio.to_thread(helm, "test", RELEASE, "--timeout=30s", *place))

    async def scheduled() -> Object | None:
        found = await space.list(kinds.POD, "app.kubernetes.io/name=meshnet-test")
        return found[0] if found and found[0]["spec"].get("nodeName") else None

    body = await space.until(scheduled)
    done = await run(body)
    phase = {"phase": "Failed" if done.returncode else "Succeeded"}
    await space.cluster.patch(kinds.POD, space.name, body["metadata"]["name"], {"status": phase}, "status")
    told = await waiting
    assert (told.returncode == 0) is answers, told.stderr
    assert ("Phase:          Succeeded" in told.stdout) is answers
    await asyncio.to_thread(helm, "uninstall", RELEASE, *place)
