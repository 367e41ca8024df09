"""The pages about the chart say what is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from chart.made import ROOT, leaves, schema
from cluster import access

PAGES = [
    *(ROOT / "docs" / f"{name}.md" for name in ("install", "upgrade", "uninstall", "security")),
    ROOT / "charts" / "meshnet" / "README.md",
]
VALUES = {path for path, _ in leaves(schema(), schema())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_link_leads_to_a_file(page: Path) -> None:
    targets = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page.read_text())]
    assert not [one for one in targets if not (page.parent / one).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_file_that_is_named_is_there(page: Path) -> None:
    named = re.findall(r"(?<![\w./])((?:samples|crds|charts|operator)/[\w./-]+)", page.read_text())
    assert not [one for one in named if not (ROOT / one.rstrip(".")).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_value_that_is_set_exists(page: Path) -> None:
    set_ones = re.findall(r"--set[ =]([\w.]+)=", page.read_text())
    tops = "global|image|nodeImage|hub|proxy|caBundle|networkPolicy|metrics|podSecurityContext|test|crds"
    named = re.findall(rf"`((?:{tops})\.[\w.]+)", page.read_text())
    for one in {*set_ones, *named}:
        assert one in VALUES or any(one.startswith(f"{value}.") for value in VALUES), one


def test_the_table_of_rights_is_that_of_the_operator() -> None:
    text = (ROOT / "docs" / "security.md").read_text()

    def told(part: str) -> dict[str, set[str]]:
        rows = re.findall(r"^\| ([\w/, ]+) \| ([a-z, ]+) \| [^|]+ \|$", part, flags=re.MULTILINE)
        return {resources: set(verbs.split(", ")) for resources, verbs in rows if resources != "resources"}

    def held(rules: list[dict[str, Any]]) -> dict[str, set[str]]:
        return {", ".join(rule["resources"]): set(rule["verbs"]) for rule in rules}

    watched, _, own = text.partition("## The operator's rights")[2].partition("In its own namespace")
    assert told(watched) == held(access.rules("watched"))
    assert told(own.partition("## Pods")[0]) == held(access.rules("lease"))
