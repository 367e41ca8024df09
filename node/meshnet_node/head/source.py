"""Which source the route table comes from, by the settings."""

from __future__ import annotations

from pathlib import Path

from meshnet_node.head.apiserver import find_account
from meshnet_node.head.configmap import ConfigMapRoutes, Timing
from meshnet_node.head.routes import FileRoutes, Intake, Source
from meshnet_node.settings import HeadSettings


def open_source(settings: HeadSettings, intake: Intake) -> Source:
    """Raises ConfigError where a ConfigMap is named and this process runs in no pod."""
    if settings.routes_object is None:
        return FileRoutes(Path(settings.routes).expanduser(), intake)
    namespace, name = settings.routes_object
    return ConfigMapRoutes(namespace, name, find_account(settings), intake, Timing(watch=settings.watch_seconds))
