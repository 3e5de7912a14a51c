"""The options of a query: read once, where Spark makes the source, and refused with the reason when they are wrong.

Names are those of Spark's Kafka source wherever they mean the same. Spark hands every value over as text, and names in
any case.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_URL = "engine://127.0.0.1:6650"

CONNECTION_OPTIONS = ("url", "token", "tls", "tlsCa", "tlsCert", "tlsKey", "tlsCheckHostname", "objects")
_TOPICS = ("topic", "subscribe", "subscribePattern", "namespace", "topicProperties", "path")
_PLACES = (
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
)
_READING = (
    "minPartitions",
    "maxRecordsPerPartition",
    "keyAligned",
    "failOnDataLoss",
    "includeHeaders",
    "includeSequenceIds",
    "decryptionKeys",
)
_STREAMING = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
READ_OPTIONS = (*CONNECTION_OPTIONS, *_TOPICS, *_PLACES, *_READING, *_STREAMING)
_WRITING = ("topic", "path", "exactlyOnce", "transactionName", "transactionTimeout", "encryptionKeys")
_SPARKS_OWN = ("checkpointLocation", "queryName")  # of a streaming query, which Spark hands on
WRITE_OPTIONS = (*CONNECTION_OPTIONS, *_WRITING, *_SPARKS_OWN)

TRANSACTION_TIMEOUT_S = 300.0

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


KeyPairs = tuple[tuple[str, str], ...]  # name, and PEM or the path of a file


def as_keys(pairs: KeyPairs) -> dict[str, str | Path] | None:
    """As clients take them; None for none."""
    return {name: key if key.lstrip().startswith("-----BEGIN") else Path(key) for name, key in pairs} or None


class Texts:
    """The options as Spark hands them over, by names in any case; asks for what they mean."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        names = {name.lower(): name for name in known}
        unknown = [name for name in options if name.lower() not in names]
        if unknown:
            raise ValueError(f"an option must be one of {', '.join(sorted(set(known)))}, got {unknown[0]!r}")
        self._values = {names[name.lower()]: value for name, value in options.items()}

    def text(self, name: str) -> str | None:
        """As it was given, None where it was not."""
        return self._values.get(name)

    def flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name, str(default)).strip().lower()
        if value not in ("true", "false"):
            raise ValueError(f"{name} must be true or false, got {value!r}")
        return value == "true"

    def count(self, name: str) -> int | None:
        """A whole number from 1."""
        value = self._values.get(name)
        if value is not None and (not value.strip().isdecimal() or int(value) < 1):
            raise ValueError(f"{name} must be an int of at least 1, got {value!r}")
        return None if value is None else int(value)

    def seconds(self, name: str, default: float) -> float:
        """A duration such as 500ms, 30s or 15m."""
        value = self._values.get(name)
        if value is None:
            return default
        text = value.strip().lower()
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
        unit = _UNITS.get(text[len(number) :].strip() or "ms")
        try:
            return float(number) * _checked(unit)
        except ValueError:
            raise ValueError(f"{name} must be a duration such as 500ms, 30s or 15m, got {value!r}") from None

    def keys(self, name: str) -> KeyPairs:
        """Keys of encryption by name, from JSON: each as PEM text, or as the path of a file. No error shows a key."""
        value = self._values.get(name)
        if value is None:
            return ()
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found or not all(isinstance(v, str) for v in found.values()):
            raise ValueError(f'{name} must be JSON, {{"name": "PEM, or the path of a file"}}, got something else')
        return tuple(found.items())

    def mapping(self, name: str) -> dict[str, str]:
        """Text to text: JSON, or key=value, key=value."""
        value = self._values.get(name)
        if value is None:
            return {}
        try:
            found = json.loads(value) if value.lstrip().startswith("{") else dict(_pairs(value))
        except ValueError:
            found = None
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            raise ValueError(f'{name} must be {{"key": "value"}} or key=value,key=value, got {value!r}')
        return found


def _checked(unit: float | None) -> float:
    if unit is None:
        raise ValueError
    return unit


def _pairs(text: str) -> list[tuple[str, str]]:
    parts = [part.partition("=") for part in text.split(",")]
    if not all(separator for _, separator, _ in parts):
        raise ValueError
    return [(key.strip(), value.strip()) for key, _, value in parts]


@dataclass(frozen=True)
class Connection:
    """How to reach a broker. It travels to the executors, so certificates may be given as PEM text as well as files."""

    url: str = DEFAULT_URL
    token: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_check_hostname: bool = True
    objects: str | None = None

    @classmethod
    def read(cls, texts: Texts) -> Connection:
        given = any(texts.text(name) for name in ("tlsCa", "tlsCert", "tlsCheckHostname"))
        return cls(
            url=texts.text("url") or DEFAULT_URL,
            token=texts.text("token"),
            tls=texts.flag("tls", given),
            tls_ca=texts.text("tlsCa"),
            tls_cert=texts.text("tlsCert"),
            tls_key=texts.text("tlsKey"),
            tls_check_hostname=texts.flag("tlsCheckHostname", True),
            objects=texts.text("objects"),
        )

    def __repr__(self) -> str:
        return f"Connection({re.sub('//.*@', '//…@', self.url)!r})"  # and no secrets

    def tls_context(self) -> ssl.SSLContext | None:
        """None for a broker without TLS."""
        if not self.tls:
            return None
        pem = self.tls_ca is not None and self.tls_ca.lstrip().startswith("-----BEGIN")
        context = ssl.create_default_context(cafile=None if pem else self.tls_ca, cadata=self.tls_ca if pem else None)
        context.check_hostname = self.tls_check_hostname
        if self.tls_cert is not None:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        return context


