"""`ControlConfig`: the settings of the control plane."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.errors import InvalidConfigurationError, UnsupportedError
from engine.limits import (
    AUTO_SCALE_INTERVAL_S,
    BUCKETS_PER_SEGMENT_MAX,
    CONSUMER_GRACE_S,
    CONTROLLER_IDLE_S,
    ENTRY_BUCKETS_DEFAULT,
    SEGMENTS_PER_TOPIC_MAX,
)
from engine.model.autoscale import AutoScalePolicy, conflict
from engine.model.layout import KEY_HASHES
from engine.model.policies import DURABILITIES


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """Defaults of new topics, and times of the controller. Raises InvalidConfigurationError naming the key."""

    new_topics: bool = True  # whether topics may be created at all
    auto_create_topics: bool = True  # unless the namespace says otherwise
    segments: int = 1
    entry_buckets: int = ENTRY_BUCKETS_DEFAULT
    durability: str = "fsync"
    durabilities: tuple[str, ...] = ("fsync", "interval", "os")  # that topics may have here
    key_hash: str = "xxh64"
    share_sealed: bool = True  # several consumers may share the draining of a sealed segment, by bucket (PIP-486)
    grace_period: float = CONSUMER_GRACE_S  # seconds for which a disconnected consumer keeps its share
    controller_idle: float = CONTROLLER_IDLE_S  # seconds after which a leader without work resigns
    auto_scale: AutoScalePolicy = field(default_factory=AutoScalePolicy)
    auto_scale_interval: float = AUTO_SCALE_INTERVAL_S  # seconds between two decisions about traffic

    def check_durability(self, durability: str | None) -> None:
        """Raise UnsupportedError for one that topics cannot have here. Others are refused where they are used."""
        if durability is None or durability in self.durabilities or durability not in DURABILITIES:
            return
        why = "it has no object store (--objects)"
        if durability != "object":
            why = "its brokers share no disk, so that what one has on its own is lost with its machine"
        raise UnsupportedError(
            f"durability must be {' or '.join(self.durabilities)} on this broker, got {durability!r}: {why}"
        )

    def __post_init__(self) -> None:
        wrong = {
            "segments": f"1 to {SEGMENTS_PER_TOPIC_MAX}" * (not 1 <= self.segments <= SEGMENTS_PER_TOPIC_MAX),
            "entry_buckets": f"1 to {BUCKETS_PER_SEGMENT_MAX}"
            * (not 1 <= self.entry_buckets <= BUCKETS_PER_SEGMENT_MAX),
            "durability": " or ".join(self.durabilities) * (self.durability not in self.durabilities),
            "key_hash": " or ".join(KEY_HASHES) * (self.key_hash not in KEY_HASHES),
            "grace_period": "0 or more seconds" * (not self.grace_period >= 0),
            "controller_idle": "more than 0 seconds" * (not self.controller_idle > 0),
            "auto_scale": (problem := conflict(self.auto_scale)) and f"a policy that agrees with itself ({problem})",
            "auto_scale_interval": "more than 0 seconds" * (not self.auto_scale_interval > 0),
        }
        for key, right in wrong.items():
            if right:
                raise InvalidConfigurationError(f"{key} must be {right}, got {getattr(self, key)!r}")
