"""What the chart renders, judged by helm, kubeconform and kube-score, and by the API server itself."""

from __future__ import annotations

import json
import subprocess
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import schemas
from chart.made import CHART
from cluster import access
from cluster.binaries import KUBERNETES, ensure
from cluster.plane import Plane
from meshnet_chart import environment, find, helm, pod_of, render, stated, template
from meshnet_values import SETS

from meshnet_operator import names
from meshnet_operator.children import network
from meshnet_operator.children.network import OPERATOR, PROMETHEUS
from meshnet_operator.resource import parse
from meshnet_operator.settings import OperatorSettings

Object = dict[str, Any]
PERFECT = 10

# What kube-score asks for and does not get: kind, check, words of its comment, the sets of values where it may be.
WAIVERS = [
    # A CPU limit slows down a leader that must renew its Lease in time; the memory limit is what guards the node.
    ("Deployment", "container-resources", "CPU limit is not set", set(SETS)),
    ("Pod", "container-resources", "CPU limit is not set", {"all"}),
    # Images are named by version or digest; to pull at each start would make a restart depend on the registry.
    ("Deployment", "container-image-pull-policy", "not set to Always", set(SETS) - {"all"}),
    # The set "little" switches off what this asks for, on purpose.
    ("Deployment", "pod-networkpolicy", "matching NetworkPolicy", {"little"}),
    ("Deployment", "deployment-replicas", "few replicas", {"little"}),
    # The set "openshift" leaves the user to the platform, which gives a high one.
    ("Deployment", "container-security-context-user-group-id", "low", {"openshift"}),
    # The test's pod runs once, offers nothing, and goes out to a head that has a policy of its own.
    ("Pod", "pod-networkpolicy", "matching NetworkPolicy", {"all"}),
    # The Service is the MeshModel's, which the operator makes.
    ("Ingress", "ingress-targets-service", "No service match", {"all"}),
]


@pytest.mark.parametrize("name", SETS)
def test_helm_lint_is_clean(name: str) -> None:
    done = helm("lint", str(CHART), "--strict", f"--kube-version={KUBERNETES}", *stated(SETS[name]))
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("name", SETS)
def test_kubeconform_finds_each_object_valid(name: str, schema_folder: Path) -> None:
    found = conform(render(SETS[name]), schema_folder)
    assert not [one for one in found["resources"] if one["status"] != "statusValid"], found
    assert found["summary"]["valid"] == len(render(SETS[name]))


def conform(objects: list[Object], folder: Path) -> Object:
    command = [
        str(ensure("kubeconform")), "-strict", "-output=json", "-verbose", "-summary",
        f"-schema-location={folder}/{schemas.LOCATION}", "-",
    ]  # fmt: skip
    done = subprocess.run(command, input=documents(objects), capture_output=True, text=True)
    found: Object = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "wrong",
    [
        {"spec": {"replicas": "two"}},
        {"spec": {"template": {"spec": {"terminationGracePeriod": 30}}}},
        {"spec": {"template": {"spec": {"tolerations": [{"effects": "NoExecute"}]}}}},
    ],
    ids=["type", "unknown-field", "unknown-field-in-a-list"],
)
def test_the_schemas_for_kubeconform_are_strict(wrong: Object, schema_folder: Path) -> None:
    body = merged(find(render(), "Deployment"), wrong)
    (found,) = conform([body], schema_folder)["resources"]
    assert found["status"] == "statusInvalid"


def test_the_schemas_of_other_projects_are_strict(schema_folder: Path) -> None:
    for kind in ("ServiceMonitor", "HTTPRoute", "PrometheusRule"):
        body = next(one for one in render(SETS["all"]) if one["kind"] == kind)
        (found,) = conform([merged(body, {"spec": {"unknown": 1}})], schema_folder)["resources"]
        assert found["status"] == "statusInvalid", kind


def documents(objects: list[Object]) -> str:
    """JSON: what PyYAML writes without quotes (y, off) is something else to Go's readers."""
    return "\n---\n".join(json.dumps(one) for one in objects)


def merged(body: Object, change: Object) -> Object:
    made = dict(body)
    for key, part in change.items():
        made[key] = merged(made.get(key, {}), part) if isinstance(part, dict) else part
    return made


@pytest.mark.parametrize("name", SETS)
def test_kube_score_is_clean_but_for_the_waivers(name: str) -> None:
    objects = [one for one in render(SETS[name]) if one["kind"] != "CustomResourceDefinition"]
    command = [str(ensure("kube-score")), "score", "--output-format=json", "--kubernetes-version=v1.32", "-"]
    done = subprocess.run(command, input=documents(objects), capture_output=True, text=True)
    found = {
        (one["type_meta"]["kind"], check["check"]["id"], comment["summary"])
        for one in json.loads(done.stdout)
        for check in one["checks"]
        if check["grade"] < PERFECT and not check["skipped"]
        for comment in check["comments"]
    }
    waived = [waiver[:3] for waiver in WAIVERS if name in waiver[3]]
    bad = [one for one in found if not any(one[:2] == two[:2] and two[2] in one[2] for two in waived)]
    assert not bad
    unused = [two for two in waived if not any(one[:2] == two[:2] and two[2] in one[2] for one in found)]
    assert not unused