@dataclass(frozen=True)
class Topics:
    """Which topics: named ones; or those of a namespace, whose own name a pattern matches and which have properties."""

    names: tuple[str, ...] = ()
    namespace: str | None = None
    pattern: str | None = None
    properties: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, texts: Texts) -> Topics:
        """Of the options. Raises ValueError unless exactly one way is chosen."""
        named = [n for n in ("topic", "subscribe", "path") if texts.text(n)]
        whole = [n for n in ("namespace", "subscribePattern", "topicProperties") if texts.text(n)]
        if len(named) + bool(whole) != 1:
            raise ValueError(
                "topics must be given in one way, by topic (or subscribe, several with commas), or by a namespace with "
                f"subscribePattern and topicProperties if wanted, got {', '.join(named + whole) or 'none'}"
            )
        if named:
            names = tuple(n.strip() for n in (texts.text(named[0]) or "").split(",") if n.strip())
            if not names:
                raise ValueError(f"{named[0]} must name a topic, got none")
            return cls(names=names)
        return cls(
            namespace=texts.text("namespace") or "public/default",
            pattern=texts.text("subscribePattern"),
            properties=tuple(texts.mapping("topicProperties").items()),
        )


@dataclass(frozen=True)
class ReadOptions:
    """Of a read, batch or streaming. Places are texts still; offsets.py reads them."""

    connection: Connection
    topics: Topics
    starting: Place
    ending: Place
    min_partitions: int | None
    max_records_per_partition: int | None
    key_aligned: bool
    fail_on_data_loss: bool
    include_headers: bool
    include_sequence_ids: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    decryption_keys: KeyPairs = field(default=(), repr=False)

    @property
    def limited(self) -> bool:
        """Whether a micro-batch has a most or a least."""
        return self.max_offsets_per_trigger is not None or self.min_offsets_per_trigger is not None

    @classmethod
    def read(cls, options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """Of what Spark hands over. Raises ValueError naming the option."""
        texts = Texts(options, READ_OPTIONS)
        read = cls(
            connection=Connection.read(texts),
            topics=Topics.read(texts),
            starting=Place.read(texts, "starting", "latest" if streaming else "earliest"),
            ending=Place.read(texts, "ending", "latest"),
            min_partitions=texts.count("minPartitions"),
            max_records_per_partition=texts.count("maxRecordsPerPartition"),
            key_aligned=texts.flag("keyAligned", streaming),
            fail_on_data_loss=texts.flag("failOnDataLoss", True),
            include_headers=texts.flag("includeHeaders", True),
            include_sequence_ids=texts.flag("includeSequenceIds", False),
            max_offsets_per_trigger=texts.count("maxOffsetsPerTrigger"),
            min_offsets_per_trigger=texts.count("minOffsetsPerTrigger"),
            max_trigger_delay_s=texts.seconds("maxTriggerDelay", 900.0),
            decryption_keys=texts.keys("decryptionKeys"),
        )
        wrong = _ends(texts) if streaming else [n for n in _STREAMING if texts.text(n)]
        if wrong:
            raise ValueError(f"{wrong[0]} must be given for {'batch' if streaming else 'streaming'} queries only")
        most, least = read.max_offsets_per_trigger, read.min_offsets_per_trigger
        if most is not None and least is not None and least > most:
            raise ValueError(f"minOffsetsPerTrigger must be at most maxOffsetsPerTrigger, {most}, got {least}")
        return read


def _ends(texts: Texts) -> list[str]:
    return [n for n in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp") if texts.text(n)]


@dataclass(frozen=True)
class Place:
    """Where to begin, or to end: text, and whether it tells times. Of several, the one that Kafka's source prefers."""

    option: str
    text: str
    times: bool = False

    @classmethod
    def read(cls, texts: Texts, side: str, default: str) -> Place:
        for option, times in (
            (f"{side}Timestamp", True),
            (f"{side}OffsetsByTimestamp", True),
            (f"{side}Offsets", False),
        ):
            if text := texts.text(option):
                return cls(option, text.strip(), times)
        return cls(f"{side}Offsets", default)


@dataclass(frozen=True)
class WriteOptions:
    """Of a write, batch or streaming. `topic` None: a column says it. `checkpoint`: the folder of a streaming query."""

    connection: Connection
    topic: str | None
    exactly_once: bool
    transaction_name: str | None
    transaction_timeout_s: float
    checkpoint: str | None = None
    encryption_keys: KeyPairs = field(default=(), repr=False)

    @classmethod
    def read(cls, options: Mapping[str, str]) -> WriteOptions:
        """Of what Spark hands over. Raises ValueError naming the option."""
        texts = Texts(options, WRITE_OPTIONS)
        if texts.text("topic") and texts.text("path"):
            raise ValueError("the topic must be given once, as topic or in save(), got both")
        read = cls(
            connection=Connection.read(texts),
            topic=texts.text("topic") or texts.text("path"),
            exactly_once=texts.flag("exactlyOnce", True),
            transaction_name=texts.text("transactionName"),
            transaction_timeout_s=texts.seconds("transactionTimeout", TRANSACTION_TIMEOUT_S),
            checkpoint=texts.text("checkpointLocation"),
            encryption_keys=texts.keys("encryptionKeys"),
        )
        if read.transaction_name is not None and not read.exactly_once:
            raise ValueError("exactlyOnce must be true with transactionName, got false")
        if not 1 <= read.transaction_timeout_s <= 86_400:
            raise ValueError(f"transactionTimeout must be from 1s to 24h, got {texts.text('transactionTimeout')!r}")
        return read
