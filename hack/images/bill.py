"""What is in an image, as CycloneDX JSON, and whether an advisory is known for any of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from images import debian, recipes, wheels

# Run by `uv tool run`, in an environment of its own.
AUDIT = "pip-audit"
FOUND = 1


def write(name: str, folder: Path) -> Path:
    """The bill of one image, as a file in `folder`."""
    part = recipes.PARTS[name]
    root, _ = recipes.base(recipes.layout(), part)
    components = [_component(one, version, "pypi") for one, version in wheels.versions(part.lock)]
    components += [_component(one, version, "deb", "debian/") for one, version in debian.packages(root)]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "bom-ref": name}},
        "components": components,
    }
    target = folder / f"{part.folder}.cdx.json"
    target.write_text(json.dumps(document, indent=1))
    return target


def _component(name: str, version: str, kind: str, space: str = "") -> dict[str, Any]:
    url = f"pkg:{kind}/{space}{name}@{version}"
    return {"type": "library", "name": name, "version": version, "purl": url, "bom-ref": url}


def audit() -> int:
    """0: nothing known; 1: something is known; 2: the advisories could not be asked, which is said and not hidden."""
    worst = 0
    for part in recipes.PARTS.values():
        command = [
            str(wheels.UV),
            "tool",
            "run",
            AUDIT,
            "--disable-pip",
            "--requirement",
            str(part.lock),
            "--progress-spinner=off",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        said = done.stdout + done.stderr
        if done.returncode == 0:
            print(f"{part.lock.name}: no known advisory")
        elif "Traceback" not in said and done.stdout.startswith("Name"):
            print(f"{part.lock.name}:\n{said}")
            worst = max(worst, FOUND)
        else:
            reason = said.strip().splitlines()[-1] if said.strip() else f"exit status {done.returncode}"
            print(f"{part.lock.name}: NOT AUDITED, the advisories could not be asked: {reason}")
            worst = 2
    return worst