@pytest.fixture(scope="module")
def restricted(plane: Plane) -> Iterator[str]:
    """A namespace where Pod Security "restricted" is enforced, and warned of for what only becomes a pod later."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    done = plane.kubectl("create", "--filename=-", stdin=json.dumps(body))
    assert done.returncode == 0, done.stderr
    yield name
    plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.parametrize("name", SETS)
def test_the_api_server_takes_each_object_without_a_warning(name: str, plane: Plane, restricted: str) -> None:
    """Server-side dry run with strict fields; the kinds of other projects are kubeconform's alone."""
    objects = render(SETS[name], restricted)
    served = [one for one in objects if not one["apiVersion"].startswith(("monitoring.", "gateway.", "apiextensions."))]
    for one in served:
        if one["metadata"].get("namespace") == "models":
            one["metadata"]["namespace"] = restricted
    done = plane.kubectl("create", "--dry-run=server", "--validate=strict", "--filename=-", stdin=documents(served))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("scope", ["Cluster", "Namespace"])
def test_the_roles_are_the_rights_that_the_operators_tests_run_with(scope: str) -> None:
    objects = render({"scope": scope})
    kind, name = ("ClusterRole", "here-meshnet") if scope == "Cluster" else ("Role", "meshnet")
    assert find(objects, kind, name)["rules"] == access.rules("watched")
    assert find(objects, "Role", "meshnet-lease")["rules"] == access.rules("lease")
    for binding in (find(objects, f"{kind}Binding", name), find(objects, "RoleBinding", "meshnet-lease")):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "meshnet", "namespace": "here"}]
        assert binding["roleRef"]["name"] == binding["metadata"]["name"]


def test_one_namespace_needs_nothing_of_the_cluster_when_the_definition_is_there() -> None:
    kinds = {one["kind"] for one in render(SETS["one-namespace"])}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    assert all(one["metadata"]["namespace"] == "here" for one in render(SETS["one-namespace"]))


