"""The parameters of admin operations: their kinds, and where they travel in an HTTP request.

A kind knows the three forms of a value: the argument of a Python method, text in a path or a query, and JSON in a
body. `check` makes the second and third of the first possible: what it returns is plain, and `texts` and `to_json`
write it; `of_texts` and `of_json` read it on the other side.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from engine.errors import InvalidArgumentError
from engine.model.admin_answers import AutoScaleOverrides, LimitsSaid, NamespacePolicy, TopicPolicy
from engine.model.autoscale import JSON_NAMES, AutoScalePolicyOverride
from engine.model.checks import check_choice, check_flag, check_number, check_properties, milliseconds
from engine.model.limits import check_limited
from engine.model.names import SEGMENT_SCHEME, TOPIC_SCHEME, SegmentName, TopicName, check_name, parse_namespace
from engine.model.rights import check_resource, check_role
from engine.model.transactions import parse_id

ID_MAX = 2**63 - 1
SECONDS_MAX = 1e11  # 3,000 years; in milliseconds far below 2**63
POSITIONS = ("earliest", "latest")
KINDS = ("stream", "queue")  # of subscriptions
REQUIRED: Any = object()  # the default of a parameter that has none

_DIGITS_MAX = 18  # an id is a 64-bit number


class Kind:
    """Text. Methods that read or check raise InvalidArgumentError, naming the parameter `what`."""

    annotation = "str"  # of the Python parameter
    json: Any = str  # its type in a body
    form = "text"  # the same, for people
    parts: tuple[str, ...] = ()  # of a path, where it takes several
    nullable = False  # whether null is one of its values, and no field that is missing
    empty: type = dict  # of what a body that is not there stands for, where the parameter is the body

    @property
    def schema(self) -> Any:
        """The type of the value in a request, with its limits."""
        return self.json

    @property
    def query_schema(self) -> Any:
        """The same in a query."""
        return self.schema

    def check(self, what: str, value: Any) -> Any:
        """The plain form of an argument."""
        if not isinstance(value, str) or not value:
            raise InvalidArgumentError(f"{what} must be text, got {value!r:.80}")
        return value

    def texts(self, value: Any) -> list[str]:
        """As parts of a path, or as values of a query parameter."""
        return [str(value)]

    def of_texts(self, what: str, texts: Sequence[str]) -> Any:
        """Undo texts()."""
        return texts[0]

    def to_json(self, value: Any) -> Any:
        """As a field of a body, or as a whole body."""
        return value

    def of_json(self, what: str, value: Any) -> Any:
        """Undo to_json()."""
        try:
            return msgspec.convert(value, self.json)
        except msgspec.ValidationError:
            raise InvalidArgumentError(f"{what} must be {self.form}, got {value!r:.80}") from None


class Topic(Kind):
    """A topic in any of its written forms; "topic://…" when it is checked."""

    parts = ("tenant", "namespace", "topic")

    def check(self, what: str, value: Any) -> str:
        return str(TopicName.parse(value))

    def texts(self, value: Any) -> list[str]:
        name = TopicName.parse(value)
        return [name.tenant, name.namespace, name.local]

    def of_texts(self, what: str, texts: Sequence[str]) -> str:
        return TOPIC_SCHEME + "/".join(texts)


class Segment(Kind):
    """ "segment://…"."""

    parts = ("tenant", "namespace", "topic", "descriptor")

    def check(self, what: str, value: Any) -> str:
        return str(SegmentName.parse(value))

    def texts(self, value: Any) -> list[str]:
        name = SegmentName.parse(value)
        return [name.topic.tenant, name.topic.namespace, name.topic.local, name.descriptor]

    def of_texts(self, what: str, texts: Sequence[str]) -> str:
        return SEGMENT_SCHEME + "/".join(texts)


class SegmentText(Kind):
    """The same in one piece, as in a query."""

    def check(self, what: str, value: Any) -> str:
        return str(SegmentName.parse(value))


class Namespace(Kind):
    """ "tenant/namespace"."""

    parts = ("tenant", "namespace")

    def check(self, what: str, value: Any) -> str:
        return "/".join(parse_namespace(value))

    def texts(self, value: str) -> list[str]:
        return value.split("/")

    def of_texts(self, what: str, texts: Sequence[str]) -> str:
        return "/".join(texts)


class Subscription(Kind):
    """A subscription's name."""

    def check(self, what: str, value: Any) -> str:
        return check_name(value, "subscription name")


