"""`python -m chart`: writes what is made (see `made`)."""

from __future__ import annotations

from chart.made import CHART, COPIES, readme, values


def main() -> None:
    for copy, source in COPIES.items():
        copy.write_bytes(source.read_bytes())
    (CHART / "values.yaml").write_text(values())
    page = CHART / "README.md"
    page.write_text(readme(page.read_text()))


if __name__ == "__main__":
    main()
