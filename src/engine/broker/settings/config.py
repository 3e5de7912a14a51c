"""`BrokerConfig`: what an operator may set, from keywords, a TOML file and the environment."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.broker.settings import checks
from engine.broker.settings.file import override, read_secrets, read_section
from engine.broker.settings.machine import share_of_memory
from engine.errors import InvalidArgumentError, InvalidConfigurationError
from engine.limits import (
    ATTACHMENTS_MAX,
    ATTACHMENTS_PER_CONNECTION_MAX,
    BUCKETS_PER_SEGMENT_MAX,
    CONNECTIONS_MAX,
    CONSUMER_GRACE_S,
    ENTRY_BUCKETS_DEFAULT,
    FRAME_SIZE_MAX,
    GIB,
    HANDSHAKE_S_MAX,
    KEEP_ALIVE_S,
    LOG_FILE_SIZE_MAX,
    LOOKUPS_MAX,
    METRICS_SEGMENTS_MAX,
    MIB,
    PUBLISH_BYTES_IN_FLIGHT_MAX,
    READ_CACHE_MAX,
    READS_IN_FLIGHT_MAX,
    RECEIVE_BUFFERS_MAX,
    RETENTION_ROUND_S,
    RETENTION_S_DEFAULT,
    SEGMENTS_PER_TOPIC_MAX,
    TOPIC_LIST_MEMORY_MAX,
    TOPIC_LIST_QUEUE_MAX,
    TOPIC_LIST_TIMEOUT_S,
    TOPIC_LOADS_MAX,
    TRANSACTION_NAMED_RETENTION_S,
    TRANSACTION_RETENTION_S,
)
from engine.model.autoscale import NAMES, AutoScalePolicy, conflict
from engine.model.units import byte_count, seconds, share

log = logging.getLogger(__name__)

ENVIRONMENT_PREFIX = "ENGINE_"
# Variables of that prefix for the command line, builds and benchmarks.
_NO_SETTING = re.compile(
    r"ENGINE_(URL|TOKEN|TOKEN_FILE|TLS_CA|HOME|EXT|DEBUG|SANITIZE|ANNOTATE|BENCH_.*"
    r"|CONFIG|DATA|LISTEN|ADMIN|METADATA|PROCESSES|PROCESS_PORT|ONE_PORT|LOG_LEVEL|LOG_FORMAT)"
)
_SECRETS = ("auth_token", "cluster_token")  # each may be in a file named by `<key>_file`
_DURABILITIES = ("fsync", "interval", "os")  # of a broker without an object store
_NUMBER_MAX = 2**62  # under a name of the specification, before conversion to our unit
_PLAIN_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{0,20})?")
_KEY_HASHES = ("xxh64", "murmur3")

# Names of the specification that are not simply the camel case of ours.
_SPECIFICATION_NAMES = {
    "allowAutoTopicCreation": "auto_create_topics",
    "advertisedServiceUrl": "service_url",
    "defaultRetentionTimeInMinutes": "retention_time",
    "ttlDurationDefaultInSeconds": "message_ttl",
    "maxConnections": "connections_max",
    "maxConnectionsPerIp": "connections_per_address_max",
    "keepAliveIntervalSeconds": "keep_alive",
    "maxConcurrentLookupRequest": "lookups_max",
    "maxConcurrentTopicLoadRequest": "topic_loads_max",
    "maxMessagePublishBufferSizeInMB": "publish_bytes_max",
    "managedLedgerMaxReadsInFlightSizeInMB": "reads_in_flight_max",
    "managedLedgerCacheSizeMB": "read_cache_max",
    "maxTopicListInFlightHeapMemSizeMB": "topic_list_heap_max",
    "maxTopicListInFlightHeapMemSizePermitsAcquireTimeoutMillis": "topic_list_heap_timeout",
    "maxTopicListInFlightHeapMemSizePermitsAcquireQueueSize": "topic_list_heap_queue_max",
    "maxTopicListInFlightDirectMemSizeMB": "topic_list_direct_max",
    "maxTopicListInFlightDirectMemSizePermitsAcquireTimeoutMillis": "topic_list_direct_timeout",
    "maxTopicListInFlightDirectMemSizePermitsAcquireQueueSize": "topic_list_direct_queue_max",
}
# The unit in a name of the specification, in our unit.
_UNITS = {"InMinutes": 60.0, "InMB": MIB, "SizeMB": MIB, "Millis": 0.001}


def _part_of_memory(part: float, at_most: int, at_least: int) -> int:
    """A default: this part of the machine's memory, within bounds."""
    found: int = field(default_factory=lambda: share_of_memory(part, at_most, at_least))
    return found


