"""Install, upgrade and uninstall on a real API server, with the operator running as the chart's own account."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chart.made import CHART
from cluster import access
from meshnet_chart import RELEASE, environment, helm, render, stated

from meshnet_operator import kinds
from meshnet_operator.__main__ import serve
from meshnet_operator.errors import NotFound
from meshnet_operator.kinds import Kind
from meshnet_operator.settings import load

Object = dict[str, Any]
Make = Callable[..., Any]
TOKEN = Kind("", "v1", "serviceaccounts/meshnet/token", "TokenRequest")
# The definition is there since the session's start, and not by Helm.
INSTALL = ("--take-ownership",)
# Of the container's own file system.
ELSEWHERE = ("HOME", "SSL_CERT_FILE")


@dataclass
class Release:
    """A release in the test's namespace, and the operator that its Deployment would run."""

    space: Any
    folder: Path
    patch: pytest.MonkeyPatch
    values: Object = field(default_factory=dict)
    running: asyncio.Task[None] | None = None
    ending: asyncio.Event = field(default_factory=asyncio.Event)

    async def helm(self, *args: str) -> str:
        done = await asyncio.to_thread(
            helm, *args, f"--namespace={self.space.name}", kubeconfig=self.space.plane.kubeconfig
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def install(self, **values: Any) -> str:
        self.values = values
        return await self.helm("install", RELEASE, str(CHART), *stated(values), *INSTALL)

    async def upgrade(self, **values: Any) -> str:
        self.values = values
        return await self.helm("upgrade", RELEASE, str(CHART), *stated(values))

    async def rollback(self) -> None:
        """To the values of the release's first revision."""
        self.values = {"scope": "Namespace", "nodeImage": {"tag": "1"}}
        await self.helm("rollback", RELEASE, "1")

    async def start(self, **more: Any) -> None:
        """The operator's process code with the rendered environment, and the rights of the chart's account."""
        objects = await asyncio.to_thread(render, self.values, self.space.name)
        for name, value in environment(objects).items():
            if name not in ELSEWHERE:
                self.patch.setenv(name, value)
        answer = await self.space.cluster.create({"spec": {"expirationSeconds": 7200}}, TOKEN, self.space.name)
        plane = self.space.plane
        file = access.kubeconfig(self.folder / "own", plane.server, answer["status"]["token"], plane.authority)
        settings = load(
            kubeconfig=file, host="127.0.0.1", port=0, exit_seconds=0, probe_pods=False, resync_seconds=1.0, **more
        )
        self.ending = asyncio.Event()
        self.running = asyncio.create_task(serve(settings, self.ending))

    async def stop(self) -> None:
        if self.running is not None:
            self.ending.set()
            await self.running
            self.running = None


@pytest.fixture
async def release(space: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Release]:
    made = Release(space, tmp_path, monkeypatch)
    yield made
    await made.stop()
    done = helm(
        "uninstall", RELEASE, "--ignore-not-found", f"--namespace={space.name}", kubeconfig=space.plane.kubeconfig
    )
    assert done.returncode == 0, done.stderr


def ready(space: Any) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        body = await space.get(kinds.DEPLOYMENT, "meshnet")
        return int(body.get("status", {}).get("readyReplicas", 0)) == body["spec"]["replicas"]

    return check


async def test_installed_in_a_restricted_namespace_it_serves_a_meshmodel(
    release: Release, space: Any, meshmodel: Make
) -> None:
    told = await release.install(scope="Namespace")
    assert f"kubectl --namespace {space.name} wait --for=condition=Ready mm/demo" in told
    await space.until(ready(space), 30)
    operators = await space.list(kinds.POD, "app.kubernetes.io/name=meshnet-operator")
    assert len({pod["spec"]["nodeName"] for pod in operators}) == len(operators) == 2
    await release.start()
    await space.create(meshmodel())
    await space.until_ready()
    lease = await space.get(kinds.LEASE, "meshnet")
    assert lease["spec"]["holderIdentity"]
    pods = await space.pods()
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"meshnet/node:0.1.0"}


