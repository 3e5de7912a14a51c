"""`ProxyConfig`: the settings of a proxy, from keywords and a TOML file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from engine.aio.memory_limiter import MemoryLimit
from engine.broker.settings import checks
from engine.broker.settings.checks import Count, Interval, ListMemory, Timeout
from engine.broker.settings.file import check_known, override, read_secrets, read_section, snake_case
from engine.errors import InvalidArgumentError, InvalidConfigurationError
from engine.limits import (
    CONNECTIONS_MAX,
    HANDSHAKE_S_MAX,
    MIB,
    TOPIC_LIST_MEMORY_MAX,
    TOPIC_LIST_QUEUE_MAX,
    TOPIC_LIST_TIMEOUT_S,
)
from engine.wire.url import normal_url

# Names of the specification: (our field, factor).
SPECIFICATION_NAMES = {
    "maxTopicListInFlightHeapMemSizeMB": ("topic_list_heap_max", MIB),
    "maxTopicListInFlightDirectMemSizeMB": ("topic_list_direct_max", MIB),
    "maxTopicListInFlightHeapMemSizePermitsAcquireTimeoutMillis": ("topic_list_heap_timeout", 0.001),
    "maxTopicListInFlightDirectMemSizePermitsAcquireTimeoutMillis": ("topic_list_direct_timeout", 0.001),
    "maxTopicListInFlightHeapMemSizePermitsAcquireQueueSize": ("topic_list_heap_queue_max", 1),
    "maxTopicListInFlightDirectMemSizePermitsAcquireQueueSize": ("topic_list_direct_queue_max", 1),
}

SECRETS = ("auth_token", "broker_token")  # each may be in a file named by `<key>_file`


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """Sizes are bytes, times seconds. Raises InvalidConfigurationError naming the key.

    `brokers`: their service URLs; any of them serves clients that request no particular one. `allow`: further ones
    that clients may request, as URLs in which `*` stands for any text without `:`, and `:*` for any port. Brokers that
    a broker names need not be listed.
    """

    brokers: tuple[str, ...]
    allow: tuple[str, ...] = ()
    broker_admin: str | None = None  # base URL that the admin API is relayed to; None: as advertised by a broker
    # Towards the brokers. Without a token of its own the proxy passes the client's.
    broker_token: str | None = field(default=None, repr=False)
    broker_tls_ca: str | None = None  # a PEM file; enables TLS towards the brokers
    broker_tls_cert: str | None = None  # shown to the brokers: the proxy's own proof, in place of broker_token
    broker_tls_key: str | None = None
    # Whether it says to the brokers for which client each connection is; its own role needs the right `proxy` there.
    # A client is then what its token says to a broker or, without one, what its certificate says here.
    speaks_for_clients: bool = False
    # Towards the clients.
    auth_token: str | None = field(default=None, repr=False)
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None  # signs certificates of clients, which name their roles
    tls_client_role: Literal["subject", "san"] = "subject"  # where: its common name, or "san", its one other name
    tls_client_required: bool = False  # whether a connection without a certificate is refused
    insecure: bool = False  # may listen on addresses reachable from other machines without a token
    audit_log: str | None = None  # what is denied and changed here, as JSON lines: a file, or "-" for standard output
    admin_hosts: tuple[str, ...] = ()  # names allowed in Host headers of the HTTP port, besides addresses
    admin_url: str | None = None  # advertised to clients; None: the address that they dialled
    cluster_name: str = "standalone"  # in metrics: the brokers behind the proxy
    connections_max: Annotated[int, Meta(ge=1, le=1_000_000)] = CONNECTIONS_MAX
    handshake_timeout: Interval = HANDSHAKE_S_MAX
    # Topic lists (PIP-442).
    topic_list_heap_max: ListMemory = TOPIC_LIST_MEMORY_MAX
    topic_list_direct_max: ListMemory = TOPIC_LIST_MEMORY_MAX
    topic_list_heap_timeout: Timeout = TOPIC_LIST_TIMEOUT_S
    topic_list_direct_timeout: Timeout = TOPIC_LIST_TIMEOUT_S
    topic_list_heap_queue_max: Count = TOPIC_LIST_QUEUE_MAX
    topic_list_direct_queue_max: Count = TOPIC_LIST_QUEUE_MAX

    def __post_init__(self) -> None:
        object.__setattr__(self, "brokers", _urls("brokers", self.brokers))
        if not self.brokers:
            raise InvalidConfigurationError("brokers must be the service URL of at least one broker, got none")
        if isinstance(self.allow, str) or not all(isinstance(text, str) for text in self.allow):
            raise InvalidConfigurationError(f"allow must be a list of service URLs, got {self.allow!r:.200}")
        object.__setattr__(self, "allow", tuple(self.allow))
        object.__setattr__(self, "admin_hosts", checks.listed(self.admin_hosts))
        for key, wanted in self._wrong().items():
            if wanted:
                given = "text that is not" if "token" in key else f"{getattr(self, key)!r:.200}"
                raise InvalidConfigurationError(f"{key} must be {wanted}, got {given}")
        if self.speaks_for_clients and self.auth_token is not None:
            raise InvalidConfigurationError(
                "auth_token must be unset with speaks_for_clients, where brokers check the tokens of clients, got one"
            )
        if self.broker_token is not None and self.auth_token is None and not self.speaks_for_clients:
            raise InvalidConfigurationError(
                "auth_token must be set with broker_token, which every client of the proxy would otherwise use, got "
                "none; or set neither, and clients pass the brokers' token themselves"
            )

    def _wrong(self) -> dict[str, str]:
        """For every key: what it must be, or "" when it is valid."""
        return {key: checks.number(getattr(self, key), kind) for key, kind in _NUMBERS.items()} | {
            "broker_admin": checks.printable(self.broker_admin, "http"),
            "broker_token": checks.printable(self.broker_token),
            "broker_tls_ca": checks.printable(self.broker_tls_ca),
            "broker_tls_cert": checks.pair(self.broker_tls_cert, self.broker_tls_key, "broker_tls_key"),
            "broker_tls_key": checks.pair(self.broker_tls_key, self.broker_tls_cert, "broker_tls_cert"),
            "speaks_for_clients": checks.boolean(self.speaks_for_clients),
            "auth_token": checks.printable(self.auth_token),
            "tls_cert": checks.pair(self.tls_cert, self.tls_key, "tls_key"),
            "tls_key": checks.pair(self.tls_key, self.tls_cert, "tls_cert"),
            "tls_client_ca": checks.beside(self.tls_client_ca, self.speaks_for_clients or None, "speaks_for_clients"),
            "tls_client_role": checks.choice(self.tls_client_role, ("subject", "san")),
            "tls_client_required": checks.only_beside(self.tls_client_required, self.tls_client_ca, "tls_client_ca"),
            "insecure": checks.boolean(self.insecure),
            "audit_log": checks.path(self.audit_log),
            "admin_hosts": checks.hosts(self.admin_hosts),
            "admin_url": checks.printable(self.admin_url, "http"),
            "cluster_name": checks.printable(self.cluster_name),
        }

    @property
    def authenticates(self) -> bool:
        """Whether clients must prove an identity."""
        return self.auth_token is not None or self.speaks_for_clients

    @property
    def heap(self) -> MemoryLimit:
        """The limit of lists waiting in the proxy."""
        return MemoryLimit(self.topic_list_heap_max, self.topic_list_heap_timeout, self.topic_list_heap_queue_max)

    @property
    def direct(self) -> MemoryLimit:
        """The limit of lists queued for sockets."""
        return MemoryLimit(self.topic_list_direct_max, self.topic_list_direct_timeout, self.topic_list_direct_queue_max)

    @classmethod
    def load(cls, path: str | Path | None = None, **overrides: Any) -> ProxyConfig:
        """Defaults, then the file, then those of `overrides` that are not None; later ones win.

        The file is TOML, flat or under [proxy], in snake case or the specification's names. `auth_token_file` and
        `broker_token_file` are paths of files that hold the tokens. Raises InvalidConfigurationError naming the key, or
        the file when it cannot be read.
        """
        values = {} if path is None else _named(read_section(Path(path), "proxy"), f"key in {path}")
        override(values, {key: value for key, value in overrides.items() if value is not None}, *SECRETS)
        return cls(**{"brokers": (), **read_secrets(values, *SECRETS)})


KINDS = checks.kinds_of(ProxyConfig)
_NUMBERS = {key: kind for key, kind in KINDS.items() if "ge" in checks.bounds_of(kind)}


def setting(given: str) -> tuple[str, float | None]:
    """Our name of a key, and the factor from the specification's unit to ours; None: the name is ours."""
    return SPECIFICATION_NAMES.get(given) or (snake_case(given), None)


def _named(values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The values under our names and in our units."""
    named: dict[str, Any] = {}
    known = {f.name for f in dataclasses.fields(ProxyConfig)} | {f"{key}_file" for key in SECRETS}
    check_known({given: setting(given)[0] for given in values}, known, what)
    for given, value in values.items():
        key, factor = setting(given)
        if factor is not None:
            if isinstance(value, bool) or not isinstance(value, int) or not abs(value) < 2**62:
                raise InvalidConfigurationError(f"{given} must be a whole number, got {value!r:.80}")
            value *= factor
        named[key] = tuple(value) if isinstance(value, list) else value
    return named


def _urls(key: str, urls: Any) -> tuple[str, ...]:
    """The URLs with explicit ports."""
    if isinstance(urls, str) or not isinstance(urls, tuple | list):
        raise InvalidConfigurationError(f"{key} must be a list of service URLs, got {urls!r:.200}")
    try:
        return tuple(normal_url(url) for url in urls)
    except InvalidArgumentError as e:
        raise InvalidConfigurationError(f"{key}: {e}") from e
