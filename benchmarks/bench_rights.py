"""Rights: what a check costs, and the memory of the grants that it looks in."""

from __future__ import annotations

import os
import time
import tracemalloc
from typing import Any, ClassVar

from engine import clock
from engine.broker.rights.audit import Audit
from engine.broker.rights.grants import Grants
from engine.broker.rights.need import Need
from engine.broker.rights.principal import Kind, Principal, Proof
from engine.broker.rights.rights import Rights
from engine.broker.settings.config import BrokerConfig
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.model.rights import Grant, Right

TINY = bool(os.environ.get("ENGINE_BENCH_TINY"))
SIZES = {"grants": 1_000 if TINY else 100_000, "checks": 1_000 if TINY else 200_000}


def topic(number: int) -> str:
    return f"tenant-{number % 100}/namespace-{number % 1000}/topic-{number}"


def made() -> Grants:
    """Grants of 5,000 roles, each on a topic."""
    grants = Grants(MemoryMetadataStore(clock.SystemClock()), lambda role: None)
    for number in range(SIZES["grants"]):
        grant = Grant(topic(number), f"role-{number % 5000}", ("produce",))
        grants.note(keys.grant(grant.resource, grant.role), grant.to_json())
    return grants


class Check:
    """One check among 100,000 grants: allowed by the topic's, or denied behind all four look-ups."""

    params: ClassVar = ["allowed", "denied"]
    param_names = ("outcome",)
    unit = "ns/check"

    def setup(self, outcome: str) -> None:
        config = BrokerConfig(roles_file="roles")
        self.rights = Rights(lambda: config, Audit(None, clock.SystemClock()))
        self.rights.use(made())
        self.need = Need(Right.PRODUCE, topic(7 if outcome == "allowed" else 8))
        self.principal = Principal(Kind.ROLE, Proof.JWT, "role-7")

    def track_allows(self, *_: Any) -> float:
        allows, principal, need, count = self.rights.allows, self.principal, self.need, SIZES["checks"]
        best = float("inf")
        for _ in range(5):
            start = time.process_time()
            for _ in range(count):
                allows(principal, need)
            best = min(best, time.process_time() - start)
        return best / count * 1e9


class Memory:
    """The mirror of 100,000 grants."""

    unit = "MB"

    def track_memory(self) -> float:
        tracemalloc.start()
        try:
            grants = made()
            assert len(grants) == SIZES["grants"]
            return tracemalloc.get_traced_memory()[0] / 1e6
        finally:
            tracemalloc.stop()