def test_case_62_the_definition_is_that_of_the_repository_and_stays() -> None:
    body = find(render(), "CustomResourceDefinition")
    source = yaml.safe_load((access.ROOT / "crds" / "meshnet.dev_meshmodels.yaml").read_text())
    assert body["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert body == source


def test_the_environment_is_of_settings_that_the_operator_has() -> None:
    own = {name for name in environment(render(SETS["all"])) if name.startswith("MESHNET_")}
    assert own <= {f"MESHNET_OPERATOR_{name.upper()}" for name in OperatorSettings.model_fields}


def test_the_labels_are_those_that_network_policies_of_models_let_in() -> None:
    labels = find(render(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert OPERATOR["podSelector"]["matchLabels"].items() <= labels.items()
    (rule,) = find(render(), "NetworkPolicy")["spec"]["ingress"]
    assert rule["from"] == PROMETHEUS


def test_the_policies_of_both_sides_let_the_operator_ask_heads_and_shards() -> None:
    """Also where clients are narrowed: without an answer of a head a MeshModel would never be Ready."""
    spec = {
        "model": {"source": "file:///m"},
        "shards": [{"name": "all", "startLayer": 0, "endLayer": 1}],
        "networkPolicy": {"clientsFrom": [{"podSelector": {"matchLabels": {"app": "web"}}}]},
    }
    model = parse({"metadata": {"name": "demo", "namespace": "here", "uid": "u"}, "spec": spec})
    asked = set()
    for policy in network.policies(model):
        for rule in policy["spec"]["ingress"]:
            if OPERATOR in rule["from"]:
                asked |= {port["port"] for port in rule["ports"]}
    assert asked == {names.HEAD_PORT, names.SHARD_PORT}
    out = find(render(), "NetworkPolicy")["spec"]["egress"]
    (rule,) = [rule for rule in out if "to" in rule]
    assert {port["port"] for port in rule["ports"]} == asked
    assert rule["to"][0]["podSelector"]["matchLabels"].items() <= names.labels(model, "head").items()


def test_a_dot_in_the_releases_name_stands_in_no_name_of_an_object() -> None:
    done = helm("template", "my.mesh", str(CHART), f"--kube-version={KUBERNETES}")
    made = [body for body in yaml.safe_load_all(done.stdout) if body]
    assert find(made, "Service")["metadata"]["name"] == "my-mesh-meshnet-metrics"
    assert find(made, "Deployment")["metadata"]["name"] == "my-mesh-meshnet"


def test_a_label_of_a_user_cannot_take_the_place_of_the_selector() -> None:
    taken = {"app.kubernetes.io/name": "mine"}
    body = find(render({"podLabels": taken, "labels": taken}), "Deployment")
    labels = body["spec"]["template"]["metadata"]["labels"]
    assert body["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_case_61_no_pod_asks_for_the_host() -> None:
    objects = render(SETS["all"])
    for spec in (pod_of(objects), find(objects, "Pod")["spec"]):
        assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & spec.keys()
        assert not [volume for volume in spec.get("volumes", []) if "hostPath" in volume]
        assert not [box for box in spec["containers"] if box.get("securityContext", {}).get("privileged")]


def test_a_package_of_the_chart_renders_the_same(tmp_path: Path) -> None:
    done = helm("package", str(CHART), f"--destination={tmp_path}")
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.iterdir()
    arguments = ("--namespace=here", f"--kube-version={KUBERNETES}", *stated(SETS["all"]))
    packed = helm("template", "meshnet", str(package), *arguments)
    assert packed.stdout == helm("template", "meshnet", str(CHART), *arguments).stdout


def test_the_chart_starts_the_operator_of_its_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((access.ROOT / "operator" / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]
    (box,) = pod_of(render())["containers"]
    assert box["command"] == list(project["scripts"])
    assert box["ports"][0]["containerPort"] == OperatorSettings.model_fields["port"].default


def test_case_63_nothing_is_rendered_that_an_api_server_would_drop() -> None:
    """An empty list or map that the server leaves out is a difference for ever to whoever compares."""

    def empty(node: Any, where: str) -> Iterator[str]:
        if isinstance(node, dict):
            for key, part in node.items():
                if part in ({}, []) and key not in ("namespaceSelector", "podSelector"):
                    yield f"{where}.{key}"
                yield from empty(part, f"{where}.{key}")
        if isinstance(node, list):
            for part in node:
                yield from empty(part, f"{where}[]")

    for objects in map(render, SETS.values()):
        assert not [
            at for one in objects if one["kind"] != "CustomResourceDefinition" for at in empty(one, one["kind"])
        ]


def test_probes_wait_at_least_five_seconds() -> None:
    (box,) = pod_of(render())["containers"]
    assert all(box[probe]["timeoutSeconds"] >= 5 for probe in ("readinessProbe", "livenessProbe"))


@pytest.mark.parametrize(
    ("stated_ones", "seconds"),
    [([], {10}), ([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 60}], {60, 10})],
    ids=["none", "one-named"],
)
def test_a_lost_node_is_left_after_ten_seconds_unless_said_otherwise(stated_ones: Any, seconds: set[int]) -> None:
    found = pod_of(render({"tolerations": stated_ones}))["tolerations"]
    assert [one["key"] for one in found] == ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
    assert {one["tolerationSeconds"] for one in found} == seconds


def test_case_64_pull_secrets_and_registry_are_in_all_pods() -> None:
    objects = render(SETS["all"])
    assert environment(objects)["MESHNET_OPERATOR_POD_PULL_SECRETS"] == '["pull"]'
    digest = f"@sha256:{'b' * 64}"
    assert environment(objects)["MESHNET_OPERATOR_NODE_IMAGE"] == f"registry.example/mirror/meshnet/node{digest}"
    for spec in (pod_of(objects), find(objects, "Pod")["spec"]):
        assert spec["imagePullSecrets"] == [{"name": "pull"}]
        assert spec["containers"][0]["image"].startswith("registry.example/mirror/meshnet/operator@sha256:a")


def test_a_proxy_is_never_between_the_operator_and_the_api_server() -> None:
    found = environment(render({"proxy": {"https": "http://proxy.example:3128", "noProxy": ".corp.example"}}))
    own = "$(KUBERNETES_SERVICE_HOST),localhost,127.0.0.1,.svc,.cluster.local,.corp.example"
    assert found["NO_PROXY"] == found["MESHNET_OPERATOR_POD_NO_PROXY"] == own
    assert "NO_PROXY" not in environment(render())


@pytest.mark.parametrize(
    ("values", "ports"),
    [
        ({}, [443, 80]),
        ({"hub": {"endpoint": "http://mirror.example:8080/hub"}}, [443, 80, 8080]),
        ({"proxy": {"http": "http://[fd00::1]:3128", "https": "http://proxy.example:3128"}}, [443, 80, 3128]),
        ({"hub": {"endpoint": ""}}, None),
    ],
    ids=["default", "mirror", "proxies", "none"],
)
def test_the_way_to_the_hub_is_open_and_no_other(values: Object, ports: list[int] | None) -> None:
    rules = find(render(values), "NetworkPolicy")["spec"]["egress"]
    found = [[port["port"] for port in rule["ports"]] for rule in rules]
    assert found == [[53, 53, 5353, 5353], [443, 6443], [8000, 8100], *([ports] if ports else [])]


@pytest.mark.parametrize("names", [["MESHNET_OPERATOR_LOG_LEVEL"], ["MINE", "MINE"]], ids=["the chart's own", "twice"])
def test_a_variable_is_there_once(names: list[str]) -> None:
    """The API server takes a Deployment whose container has a variable twice, and one of the two values is lost."""
    done = template({"extraEnv": [{"name": name, "value": "x"} for name in names]})
    assert done.returncode != 0
    assert f"extraEnv: {names[0]} is there already" in done.stderr


def test_more_variables_follow_the_charts_own() -> None:
    one, other = {"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    assert pod_of(render({"extraEnv": [one, other]}))["containers"][0]["env"][-2:] == [one, other]
