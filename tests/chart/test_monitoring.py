"""Dashboards and alerts ask for what operator, head and shards really expose, and lead to pages that exist."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chart.made import CHART
from cluster import access
from cluster.binaries import ensure
from meshnet_chart import find, render
from prometheus_client import CollectorRegistry

from meshnet_node.head.api_metrics import ApiMetrics
from meshnet_node.head.telemetry import MeshTelemetry
from meshnet_node.shard.meters import Meters
from meshnet_operator.children import monitoring
from meshnet_operator.metrics import Metrics
from meshnet_operator.resource import parse

Object = dict[str, Any]
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
ON = {"metrics": {part: {"enabled": True} for part in ("serviceMonitor", "rules", "dashboards")}}
NAME = re.compile(r"meshnet_[a-z_]+")
# Labels that Prometheus adds to a target, by name or by the operator's ServiceMonitor of a MeshModel.
OF_THE_TARGET = {"namespace", "pod", "job", "le"}


def exposed() -> dict[str, set[str]]:
    """Names of samples, with their labels."""
    registry = CollectorRegistry()
    for made in (Metrics, MeshTelemetry, Meters):
        made(registry)
    ApiMetrics(registry, "model")
    # What is made of numbers that only a running mesh has.
    found = {name: set[str]() for name in _literals(access.ROOT / "node" / "meshnet_node")}
    for metric in registry._collector_to_names:
        labels = set(metric._labelnames)  # type: ignore[attr-defined]
        for name in registry._collector_to_names[metric]:
            found[name] = labels
    return found


def _literals(folder: Path) -> Iterator[str]:
    """Gauges whose names stand in the code: Gauge("meshnet_...") and the shards' meters.watch("...")."""
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
                continue
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            name = node.args[0].value
            if called == "Gauge" and str(name).startswith("meshnet_"):
                yield str(name)
            if called == "watch" and isinstance(name, str):
                yield f"meshnet_shard_{name}"


EXPOSED = exposed()


def queries(node: Any) -> Iterator[str]:
    """Every expression and variable query of a dashboard."""
    if isinstance(node, list):
        for one in node:
            yield from queries(one)
    elif isinstance(node, dict):
        for key, part in node.items():
            if key in ("expr", "query") and isinstance(part, str) and "meshnet_" in part:
                yield part
            yield from queries(part)


def rules() -> list[Object]:
    (group,) = find(render(ON), "PrometheusRule")["spec"]["groups"]
    found: list[Object] = group["rules"]
    return found


ASKED = {f"{file.stem}: {query}": query for file in DASHBOARDS for query in queries(json.loads(file.read_text()))}
ASKED |= {rule["alert"]: rule["expr"] for rule in rules()}


@pytest.mark.parametrize("query", ASKED.values(), ids=ASKED)
def test_a_query_asks_for_a_metric_that_is_exposed(query: str) -> None:
    names = set(NAME.findall(query))
    assert names
    assert names <= EXPOSED.keys()


def test_prometheus_own_parser_takes_each_query() -> None:
    asked = [query for query in ASKED.values() if not query.startswith("label_values(")]
    asked += [rule["expr"] for rule in of_a_model()]
    done = subprocess.run([str(ensure("promql"))], input="\n".join(asked), capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout == ""


def test_the_parser_refuses_what_is_none() -> None:
    done = subprocess.run([str(ensure("promql"))], input="sum(rate(up[5m])", capture_output=True, text=True)
    assert "unclosed left parenthesis" in done.stdout


@pytest.mark.parametrize("query", ASKED.values(), ids=ASKED)
def test_a_query_asks_for_labels_that_the_metric_has(query: str) -> None:
    labels = OF_THE_TARGET.union(*(EXPOSED[name] for name in NAME.findall(query)))
    asked = set(re.findall(r"(\w+)=~?\"", query))
    asked |= {name.strip() for part in re.findall(r"by \(([^)]*)\)", query) for name in part.split(",")}
    assert asked <= labels


@pytest.mark.parametrize("query", ASKED.values(), ids=ASKED)
def test_a_counter_is_asked_for_its_growth(query: str) -> None:
    for name in re.findall(r"meshnet_[a-z_]+_(?:total|bucket)", query):
        assert re.search(rf"(rate|increase)\({name}[^()]*\[", query)


def test_every_metric_of_the_operator_is_on_a_dashboard() -> None:
    shown = {name.removesuffix("_bucket") for query in ASKED.values() for name in NAME.findall(query)}
    registry = CollectorRegistry()
    Metrics(registry)
    names = {metric.name + ("_total" if metric.type == "counter" else "") for metric in registry.collect()}
    assert names - shown == {"meshnet_route_epoch"}


def test_the_dashboards_are_in_the_configmap_as_they_are() -> None:
    data = find(render(ON), "ConfigMap")["data"]
    assert data == {file.name: file.read_text() for file in DASHBOARDS}
    uids = [json.loads(text)["uid"] for text in data.values()]
    assert len(set(uids)) == len(uids) == 2


def test_panels_of_a_dashboard_lie_beside_each_other() -> None:
    for file in DASHBOARDS:
        panels = json.loads(file.read_text())["panels"]
        places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
        assert len(places) == len({panel["id"] for panel in panels}) == len(panels)
        assert len({panel["title"] for panel in panels}) == len(panels)


def test_each_alert_has_its_section_in_the_operations_page() -> None:
    text = (access.ROOT / "docs" / "operations-operator.md").read_text()
    sections = set(re.findall(r"^### (\w+)$", text.partition("## Alerts")[2], flags=re.MULTILINE))
    links = [rule["annotations"]["runbook_url"] for rule in [*rules(), *of_a_model()]]
    assert {link.partition("#")[0] for link in links} == {"docs/operations-operator.md"}
    assert sorted(link.partition("#")[2] for link in links) == sorted(sections)


def of_a_model() -> list[Object]:
    """The alert rules that the operator makes for each MeshModel."""
    shards = [{"name": "all", "startLayer": 0, "endLayer": 1}]
    spec = {"model": {"source": "file:///m"}, "shards": shards}
    model = parse({"metadata": {"name": "demo", "namespace": "here", "uid": "u"}, "spec": spec})
    found: list[Object] = monitoring.rule(model)["spec"]["groups"][0]["rules"]
    return found


def test_the_alerts_of_the_chart_and_of_each_model_are_different_ones() -> None:
    assert not {rule["alert"] for rule in rules()} & {rule["alert"] for rule in of_a_model()}


def test_the_namespace_in_a_series_is_that_of_the_meshmodel() -> None:
    """Without honorLabels Prometheus renames it, and the alert rules of MeshModels would never fire."""
    body = find(render(ON), "ServiceMonitor")
    (endpoint,) = body["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True
    service = find(render(ON), "Service")
    assert body["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [port["name"] for port in service["spec"]["ports"]] == [endpoint["port"]]
    assert all('job="meshnet-metrics"' in rule["expr"] for rule in rules())
