"""Log lines as JSON: an event name and fields. No secrets and no bodies of objects come here."""

from __future__ import annotations

import logging
import sys

from pythonjsonlogger.json import JsonFormatter


def setup(level: str) -> None:
    """Sends every logger to standard error, one JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    names = {"asctime": "time", "levelname": "level", "name": "logger", "message": "event"}
    handler.setFormatter(JsonFormatter("%(asctime)s %(levelname)s %(name)s %(message)s", rename_fields=names))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # kopf logs each patch and each event of each object at INFO: ours say what changed.
    logging.getLogger("kopf").setLevel(max(logging.WARNING, root.level))