class Transaction(Kind):
    """A transaction's id."""

    def check(self, what: str, value: Any) -> str:
        parse_id(value)
        return str(value)


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number from `low` to `high`."""

    low: int = 0
    high: int = ID_MAX
    annotation = "int"
    json = int
    form = "a whole number"

    @property
    def schema(self) -> Any:
        return Annotated[int, msgspec.Meta(ge=self.low, le=self.high)]

    def check(self, what: str, value: Any) -> int:
        check_number(what, value, self.low, self.high, whole=True)
        return int(value)

    def of_texts(self, what: str, texts: Sequence[str]) -> int:
        text = texts[0]
        if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
            raise InvalidArgumentError(f"{what} must be a whole number such as 3, got {text!r:.80}")
        return int(text)


class Offset(Whole):
    """An offset of a segment."""

    def check(self, what: str, value: Any) -> int:
        return super().check(f"the offset `{what}`", value)


class Seconds(Kind):
    """A number of seconds, 0 or more."""

    annotation = "float"
    json = float
    form = "a number of seconds"

    @property
    def schema(self) -> Any:
        return Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]

    def check(self, what: str, value: Any) -> float:
        check_number(what, value, 0, SECONDS_MAX)
        return float(value)

    def of_texts(self, what: str, texts: Sequence[str]) -> float:
        try:
            return float(texts[0])
        except ValueError:
            raise InvalidArgumentError(f"{what} must be {self.form}, got {texts[0]!r:.80}") from None


class Flag(Kind):
    """True or false."""

    annotation = "bool"
    json = bool

    def check(self, what: str, value: Any) -> bool:
        check_flag(what, value)
        return bool(value)

    def texts(self, value: Any) -> list[str]:
        return ["true"] if value else []

    def of_texts(self, what: str, texts: Sequence[str]) -> bool:
        if texts[0] not in ("true", "false"):
            raise InvalidArgumentError(f"{what} must be true or false, got {texts[0]!r:.80}")
        return texts[0] == "true"


@dataclass(frozen=True)
class Choice(Kind):
    """One of several words."""

    choices: tuple[str, ...]

    @property
    def schema(self) -> Any:
        return Literal[self.choices]

    def check(self, what: str, value: Any) -> str:
        return check_choice(what, value, self.choices)


class Instant(Kind):
    """ "earliest", "latest", or an aware datetime; milliseconds since 1970 when it is checked."""

    annotation = 'Literal["earliest", "latest"] | datetime'
    json = int | str
    form = '"earliest", "latest" or milliseconds'

    @property
    def schema(self) -> Any:
        return Literal["earliest", "latest"] | int

    def check(self, what: str, value: Any) -> str | int:
        if isinstance(value, datetime):
            return milliseconds(value)
        if value not in POSITIONS:
            raise InvalidArgumentError(f"{what} must be earliest, latest or an aware datetime, got {value!r:.80}")
        return str(value)


class Setting(Kind):
    """A number, or text with a unit."""

    annotation = "str | float"

    def check(self, what: str, value: Any) -> str | float:
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            raise InvalidArgumentError(f"{what} must be a number, or text with a unit, got {value!r:.80}")
        return value


class Properties(Kind):
    """Text by text; "name=value" in a query."""

    annotation = "Mapping[str, str]"
    json = dict[str, str]
    form = "an object of text by text"

    @property
    def query_schema(self) -> Any:
        return list[str]

    def check(self, what: str, value: Any) -> Mapping[str, str]:
        check_properties(value)
        return dict(value)

    def texts(self, value: Mapping[str, str]) -> list[str]:
        return [f"{name}={text}" for name, text in value.items()]

    def of_texts(self, what: str, texts: Sequence[str]) -> dict[str, str]:
        for text in texts:
            if "=" not in text:
                raise InvalidArgumentError(f"{what} must be name=value, got {text!r:.80}")
        pairs = (text.partition("=") for text in texts)
        return {name: value for name, _, value in pairs}


class Subscriptions(Kind):
    """Names of subscriptions."""

    annotation = "Sequence[str]"
    json = list[str]
    form = "a JSON array of subscription names"
    empty = list

    def check(self, what: str, value: Any) -> list[str]:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise InvalidArgumentError(f"{what} must be a list of names, got {value!r:.80}")
        return [check_name(name, "subscription name") for name in value]

    def to_json(self, value: Sequence[str]) -> list[str]:
        return list(value)


class Names(Kind):
    """Names of roles or rights."""

    annotation = "Sequence[str]"
    json = list[str]
    form = "a JSON array of names"

    def check(self, what: str, value: Any) -> list[str] | None:
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise InvalidArgumentError(f"{what} must be a list of names, got {value!r:.80}")
        return [check_name(name, what) for name in value]

    def to_json(self, value: Sequence[str]) -> list[str]:
        return list(value)


class NamesOrAny(Names):
    """Likewise; None: any."""

    annotation = "Sequence[str] | None"
    json = list[str] | None
    form = "a JSON array of names, or null for any"
    nullable = True

    def to_json(self, value: Sequence[str] | None) -> Any:
        return None if value is None else list(value)


class TenantName(Kind):
    """A tenant's name."""

    def check(self, what: str, value: Any) -> str:
        return check_name(value, "tenant")