async def test_an_upgrade_with_other_values_leaves_the_pods_of_models_untouched(
    release: Release, space: Any, meshmodel: Make
) -> None:
    await release.install(scope="Namespace", nodeImage={"tag": "1"})
    await release.start()
    hub = {"source": "hf://org/name", "revision": "c" * 40}
    await space.create(meshmodel(model=hub))
    await space.until_ready()
    before = await space.pods()
    generations = await deployments(space)
    await release.stop()

    await release.upgrade(
        scope="Namespace", nodeImage={"tag": "2", "repository": "elsewhere/node"}, logLevel="DEBUG",
        hub={"endpoint": "http://mirror.example:8080"}, proxy={"https": "http://proxy.example:3128"},
        caBundle={"configMap": "authorities"},
        **{"global": {"registry": "registry.example", "imagePullSecrets": [{"name": "pull"}]}},
    )  # fmt: skip
    await release.start()
    await space.create(meshmodel("other", model=hub))
    await space.until_ready("other")
    await asyncio.sleep(2.5)
    after = await space.pods()
    assert uids(after) == uids(before)
    assert await deployments(space) == generations

    new = (await space.pods(model="other"))[0]["spec"]
    found = {entry["name"]: entry.get("value") for entry in new["containers"][0]["env"]}
    assert new["containers"][0]["image"] == "registry.example/elsewhere/node:2"
    assert found["HF_ENDPOINT"] == "http://mirror.example:8080"
    assert found["HTTPS_PROXY"] == "http://proxy.example:3128"
    assert found["SSL_CERT_FILE"] == "/etc/meshnet/ca/ca.crt"
    assert new["imagePullSecrets"] == [{"name": "pull"}]

    await release.stop()
    await release.rollback()
    await release.start()
    await space.create(meshmodel("third", model=hub))
    await space.until_ready("third")
    await asyncio.sleep(2.5)
    assert uids(await space.pods()) == uids(before)
    assert (await space.pods(model="third"))[0]["spec"]["containers"][0]["image"] == "meshnet/node:1"


async def test_case_62_uninstall_keeps_the_definition_the_meshmodels_and_their_pods(
    release: Release, space: Any, admin: Any, meshmodel: Make
) -> None:
    await release.install(scope="Namespace")
    await release.start()
    await space.create(meshmodel())
    await space.until_ready()
    before = await space.pods()
    await release.stop()
    await release.helm("uninstall", RELEASE)
    with pytest.raises(NotFound):
        await space.get(kinds.DEPLOYMENT, "meshnet")
    definition = await admin.get(access.CRD, None, "meshmodels.meshnet.dev")
    assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert await space.get(kinds.MESHMODEL, "demo")
    assert uids(await space.pods()) == uids(before)

    # The same release takes all of it up again, without being told to.
    await release.helm("install", RELEASE, str(CHART), *stated(release.values))
    await release.start()
    await space.patch("demo", {"head": {"replicas": 2}})
    await space.until_ready()
    assert set(uids(before)) < set(uids(await space.pods()))


async def test_case_62_a_second_release_goes_without_the_definition(release: Release, space: Any, admin: Any) -> None:
    await release.install(scope="Namespace")
    other = f"t-{uuid.uuid4().hex[:10]}"
    await admin.create({"metadata": {"name": other}}, kinds.NAMESPACE, None)
    place = {"kubeconfig": space.plane.kubeconfig}
    arguments = ("install", RELEASE, str(CHART), f"--namespace={other}", "--set=scope=Namespace")
    refused = await asyncio.to_thread(helm, *arguments, **place)
    assert refused.returncode != 0
    assert "cannot be imported into the current release" in refused.stderr
    done = await asyncio.to_thread(helm, *arguments, "--set=crds.install=false", **place)
    assert done.returncode == 0, done.stderr
    await asyncio.to_thread(helm, "uninstall", RELEASE, f"--namespace={other}", **place)
    await admin.delete(kinds.NAMESPACE, None, other)


