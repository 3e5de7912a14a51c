"""`BrokerConfig`: what an operator may set, from keywords, a TOML file and the environment."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.broker.settings import checks
from engine.broker.settings.checks import (
    Bytes,
    CacheSize,
    Count,
    Duration,
    FrameMemory,
    Interval,
    ListMemory,
    Memory,
    Positive,
    Seconds,
    Share,
    Timeout,
)  # fmt: skip
from engine.broker.settings.file import check_known, override, read_secrets, read_section, snake_case
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
    LOG_CACHE_MIN,
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
    tls_client_role: Literal["subject", "san"] = "subject"  # the common name, or "san", the one other name
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
    segments: Annotated[int, Meta(ge=1, le=SEGMENTS_PER_TOPIC_MAX)] = 1
    entry_buckets: Annotated[int, Meta(ge=1, le=BUCKETS_PER_SEGMENT_MAX)] = ENTRY_BUCKETS_DEFAULT
    scalable_topic_sealed_segment_drain_enabled: bool = True  # a sealed backlog is shared by entry bucket
    durability: str = ""  # of new topics; "": "object" with `objects`, else "fsync"
    key_hash: Literal["xxh64", "murmur3", "murmur3-low"] = "xxh64"
    # With durability "interval", messages of at most this long may be lost.
    sync_interval_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 100
    # Between saves of acknowledgements that nothing waits for, in a shared store.
    cursor_save_interval_ms: Annotated[int, Meta(ge=0, le=60_000)] = 50
    log_file_size: Annotated[Bytes, Meta(ge=64 * MIB, le=16 * LOG_FILE_SIZE_MAX)] = LOG_FILE_SIZE_MAX

    # With a shared metadata store, and no shared disk: where messages are kept.
    objects: str | None = None  # URL of a bucket, as s3://bucket/prefix; credentials are in the environment
    object_flush_interval: Interval = 0.1  # from the first append of an object to its PUT; at most 1 s
    # A log file whose oldest message is so old ends, and is uploaded.
    object_file_age: Annotated[Seconds, Meta(ge=1)] = 600.0
    # Of old data on the disk, which can be read from the store again.
    object_cache_size: Annotated[Bytes, Meta(ge=64 * MIB, le=2**50)] = 10 * GIB

    retention_time: Duration | None = RETENTION_S_DEFAULT
    retention_size: Annotated[Bytes, Meta(ge=0, le=2**62)] | None = None
    # Messages that are older count as acknowledged; None: for ever due.
    message_ttl: Annotated[Seconds, Meta(ge=1)] | None = None
    retention_interval: Interval = RETENTION_ROUND_S  # between two rounds of retention

    transaction_sweep_interval: Interval = 0.5  # between two sweeps for timed-out transactions
    transaction_retention_time: Duration = TRANSACTION_RETENTION_S  # how long an ended one is kept
    transaction_named_retention_time: Duration = TRANSACTION_NAMED_RETENTION_S  # a committed named one

    segment_idle_time: Interval | None = 300.0  # a segment unused for this long is closed; None: never

    # With a shared metadata store: which broker has which segments.
    balance_enabled: bool = True  # an elected broker moves segments from loaded brokers to others
    balance_interval: Annotated[Seconds, Meta(ge=0.1)] = 30.0  # between two rounds
    balance_guard: Share = 0.2  # nothing moves while all brokers are within this part of the mean load
    balance_cooldown: Duration = 600.0  # a segment stays with a new owner for so long
    balance_moves_max: Annotated[int, Meta(ge=1, le=10_000)] = 4  # in one round
    drain_timeout: Duration = 20.0  # a broker that closes hands its segments over for at most this long; 0: not at all

    metrics_segments_max: Count = METRICS_SEGMENTS_MAX  # closed segments with series of their own at /metrics

    # With a shared metadata store: a broker silent for this long is dead.
    session_timeout: Annotated[Seconds, Meta(ge=0.1)] = 30.0
    consumer_grace_period: Duration = CONSUMER_GRACE_S
    keep_alive: Duration = KEEP_ALIVE_S  # a peer silent for this long is pinged, for twice this long dropped; 0: never
    handshake_timeout: Interval = HANDSHAKE_S_MAX
    connections_max: Annotated[int, Meta(ge=1, le=1_000_000)] = CONNECTIONS_MAX
    frame_size_max: Annotated[Bytes, Meta(ge=FRAME_SIZE_MAX, le=4 * FRAME_SIZE_MAX)] = FRAME_SIZE_MAX
    connections_per_address_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 0  # 0: no limit
    attachments_max: Positive = ATTACHMENTS_MAX  # producers and consumers
    attachments_per_connection_max: Positive = ATTACHMENTS_PER_CONNECTION_MAX
    lookups_max: Positive = LOOKUPS_MAX  # concurrent requests for layouts
    topic_loads_max: Positive = TOPIC_LOADS_MAX  # segments being opened at once

    short_circuit_reads: bool = True  # bulk readers on this machine may read the log files

    # Memory, over all connections (docs/memory.md). Unset limits are a share of the machine's.
    # Received, not durable yet.
    publish_bytes_max: FrameMemory = field(
        default_factory=partial(share_of_memory, 0.25, PUBLISH_BYTES_IN_FLIGHT_MAX, FRAME_SIZE_MAX)
    )
    # The newest entries of all segments.
    read_cache_max: Memory = field(default_factory=partial(share_of_memory, 0.1, READ_CACHE_MAX, 0))
    # Of log files in the system's page cache; 0: as much as the system likes.
    log_cache_size: CacheSize = field(default_factory=partial(share_of_memory, 0.1, 2**50, LOG_CACHE_MIN))
    # Sent to consumers and queued in their sockets; 0: no limit.
    reads_in_flight_max: Memory = field(
        default_factory=partial(share_of_memory, 0.25, READS_IN_FLIGHT_MAX, FRAME_SIZE_MAX)
    )
    # Partial frames.
    receive_buffers_max: FrameMemory = field(
        default_factory=partial(share_of_memory, 0.25, RECEIVE_BUFFERS_MAX, FRAME_SIZE_MAX)
    )
    topic_list_heap_max: ListMemory = TOPIC_LIST_MEMORY_MAX  # topic lists being made
    topic_list_heap_timeout: Timeout = TOPIC_LIST_TIMEOUT_S
    topic_list_heap_queue_max: Count = TOPIC_LIST_QUEUE_MAX
    topic_list_direct_max: ListMemory = TOPIC_LIST_MEMORY_MAX  # their bytes queued for sockets
    topic_list_direct_timeout: Timeout = TOPIC_LIST_TIMEOUT_S
    topic_list_direct_queue_max: Count = TOPIC_LIST_QUEUE_MAX

    # Auto-scaling, unless overridden by namespace or topic (PIP-483, PIP-486).
    scalable_topic_auto_scale_enabled: bool = _POLICY.enabled
    scalable_topic_auto_scale_interval: Interval = _POLICY.auto_scale_interval  # between two looks at a topic's load
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
    scalable_topic_load_report_interval: Interval = _POLICY.load_report_interval
    scalable_topic_load_report_rate_change_threshold: Share = _POLICY.load_report_rate_change_threshold

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
        faults = [
            f"{key} must be {wanted}, got "
            + ("text that is not" if key in _SECRETS else f"{getattr(self, key)!r:.200}")
            for key, wanted in self._wrong().items()
            if wanted
        ]
        if faults:
            raise InvalidConfigurationError("; ".join(faults))
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

    def _wrong(self) -> dict[str, str]:
        """For every key: what it must be, or "" when it is valid."""
        found = checks.wrong(self, _BOUNDED)
        for key, wanted in (self._wrong_texts() | self._wrong_roles() | self._wrong_objects()).items():
            found[key] = found.get(key) or wanted
        return found

    def _wrong_texts(self) -> dict[str, str]:
        """_wrong() of names, addresses, tokens and files."""
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
            "admin_hosts": checks.hosts(self.admin_hosts),
        }

    def _wrong_roles(self) -> dict[str, str]:
        """_wrong() of roles and their rights."""
        return {
            "roles_file": checks.path(self.roles_file),
            "jwt_keys": checks.path(self.jwt_keys),
            "jwt_audience": checks.together(self.jwt_audience, self.jwt_keys, "jwt_keys"),
            "jwt_role_claim": checks.name(self.jwt_role_claim),
            "tls_client_ca": checks.beside(self.tls_client_ca, self.tls_cert, "tls_cert"),
            "tls_client_required": checks.only_beside(self.tls_client_required, self.tls_client_ca, "tls_client_ca"),
            "unix_users": checks.pairs_of_names(self.unix_users),
            "superusers": checks.names(self.superusers),
            "audit_log": checks.path(self.audit_log),
        }

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
        flush = self.object_flush_interval
        return {
            "durability": durability,
            "objects": checks.object_store(self.objects),
            "object_flush_interval": "at most 1 s" if isinstance(flush, int | float) and flush > 1 else "",
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
    names = {given: _SPECIFICATION_NAMES.get(given) or snake_case(given) for given in values}
    check_known(names, _FIELDS, what)
    named: dict[str, Any] = {}
    for given, value in values.items():
        key = names[given]
        factor = next((factor for unit, factor in _UNITS.items() if given.endswith(unit)), None)
        if factor is not None and given in _SPECIFICATION_NAMES:
            value = _scaled(given, value, factor)
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
    kind, words = _FIELDS[key], {"yes": "true", "no": "false"}
    if "None" in kind and text.lower() in ("", "none"):
        return None
    base = {"bool": bool, "int": int, "float": float}.get(kind.removesuffix(" | None"))
    if base is None:
        return text
    try:
        return msgspec.convert(words.get(text.lower(), text) if base is bool else text.strip(), base, strict=False)
    except msgspec.ValidationError:
        return text  # refused by BrokerConfig, by name


KINDS = checks.kinds_of(BrokerConfig)
# Those that are checked by their annotation; the others of auto-scaling, by the policy.
_BOUNDED = {
    key: kind
    for key, kind in KINDS.items()
    if checks.bounds_of(kind)
    or ((checks.plain(kind) == "bool" or checks.is_choice(kind)) and key not in _POLICY_KEYS.values())
}
_FIELDS = {key: checks.plain(kind) for key, kind in KINDS.items()}
_FIELDS |= dict.fromkeys((f"{secret}_file" for secret in _SECRETS), "str | None")
# Keys that may be text: {key: parser}.
_TEXTS: dict[str, Callable[[str], float | None]] = {
    **dict.fromkeys(
        (key for key, kind in _FIELDS.items() if kind.startswith("float") and "msg_rate" not in key), seconds
    ),
    **dict.fromkeys(
        (key for key, kind in KINDS.items() if "bytes_rate" in key or checks.bounds_of(kind).get("unit") == "bytes"),
        byte_count,
    ),
    **dict.fromkeys((key for key, kind in KINDS.items() if checks.bounds_of(kind).get("unit") == "share"), share),
}