_POLICY = AutoScalePolicy()
# Fields of the policy, and our keys for them.
_POLICY_KEYS = {name: f"scalable_topic_{name}" for name in NAMES} | {"enabled": "scalable_topic_auto_scale_enabled"}

# `session_timeout` where the metadata are in etcd, unless it is set: etcd gives leases their whole time again when its
# leader dies, so that one of 5 s lapses some 8 s after its last sign of life.
CLUSTER_SESSION_S = 5.0


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Sizes are bytes, times seconds; both, and shares, may be text with a unit: "50MB", "5m", "25%".

    Raises InvalidConfigurationError naming the key.

    `retention_time` and `retention_size` keep acknowledged messages: a file is deleted when it is fully acknowledged
    and older than the one, or beyond the other (per segment). None: no such limit. A sealed segment is deleted as a
    whole when it is fully acknowledged and was sealed longer ago than `retention_time`, at once if `retention_size`
    is 0.
    """

    service_url: str | None = None  # advertised to clients; None: the address that they dialled
    cluster_name: str = "standalone"  # in metrics: the brokers that share a metadata store
    admin_url: str | None = None  # likewise for the admin API; None: the address it is served on

    # Access over the network. Paths are of PEM files; both or none.
    auth_token: str | None = field(default=None, repr=False)  # required of clients; None: no token
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False  # may listen on addresses reachable from other machines without a token
    admin_hosts: tuple[str, ...] = ()  # names allowed in Host headers of the admin API, besides addresses

    # Roles, and what they may do. Where a source of roles is set (roles_file, jwt_keys, tls_client_ca, unix_users),
    # each connection has the rights of its role alone.
    roles_file: str | None = None  # lines "role: sha256:<hash of its token>"
    jwt_keys: str | None = None  # the public keys of JSON Web Tokens: PEM, or a JWKS
    jwt_audience: str | None = None  # that such a token must be for; None: it must name none
    jwt_role_claim: str = "sub"
    tls_client_ca: str | None = None  # signs certificates of clients, which name their roles
    tls_client_role: str = "subject"  # where: the common name of the subject, or "san", its one other name
    tls_client_required: bool = False  # whether a connection without a certificate is refused
    unix_users: tuple[str, ...] = ()  # other users of the Unix socket: "user=role"
    superusers: tuple[str, ...] = ()  # roles that may do everything
    audit_log: str | None = None  # denials and administrative acts, as JSON lines: a file, or "-" for standard output

    # Between brokers that share a metadata store. Where one of the first two is set, calls of others are refused.
    cluster_token: str | None = field(default=None, repr=False)  # None: auth_token
    cluster_tls_ca: str | None = None  # signs the certificates of brokers; None: what the system trusts
    cluster_tls_cert: str | None = None  # shown to other brokers; None: tls_cert
    cluster_tls_key: str | None = None

    scalable_topic_enabled: bool = True
    auto_create_topics: bool = True
    segments: int = 1
    entry_buckets: int = ENTRY_BUCKETS_DEFAULT
    scalable_topic_sealed_segment_drain_enabled: bool = True  # a sealed backlog is shared by entry bucket
    durability: str = ""  # of new topics; "": "object" with `objects`, else "fsync"
    key_hash: str = "xxh64"
    sync_interval_ms: int = 100  # durability "interval": messages of at most this long may be lost
    cursor_save_interval_ms: int = 50  # between saves of acknowledgements that nothing waits for, in a shared store
    log_file_size: int = LOG_FILE_SIZE_MAX

    # With a shared metadata store, and no shared disk: where messages are kept.
    objects: str | None = None  # URL of a bucket, as s3://bucket/prefix; credentials are in the environment
    object_flush_interval: float = 0.1  # from the first append of an object to its PUT
    object_file_age: float = 600.0  # a log file whose oldest message is so old ends, and is uploaded
    object_cache_size: int = 10 * GIB  # of old data on the disk, which can be read from the store again

    retention_time: float | None = RETENTION_S_DEFAULT
    retention_size: int | None = None
    message_ttl: float | None = None  # messages that are older count as acknowledged; None: for ever due
    retention_interval: float = RETENTION_ROUND_S  # between two rounds of retention

    transaction_sweep_interval: float = 0.5  # between two sweeps for timed-out transactions
    transaction_retention_time: float = TRANSACTION_RETENTION_S  # how long an ended one is kept
    transaction_named_retention_time: float = TRANSACTION_NAMED_RETENTION_S  # a committed named one

    segment_idle_time: float | None = 300.0  # a segment unused for this long is closed; None: never

    # With a shared metadata store: which broker has which segments.
    balance_enabled: bool = True  # an elected broker moves segments from loaded brokers to others
    balance_interval: float = 30.0  # between two rounds
    balance_guard: float = 0.2  # nothing moves while all brokers are within this part of the mean load
    balance_cooldown: float = 600.0  # a segment stays with a new owner for so long
    balance_moves_max: int = 4  # in one round
    drain_timeout: float = 20.0  # a broker that closes hands its segments over for at most this long; 0: not at all

    metrics_segments_max: int = METRICS_SEGMENTS_MAX  # closed segments with series of their own at /metrics

    session_timeout: float = 30.0  # with a shared metadata store: a broker silent for this long is dead
    consumer_grace_period: float = CONSUMER_GRACE_S
    keep_alive: float = KEEP_ALIVE_S  # a peer silent for this long is pinged, for twice this long dropped; 0: never
    handshake_timeout: float = HANDSHAKE_S_MAX
    connections_max: int = CONNECTIONS_MAX
    frame_size_max: int = FRAME_SIZE_MAX
    connections_per_address_max: int = 0  # 0: no limit
    attachments_max: int = ATTACHMENTS_MAX  # producers and consumers
    attachments_per_connection_max: int = ATTACHMENTS_PER_CONNECTION_MAX
    lookups_max: int = LOOKUPS_MAX  # concurrent requests for layouts
    topic_loads_max: int = TOPIC_LOADS_MAX  # segments being opened at once

    short_circuit_reads: bool = True  # bulk readers on this machine may read the log files

    # Memory, over all connections (docs/memory.md). Unset limits are a share of the machine's.
    publish_bytes_max: int = _part_of_memory(
        0.25, PUBLISH_BYTES_IN_FLIGHT_MAX, FRAME_SIZE_MAX
    )  # received, not durable yet
    read_cache_max: int = _part_of_memory(0.1, READ_CACHE_MAX, 0)  # the newest entries of all segments
    reads_in_flight_max: int = _part_of_memory(
        0.25, READS_IN_FLIGHT_MAX, FRAME_SIZE_MAX
    )  # sent to consumers and queued in their sockets; 0: no limit
    receive_buffers_max: int = _part_of_memory(0.25, RECEIVE_BUFFERS_MAX, FRAME_SIZE_MAX)  # partial frames
    topic_list_heap_max: int = TOPIC_LIST_MEMORY_MAX  # topic lists being made
    topic_list_heap_timeout: float = TOPIC_LIST_TIMEOUT_S
    topic_list_heap_queue_max: int = TOPIC_LIST_QUEUE_MAX
    topic_list_direct_max: int = TOPIC_LIST_MEMORY_MAX  # their bytes queued for sockets
    topic_list_direct_timeout: float = TOPIC_LIST_TIMEOUT_S
    topic_list_direct_queue_max: int = TOPIC_LIST_QUEUE_MAX

    # Auto-scaling, unless overridden by namespace or topic (PIP-483, PIP-486).
    scalable_topic_auto_scale_enabled: bool = _POLICY.enabled
    scalable_topic_auto_scale_interval: float = _POLICY.auto_scale_interval  # between two evaluations of a topic's load
    scalable_topic_max_segments: int = _POLICY.max_segments
    scalable_topic_min_segments: int = _POLICY.min_segments
    scalable_topic_max_dag_depth: int = _POLICY.max_dag_depth
    scalable_topic_split_cooldown: float = _POLICY.split_cooldown
    scalable_topic_merge_cooldown: float = _POLICY.merge_cooldown
    scalable_topic_merge_window: float = _POLICY.merge_window
    scalable_topic_split_msg_rate_in_threshold: float = _POLICY.split_msg_rate_in_threshold
    scalable_topic_split_bytes_rate_in_threshold: float = _POLICY.split_bytes_rate_in_threshold
    scalable_topic_split_msg_rate_out_threshold: float = _POLICY.split_msg_rate_out_threshold
    scalable_topic_split_bytes_rate_out_threshold: float = _POLICY.split_bytes_rate_out_threshold
    scalable_topic_merge_msg_rate_in_threshold: float = _POLICY.merge_msg_rate_in_threshold
    scalable_topic_merge_bytes_rate_in_threshold: float = _POLICY.merge_bytes_rate_in_threshold
    scalable_topic_merge_msg_rate_out_threshold: float = _POLICY.merge_msg_rate_out_threshold
    scalable_topic_merge_bytes_rate_out_threshold: float = _POLICY.merge_bytes_rate_out_threshold
    scalable_topic_split_floor_msg_rate_in: float = _POLICY.split_floor_msg_rate_in
    scalable_topic_rebucket_cooldown: float = _POLICY.rebucket_cooldown
    scalable_topic_max_buckets: int = _POLICY.max_buckets
    scalable_topic_load_report_interval: float = _POLICY.load_report_interval
    scalable_topic_load_report_rate_change_threshold: float = _POLICY.load_report_rate_change_threshold

    def __post_init__(self) -> None:
        if self.durability == "":
            object.__setattr__(self, "durability", "fsync" if self.objects is None else "object")
        for key, parse in _TEXTS.items():
            value = getattr(self, key)
            if isinstance(value, str) and (found := parse(value)) is not None:
                object.__setattr__(self, key, found)
        object.__setattr__(self, "admin_hosts", checks.listed(self.admin_hosts))
        object.__setattr__(self, "superusers", checks.listed(self.superusers))
        object.__setattr__(self, "unix_users", checks.listed(self.unix_users))
        for key, wanted in self._wrong().items():
            if wanted and key in _SECRETS:
                raise InvalidConfigurationError(f"{key} must be {wanted}, got text that is not")
            if wanted:
                raise InvalidConfigurationError(f"{key} must be {wanted}, got {getattr(self, key)!r:.200}")
        self.auto_scale_policy()

    @property
    def token_to_brokers(self) -> str | None:
        """The token that this broker sends to others."""
        return self.auth_token if self.cluster_token is None else self.cluster_token

    @property
    def has_roles(self) -> bool:
        """Whether clients are roles, with the rights that these are granted."""
        files = self.roles_file, self.jwt_keys, self.tls_client_ca
        return any(path is not None for path in files) or bool(self.unix_users)

    @property
    def authenticates(self) -> bool:
        """Whether clients must authenticate."""
        return self.auth_token is not None or self.has_roles

    def auto_scale_policy(self) -> AutoScalePolicy:
        """The auto-scaling policy. Raises InvalidConfigurationError."""
        try:
            policy = AutoScalePolicy(**{name: getattr(self, key) for name, key in _POLICY_KEYS.items()})
            problem = conflict(policy)
        except InvalidArgumentError as e:
            problem = str(e)
        if problem:
            raise InvalidConfigurationError(re.sub(r"\w+", lambda word: _POLICY_KEYS.get(word[0], word[0]), problem))
        return policy

    def _wrong_objects(self) -> dict[str, str]:
        """_wrong() of what is kept where."""
        if self.objects is None:
            durability = checks.choice(self.durability, _DURABILITIES) + " without `objects`" * (
                self.durability == "object"
            )
        else:
            durability = "object where `objects` is set, as each broker has its own disk" * (
                self.durability != "object"
            )
        flush = checks.number(self.object_flush_interval, 0.01)
        return {
            "durability": durability,
            "objects": checks.object_store(self.objects),
            "object_flush_interval": flush or "at most 1 s" * (self.object_flush_interval > 1),
            "object_file_age": checks.number(self.object_file_age, 1.0),
            "object_cache_size": checks.integer(self.object_cache_size, 64 * MIB, 2**50),
        }

    def _wrong(self) -> dict[str, str]:
        """For every key: what it must be, or "" when it is valid."""
        return {
            "service_url": checks.optional_text(self.service_url, "engine://"),
            "cluster_name": checks.name(self.cluster_name) or checks.folder(self.cluster_name, self.objects),
            "admin_url": checks.optional_text(self.admin_url, "http"),
            "auth_token": checks.printable(self.auth_token),
            "tls_cert": checks.pair(self.tls_cert, self.tls_key, "tls_key"),
            "tls_key": checks.pair(self.tls_key, self.tls_cert, "tls_cert"),
            "cluster_token": checks.printable(self.cluster_token) or checks.other(self.cluster_token, self.auth_token),
            "cluster_tls_ca": checks.beside(self.cluster_tls_ca, self.tls_cert, "tls_cert"),
            "cluster_tls_cert": checks.pair(self.cluster_tls_cert, self.cluster_tls_key, "cluster_tls_key"),
            "cluster_tls_key": checks.pair(self.cluster_tls_key, self.cluster_tls_cert, "cluster_tls_cert"),
            "insecure": checks.boolean(self.insecure),
            "admin_hosts": checks.hosts(self.admin_hosts),
            **self._wrong_roles(),
            **self._wrong_writing(),
            **self._wrong_objects(),
            "scalable_topic_enabled": checks.boolean(self.scalable_topic_enabled),
            "auto_create_topics": checks.boolean(self.auto_create_topics),
            "segments": checks.integer(self.segments, 1, SEGMENTS_PER_TOPIC_MAX),
            "entry_buckets": checks.integer(self.entry_buckets, 1, BUCKETS_PER_SEGMENT_MAX),
            "scalable_topic_sealed_segment_drain_enabled": checks.boolean(
                self.scalable_topic_sealed_segment_drain_enabled
            ),
            "log_file_size": checks.integer(self.log_file_size, 64 * MIB, 16 * LOG_FILE_SIZE_MAX),
            "retention_time": checks.number(self.retention_time, 0, optional=True),
            "retention_size": "" if self.retention_size is None else checks.integer(self.retention_size, 0, 2**62),
            "message_ttl": checks.number(self.message_ttl, 1, optional=True),
            "retention_interval": checks.number(self.retention_interval, 0.01),
            "transaction_sweep_interval": checks.number(self.transaction_sweep_interval, 0.01),
            "transaction_retention_time": checks.number(self.transaction_retention_time, 0),
            "transaction_named_retention_time": checks.number(self.transaction_named_retention_time, 0),
            "metrics_segments_max": checks.integer(self.metrics_segments_max, 0, 10_000_000),
            "segment_idle_time": checks.number(self.segment_idle_time, 0.01, optional=True),
            "balance_enabled": checks.boolean(self.balance_enabled),
            "balance_interval": checks.number(self.balance_interval, 0.1),
            "balance_guard": checks.share(self.balance_guard),
            "balance_cooldown": checks.number(self.balance_cooldown, 0),
            "balance_moves_max": checks.integer(self.balance_moves_max, 1, 10_000),
            "drain_timeout": checks.number(self.drain_timeout, 0),
            "session_timeout": checks.number(self.session_timeout, 0.1),
            "consumer_grace_period": checks.number(self.consumer_grace_period, 0),
            "keep_alive": checks.number(self.keep_alive, 0),
            "handshake_timeout": checks.number(self.handshake_timeout, 0.01),
            "connections_max": checks.integer(self.connections_max, 1, 1_000_000),
            "frame_size_max": checks.integer(self.frame_size_max, FRAME_SIZE_MAX, 4 * FRAME_SIZE_MAX),
            "connections_per_address_max": checks.integer(self.connections_per_address_max, 0, 1_000_000),
            "attachments_max": checks.integer(self.attachments_max, 1, 10_000_000),
            "attachments_per_connection_max": checks.integer(self.attachments_per_connection_max, 1, 10_000_000),
            "lookups_max": checks.integer(self.lookups_max, 1, 10_000_000),
            "topic_loads_max": checks.integer(self.topic_loads_max, 1, 10_000_000),
            "short_circuit_reads": checks.boolean(self.short_circuit_reads),
            "publish_bytes_max": checks.integer(self.publish_bytes_max, FRAME_SIZE_MAX, 2**40),
            "read_cache_max": checks.integer(self.read_cache_max, 0, 2**40),
            "reads_in_flight_max": checks.integer(self.reads_in_flight_max, 0, 2**40),
            "receive_buffers_max": checks.integer(self.receive_buffers_max, FRAME_SIZE_MAX, 2**40),
            "topic_list_heap_max": checks.integer(self.topic_list_heap_max, MIB, 2**40),
            "topic_list_heap_timeout": checks.number(self.topic_list_heap_timeout, 0.001),
            "topic_list_heap_queue_max": checks.integer(self.topic_list_heap_queue_max, 0, 10_000_000),
            "topic_list_direct_max": checks.integer(self.topic_list_direct_max, MIB, 2**40),
            "topic_list_direct_timeout": checks.number(self.topic_list_direct_timeout, 0.001),
            "topic_list_direct_queue_max": checks.integer(self.topic_list_direct_queue_max, 0, 10_000_000),
            "scalable_topic_auto_scale_interval": checks.number(self.scalable_topic_auto_scale_interval, 0.01),
            "scalable_topic_load_report_interval": checks.number(self.scalable_topic_load_report_interval, 0.01),
            "scalable_topic_load_report_rate_change_threshold": checks.share(
                self.scalable_topic_load_report_rate_change_threshold
            ),
        }

    def _wrong_writing(self) -> dict[str, str]:
        """_wrong() of how messages and cursors are written."""
        return {
            "key_hash": checks.choice(self.key_hash, _KEY_HASHES),
            "sync_interval_ms": checks.integer(self.sync_interval_ms, 1, 3_600_000),
            "cursor_save_interval_ms": checks.integer(self.cursor_save_interval_ms, 0, 60_000),
            **self._wrong_objects(),
        }

    def _wrong_roles(self) -> dict[str, str]:
        """_wrong() of roles and their rights."""
        return {
            "roles_file": checks.path(self.roles_file),
            "jwt_keys": checks.path(self.jwt_keys),
            "jwt_audience": checks.together(self.jwt_audience, self.jwt_keys, "jwt_keys"),
            "jwt_role_claim": checks.name(self.jwt_role_claim),
            "tls_client_ca": checks.beside(self.tls_client_ca, self.tls_cert, "tls_cert"),
            "tls_client_role": checks.choice(self.tls_client_role, ("subject", "san")),
            "tls_client_required": checks.only_beside(self.tls_client_required, self.tls_client_ca, "tls_client_ca"),
            "unix_users": checks.pairs_of_names(self.unix_users),
            "superusers": checks.names(self.superusers),
            "audit_log": checks.path(self.audit_log),
        }

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        **overrides: Any,
    ) -> BrokerConfig:
        """Defaults, then the file, then ENGINE_* of `environment`, then `overrides`; later ones win. `defaults`: in
        place of those of this class.

        The file is TOML, flat or under [broker], in snake case or the specification's camel case. `auth_token_file`
        is the path of a file that holds auth_token, `cluster_token_file` likewise.
        Raises InvalidConfigurationError naming the key, or the file when it cannot be read.
        """
        return cls(**{**(defaults or {}), **given_values(path, environment, overrides)})


def given_values(
    path: str | Path | None, environment: Mapping[str, str] | None, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """What BrokerConfig.load() is given, by our names: without defaults, and not checked yet. Raises as it does."""
    values: dict[str, Any] = {} if path is None else _named(read_section(Path(path), "broker"), f"key in {path}")
    override(values, _from_environment(environment or {}), *_SECRETS)
    override(values, _named(overrides, "argument"), *_SECRETS)
    return read_secrets(values, *_SECRETS)


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Raises InvalidConfigurationError for a probably mistyped key; logs other unknown ones."""
    found = {}
    for name, text in environment.items():
        key = name.removeprefix(ENVIRONMENT_PREFIX).lower()
        if key in _FIELDS and name.startswith(ENVIRONMENT_PREFIX):
            found[key] = _parse(key, text)
        elif name.startswith(ENVIRONMENT_PREFIX) and not _NO_SETTING.fullmatch(name):
            _refuse_near(name, key)
            log.warning("%s in the environment is no setting, and is ignored", name)
    return found