async def test_case_66_from_the_same_chart_all_namespaces_are_served_or_one(
    release: Release, space: Any, admin: Any, meshmodel: Make
) -> None:
    other = f"t-{uuid.uuid4().hex[:10]}"
    await admin.create({"metadata": {"name": other}}, kinds.NAMESPACE, None)
    await admin.create(meshmodel("far"), kinds.MESHMODEL, other)
    await release.install(scope="Namespace")
    await release.start()
    await space.create(meshmodel())
    await space.until_ready()
    assert "status" not in await admin.get(kinds.MESHMODEL, other, "far")
    await release.stop()

    await release.upgrade(scope="Cluster")
    await release.start()

    async def served() -> bool:
        body = await admin.get(kinds.MESHMODEL, other, "far")
        return bool(body.get("status", {}).get("readyShards") == "2/2")

    await space.until(served)
    await release.stop()
    await admin.delete(kinds.MESHMODEL, other, "far")
    await admin.delete(kinds.NAMESPACE, None, other)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"scope": "Cluster"}, "serves the MeshModels of all namespaces"),
        ({"scope": "Namespace"}, "MeshModels of other namespaces are left alone: set scope=Cluster"),
        ({"crds": {"install": False}}, "the MeshModel definition must be there already"),
        ({"rbac": {"create": False}}, "until somebody binds its rights to the ServiceAccount meshnet"),
        ({"test": {"model": "demo"}}, "test meshnet"),
        ({"scope": "Namespace", "test": {"model": "demo", "namespace": "far"}}, "which this operator does not serve"),
    ],
    ids=["cluster", "namespace", "no-definition", "no-roles", "test", "test-elsewhere"],
)
def test_case_66_the_notes_say_whom_the_operator_serves_and_what_is_missing(
    plane: Any, values: Object, words: str
) -> None:
    arguments = ("install", RELEASE, str(CHART), "--namespace=notes", "--dry-run=server", "--hide-secret", *INSTALL)
    done = helm(*arguments, *stated(values), kubeconfig=plane.kubeconfig)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert words in notes
    assert "kubectl --namespace notes wait --for=condition=Ready mm/demo" in notes


async def test_the_account_may_not_look_into_other_namespaces_when_the_scope_is_one(
    release: Release, space: Any
) -> None:
    await release.install(scope="Namespace")
    who = f"--as=system:serviceaccount:{space.name}:meshnet"

    def may(verb: str, what: str, *where: str) -> bool:
        return bool(space.plane.kubectl("auth", "can-i", verb, what, who, *where).stdout.strip() == "yes")

    here = f"--namespace={space.name}"
    assert may("list", "meshmodels.meshnet.dev", here)
    assert may("update", "leases.coordination.k8s.io", here)
    assert not may("list", "meshmodels.meshnet.dev", "--namespace=default")
    assert not may("list", "meshmodels.meshnet.dev", "--all-namespaces")
    assert not may("get", "secrets", here)
    assert not may("delete", "pods", here)
    assert not may("escalate", "roles.rbac.authorization.k8s.io", here)


async def test_the_roles_view_and_edit_of_the_cluster_get_meshmodels(release: Release, space: Any) -> None:
    await release.install(scope="Namespace")
    for role, verbs in (
        ("view", {"get": True, "create": False}),
        ("edit", {"create": True}),
        ("admin", {"delete": True}),
    ):
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": f"{role}er", "apiGroup": "rbac.authorization.k8s.io"}],
        }
        await space.create(binding, kinds.BINDING)
        for verb, wanted in verbs.items():
            await space.until(lambda verb=verb, role=role, wanted=wanted: may(space, f"{role}er", verb, wanted))


async def may(space: Any, user: str, verb: str, wanted: bool) -> bool:
    arguments = ("auth", "can-i", verb, "meshmodels.meshnet.dev", f"--as={user}", f"--namespace={space.name}")
    done = await asyncio.to_thread(space.plane.kubectl, *arguments)
    return bool((done.stdout.strip() == "yes") == wanted)


async def test_without_roles_the_account_can_do_nothing(release: Release, space: Any) -> None:
    await release.install(scope="Namespace", rbac={"create": False})
    who = f"--as=system:serviceaccount:{space.name}:meshnet"
    done = space.plane.kubectl("auth", "can-i", "list", "meshmodels.meshnet.dev", who, f"--namespace={space.name}")
    assert done.stdout.strip() == "no"


def uids(pods: list[Object]) -> list[str]:
    return sorted(pod["metadata"]["uid"] for pod in pods)


async def deployments(space: Any) -> dict[str, tuple[str, int]]:
    """uid and generation of each of the model's Deployments: a generation counts changes of the spec."""
    found = await space.list(kinds.DEPLOYMENT, "meshnet.dev/model=demo")
    return {one["metadata"]["name"]: (one["metadata"]["uid"], one["metadata"]["generation"]) for one in found}
