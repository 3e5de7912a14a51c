"""What each part of a broker is told of its configuration."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Protocol

from engine.broker.hosting.segment_host import SegmentHosting
from engine.broker.session.transaction_requests import Participants
from engine.broker.settings.config import BrokerConfig
from engine.broker.upkeep.load_reporter import LoadReports
from engine.clock import Clock
from engine.control.auto_scaler import AutoScaling
from engine.control.base.config import ControlConfig
from engine.control.transactions.coordinator import TransactionCoordinator
from engine.errors import InvalidConfigurationError
from engine.metadata.store import MetadataStore
from engine.storage.disk.config import StorageConfig

if TYPE_CHECKING:
    import random

    from engine.broker.cluster.membership import Membership
    from engine.control.service import ScalableTopicService


class Certified(Protocol):
    """The configuration of something that may be served by TLS."""

    @property
    def tls_cert(self) -> str | None:
        """The path of its certificate; None: in the clear."""

    @property
    def tls_key(self) -> str | None:
        """That of its key."""


def tls_context(config: Certified) -> ssl.SSLContext | None:
    """What both doors are served with; None: in the clear. Raises InvalidConfigurationError."""
    if config.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except OSError as e:  # an SSLError is one
        files = f"tls_cert {config.tls_cert} and tls_key {config.tls_key}"
        raise InvalidConfigurationError(f"{files} cannot be used: {e.strerror or e}") from e
    return context


def storage_config(config: BrokerConfig) -> StorageConfig:
    """Storage's part of the configuration."""
    return StorageConfig(
        file_size_max=config.log_file_size,
        interval_ms=config.sync_interval_ms,
        cache_bytes=config.read_cache_max,
        retention_ms=None if config.retention_time is None else int(config.retention_time * 1000),
        retention_bytes=config.retention_size,
    )


def control_config(config: BrokerConfig) -> ControlConfig:
    """Control's part of the configuration."""
    return ControlConfig(
        auto_create_topics=config.auto_create_topics and config.scalable_topic_enabled,
        segments=config.segments,
        entry_buckets=config.entry_buckets,
        durability=config.durability,
        key_hash=config.key_hash,
        share_sealed=config.scalable_topic_sealed_segment_drain_enabled,
        grace_period=config.consumer_grace_period,
        auto_scale=config.auto_scale_policy(),
        auto_scale_interval=config.scalable_topic_auto_scale_interval,
    )


def load_reports(
    config: BrokerConfig, hosting: SegmentHosting, metadata: MetadataStore, scaling: AutoScaling
) -> LoadReports:
    """The reporters of this broker's segments, with their part of the configuration."""
    return LoadReports(
        hosting,
        metadata,
        interval=config.scalable_topic_load_report_interval,
        threshold=config.scalable_topic_load_report_rate_change_threshold,
        loaded=scaling.loaded,
    )


def coordinator(
    config: BrokerConfig,
    service: ScalableTopicService,
    members: Membership,
    metadata: MetadataStore,
    clock: Clock,
    rng: random.Random,
) -> TransactionCoordinator:
    """Of transactions, with its part of the configuration. Nobody guesses the id of one of somebody else."""
    return TransactionCoordinator(
        metadata,
        clock,
        rng,
        Participants(service, members.transactions).settle,
        retention_s=config.transaction_retention_time,
        named_retention_s=config.transaction_named_retention_time,
    )