def _refuse_near(name: str, key: str) -> None:
    import difflib

    near = [ENVIRONMENT_PREFIX + match.upper() for match in difflib.get_close_matches(key, _FIELDS, cutoff=0.8)]
    if near:
        raise InvalidConfigurationError(f"{name} in the environment is no setting; {' or '.join(near)} is")


def setting(name: str, value: Any) -> tuple[str, Any]:
    """One key under our name and its value in our unit; text is parsed as in the environment.

    Raises InvalidConfigurationError for an unknown name.
    """
    number: Any = value
    if isinstance(value, str) and _PLAIN_NUMBER.fullmatch(value):
        number = float(value) if "." in value else int(value)
    ((key, found),) = _named({name: number}, "setting").items()
    return key, _parse(key, found) if isinstance(found, str) else found


def _named(values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The values under our names and in our units."""
    named: dict[str, Any] = {}
    for given, value in values.items():
        key = _SPECIFICATION_NAMES.get(given) or re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", given).lower()
        factor = next((factor for unit, factor in _UNITS.items() if given.endswith(unit)), None)
        if factor is not None and given in _SPECIFICATION_NAMES:
            value = _scaled(given, value, factor)
        if key not in _FIELDS:
            raise InvalidConfigurationError(f"{given} is no {what}; the known ones are {', '.join(sorted(_FIELDS))}")
        named[key] = value
    return named


def _scaled(key: str, value: Any, factor: float) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _NUMBER_MAX:
        raise InvalidConfigurationError(f"{key} must be a number, got {value!r:.80}")
    if value < 0:  # the specification writes "no limit" as -1
        return None
    return int(value * factor) if factor == MIB else value * factor


def _parse(key: str, text: str) -> Any:
    """An environment variable's text as the field's type."""
    kind = _FIELDS[key]
    if "None" in kind and text.lower() in ("", "none"):
        return None
    if kind.startswith("bool"):
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(text.lower(), text)
    try:
        return int(text) if kind.startswith("int") else float(text) if kind.startswith("float") else text
    except ValueError:
        return text  # refused by BrokerConfig, by name


_FIELDS = {f.name: str(f.type) for f in dataclasses.fields(BrokerConfig)}
_FIELDS |= dict.fromkeys((f"{secret}_file" for secret in _SECRETS), "str | None")
_SIZES = (
    "log_file_size", "retention_size", "frame_size_max", "publish_bytes_max", "read_cache_max", "reads_in_flight_max",
    "receive_buffers_max", "topic_list_heap_max", "topic_list_direct_max", "object_cache_size",
)  # fmt: skip
# Keys that may be text: {key: parser}.
_TEXTS: dict[str, Callable[[str], float | None]] = {
    **dict.fromkeys(
        (key for key, kind in _FIELDS.items() if kind.startswith("float") and "msg_rate" not in key), seconds
    ),
    **dict.fromkeys((key for key in _FIELDS if "bytes_rate" in key or key in _SIZES), byte_count),
    "scalable_topic_load_report_rate_change_threshold": share,
    "balance_guard": share,
}
