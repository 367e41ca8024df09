"""`python -m crd`: writes crds/meshnet.dev_meshmodels.yaml. Needs the control plane's binaries; the result is
committed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from cluster.plane import Plane

from crd import reference
from crd.build import RESULT, render


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        plane = Plane(Path(folder))
        plane.start()
        try:
            schemas = {
                name: schema
                for group in ("api/v1", "apis/networking.k8s.io/v1")
                for name, schema in json.loads(plane.kubectl("get", "--raw", f"/openapi/v3/{group}").stdout)[
                    "components"
                ]["schemas"].items()
            }
        finally:
            plane.stop()
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(render(schemas))
    reference.TARGET.write_text(reference.render())
    print(f"{RESULT.name}: {RESULT.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