class Role(Kind):
    """A role's name."""

    def check(self, what: str, value: Any) -> str:
        return check_role(value)


class Resource(Kind):
    """ "tenant", "tenant/namespace", "tenant/namespace/topic", or "*" for the cluster."""

    def check(self, what: str, value: Any) -> str:
        return check_resource(value)


class Policies(Kind):
    """A namespace's policies, by their names in Python, also in JSON."""

    annotation = "Mapping[str, Any]"
    json = dict[str, Any]
    form = "a JSON object"

    @property
    def schema(self) -> Any:
        return NamespacePolicy

    def check(self, what: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise InvalidArgumentError(f"{what} must be a mapping by their names, got {type(value).__name__}")
        return dict(value)


class LimitedResource(Kind):
    """What may have limits: a resource, "role:NAME", or "role:*"."""

    def check(self, what: str, value: Any) -> str:
        return check_limited(value)


class Limits(Policies):
    """Limits by their names in Python, also in JSON."""

    @property
    def schema(self) -> Any:
        return LimitsSaid


class TopicPolicies(Policies):
    """A topic's policies, by their names in Python, also in JSON."""

    @property
    def schema(self) -> Any:
        return TopicPolicy


class Overrides(Policies):
    """What of the auto-scale policy is overridden; in JSON by the specification's names."""

    @property
    def schema(self) -> Any:
        return AutoScaleOverrides

    def check(self, what: str, value: Any) -> dict[str, Any]:
        return AutoScalePolicyOverride.of(value).to_mapping()

    def to_json(self, value: Mapping[str, Any]) -> dict[str, Any]:
        return AutoScalePolicyOverride.of(value).to_json()

    def of_json(self, what: str, value: Any) -> dict[str, Any]:
        override = AutoScalePolicyOverride.of_json(super().of_json(what, value))
        for name in override.extra:
            raise InvalidArgumentError(f"auto-scale policy {name!r:.80} is unknown; known are {', '.join(JSON_NAMES)}")
        return override.to_mapping()


class Where(enum.Enum):
    """Where a parameter travels."""

    PATH = enum.auto()
    QUERY = enum.auto()
    FIELD = enum.auto()  # a field of the body, a JSON object
    QUERY_OR_FIELD = enum.auto()  # servers take both; clients send the first
    BODY = enum.auto()  # the whole body


@dataclass(frozen=True)
class Parameter:
    """Of an operation. `wire`: its name in the request, or that of the part of the path.

    `same_as`: None stands for the value of that parameter; only in Python, a request names both.
    """

    name: str
    kind: Kind
    where: Where
    wire: str = ""
    default: Any = REQUIRED
    keyword: bool = False
    same_as: str = ""
    says: str = ""  # what the description of the API says about it

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of its parts of the path."""
        return self.kind.parts or (self.wire or self.name,)

    @property
    def key(self) -> str:
        """Its name in a query or a body."""
        return self.wire or self.name

    @property
    def required(self) -> bool:
        """Whether every request names it."""
        return self.default is REQUIRED or bool(self.same_as)

    def check(self, value: Any) -> Any:
        """The plain form of an argument. Raises InvalidArgumentError."""
        return None if value is None and self.default is None else self.kind.check(self.name, value)
