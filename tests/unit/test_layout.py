"""Two traps of the layout: a package named operator would replace the standard library's, and tests are no packages."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_folder_operator_is_no_package_and_holds_no_module() -> None:
    assert not list((REPOSITORY / "operator").glob("*.py"))


def test_no_folder_of_tests_is_a_package() -> None:
    assert not list((REPOSITORY / "tests").rglob("__init__.py"))
