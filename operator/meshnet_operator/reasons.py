"""The closed list of condition reasons. docs/operations-operator.md has a section for each (a test compares)."""

from __future__ import annotations

from typing import Final

READY: Final = ("Serving", "NoCompletePath", "HeadNotReady", "PathNotProven", "RoutesNotPublished", "Suspended")
SHARDS_READY: Final = ("AllShardsReady", "ShardsNotReady", "Suspended")
ROUTES_PUBLISHED: Final = ("Published", "PublishFailed")
PROGRESSING: Final = ("Complete", "Creating", "RollingOut", "WaitingForOldObjects", "Paused")
# In the order of telling: the first that applies is the reason, the others are in the message.
DEGRADED: Final = (
    "NameConflict",
    "ApplyFailed",
    "RevisionUnresolved",
    "VolumeNotShareable",
    "ImageVolumesUnsupported",
    "FingerprintMismatch",
    "QuotaExceeded",
    "InsufficientCapacity",
    "ImagePullFailed",
    "OOMKilled",
    "CrashLoop",
    "PodFailed",
    "Unschedulable",
)
AS_EXPECTED: Final = "AsExpected"

ALL: Final = {
    "Ready": READY,
    "ShardsReady": SHARDS_READY,
    "RoutesPublished": ROUTES_PUBLISHED,
    "Progressing": PROGRESSING,
    "Degraded": (AS_EXPECTED, *DEGRADED),
}
