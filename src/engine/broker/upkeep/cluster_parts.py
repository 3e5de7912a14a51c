"""`ClusterParts`: what a broker has for working with the others, as administration and metrics see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.broker.cluster.handover import Handovers
from engine.broker.cluster.membership import Membership
from engine.broker.upkeep.balancer import Balancer
from engine.broker.upkeep.draining import Draining
from engine.control.service import ScalableTopicService
from engine.metadata.store import MetadataStore

if TYPE_CHECKING:
    from engine.broker.upkeep.objects import ObjectUpkeep


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """Of one broker."""

    members: Membership
    service: ScalableTopicService
    metadata: MetadataStore
    handovers: Handovers
    draining: Draining
    balancer: Balancer
    objects: ObjectUpkeep | None  # None: segments are not on objects
