"""What all generations of a head share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meshnet_node.head.boundary import ReplayBudget
from meshnet_node.head.conversations import Conversations
from meshnet_node.head.roster import Endpoints
from meshnet_node.head.telemetry import MeshTelemetry
from meshnet_node.settings import HeadSettings

if TYPE_CHECKING:
    from meshnet_node.head.generation import MeshGeneration


@dataclass
class MeshContext:
    """Passed down to each generation; `running` are those that hold state at shards."""

    settings: HeadSettings
    endpoints: Endpoints
    budget: ReplayBudget
    telemetry: MeshTelemetry
    conversations: Conversations = field(default_factory=Conversations)
    running: set[MeshGeneration] = field(default_factory=set)
