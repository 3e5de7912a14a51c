"""`Operation`: one operation of the admin API, and how a request and its answer are written and read."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from engine.errors import CorruptionError, EngineError, InvalidArgumentError, ProtocolError
from engine.model.admin_parameters import Parameter, Where
from engine.model.autoscale import AutoScalePolicyOverride

R = TypeVar("R")

_FORMS: dict[type, str] = {dict: "a JSON object", list: "a JSON array", str: "text"}
NO_BODY: Any = msgspec.UNSET  # a request without one


class Leader(enum.Enum):
    """Which broker carries an operation out."""

    ANY = enum.auto()
    PREFERRED = enum.auto()  # the topic's leader if it answers, else any
    NEEDED = enum.auto()  # the topic's leader alone


@dataclass(frozen=True)
class Result(Generic[R]):
    """What an operation answers with. `schema`: the type of the JSON; None: none, or text."""

    annotation: str  # of the Python method
    kind: type
    schema: Any = None

    @property
    def nothing(self) -> bool:
        """Whether the answer is empty."""
        return self.kind is type(None)

    def to_json(self, value: Any) -> Any:
        """The body of the answer."""
        return value

    def of_json(self, answer: Any) -> R:
        """Undo to_json(). Raises ProtocolError."""
        if self.nothing:
            answer = None
        elif not isinstance(answer, self.kind):
            form = _FORMS[self.kind]
            raise ProtocolError(f"the admin API must answer with {form}, got {answer!r:.80}")
        found: R = answer
        return found


class OverridesResult(Result[dict[str, Any]]):
    """What of the auto-scale policy is overridden: by the specification's names in JSON."""

    def to_json(self, value: Any) -> Any:
        """By the specification's names."""
        return AutoScalePolicyOverride.of(value).to_json()

    def of_json(self, answer: Any) -> dict[str, Any]:
        """By our names. What only a newer broker knows is left out."""
        try:
            return AutoScalePolicyOverride.of_json(super().of_json(answer)).to_mapping()
        except (InvalidArgumentError, CorruptionError) as e:
            raise ProtocolError(f"the admin API must answer with an auto-scale policy: {e}") from e


@dataclass(frozen=True)
class Request:
    """An operation as HTTP: `path` is quoted, `body` JSON or NO_BODY."""

    verb: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    body: Any = NO_BODY


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation(Generic[R]):
    """A row of the table `admin_operations`."""

    name: str  # of the method and of its handler; operationId
    http: str  # verb and path, with its parts as {names}
    parameters: tuple[Parameter, ...] = ()  # in the order of the method's
    result: Result[R]
    summary: str  # first line of the docstring, and in the description of the API
    details: str = ""  # the rest of the docstring; "": the errors
    errors: tuple[type[EngineError], ...] = ()  # besides those that every operation may raise
    leader: Leader = Leader.ANY
    leader_call: tuple[str, Mapping[str, Any]] | None = None  # what a leader is asked for instead, with more arguments
    refusal: int | None = None  # a status whose body is that of an answer
    method: bool = True  # whether clients have one
    at_any_time: bool = False  # answered also while the broker starts or closes
    without_token: bool = False
    no_fields: bool = False  # a body that has any is refused

    @property
    def verb(self) -> str:
        """As of `http`, "PUT /a/{b}"."""
        return self.http.partition(" ")[0]

    @property
    def path(self) -> str:
        """As of `http`: with its parts as {names}."""
        return self.http.partition(" ")[2]

    @property
    def leader_method(self) -> str:
        """What a topic's leader is asked for; other brokers may be of other versions."""
        return self.name if self.leader_call is None else self.leader_call[0]

    @property
    def leader_arguments(self) -> Mapping[str, Any]:
        """With these arguments, besides its own."""
        return {} if self.leader_call is None else self.leader_call[1]

    @property
    def docstring(self) -> str:
        """Of its method; without details it has the errors that are the operation's own."""
        raises = f"Raises {', '.join(kind.__name__ for kind in self.errors)}." if self.errors else ""
        return f"{self.summary}\n\n{inspect.cleandoc(self.details) or raises}".strip()

    def among(self, *places: Where) -> list[Parameter]:
        """The parameters that travel there."""
        return [parameter for parameter in self.parameters if parameter.where in places]

    @property
    def fields(self) -> list[Parameter]:
        """Of the body, where it is an object of fields."""
        return self.among(Where.FIELD, Where.QUERY_OR_FIELD)

    @property
    def takes_body(self) -> bool:
        """Whether a body is looked at."""
        return self.no_fields or any(p.where not in (Where.PATH, Where.QUERY) for p in self.parameters)

    def check(self, *values: Any) -> dict[str, Any]:
        """The arguments by name, in their plain form; `values` in the order of the parameters. InvalidArgumentError."""
        given = dict(zip((p.name for p in self.parameters), values, strict=True))
        for p in self.parameters:
            if p.same_as and given[p.name] is None:
                given[p.name] = given[p.same_as]
        return {p.name: p.check(given[p.name]) for p in self.parameters}

    # -- as HTTP -------------------------------------------------------------------------------------------------------

    def request(self, arguments: Mapping[str, Any]) -> Request:
        """The request that asks for it, of checked arguments."""
        path, query = self.path, []
        fields: dict[str, Any] = {}
        body = NO_BODY
        for p in self.parameters:
            value = arguments[p.name]
            if p.where is Where.PATH:
                for part, text in zip(p.parts, p.kind.texts(value), strict=True):
                    path = path.replace(f"{{{part}}}", quote(text, safe=""), 1)
            elif p.where is Where.BODY:
                body = p.kind.to_json(value)
            elif p.where is Where.FIELD and (value is not None or p.kind.nullable):
                fields[p.key] = p.kind.to_json(value)
            elif value is not None:
                query += [(p.key, text) for text in p.kind.texts(value)]
        if self.among(Where.FIELD):
            body = fields
        return Request(self.verb, path, query, body)

    def read(self, parts: Mapping[str, str], query: Callable[[str], Sequence[str]], body: Any) -> dict[str, Any]:
        """The arguments of a request: parts of its path, values of its query by name, and the JSON of its body.

        Raises InvalidArgumentError for a value of another type, and for a field that is unknown or missing; handlers
        check the values.
        """
        fields = self._fields(body) if self.fields or self.no_fields else {}
        return {p.name: self._read(p, parts, query, body, fields) for p in self.parameters}

    def _read(
        self,
        p: Parameter,
        parts: Mapping[str, str],
        query: Callable[[str], Sequence[str]],
        body: Any,
        fields: dict[str, Any],
    ) -> Any:
        if p.where is Where.PATH:
            return p.kind.of_texts(p.name, [parts[part] for part in p.parts])
        if p.where is Where.BODY:
            return p.kind.of_json("the body", p.kind.empty() if body is NO_BODY else body)
        if p.where is Where.FIELD:
            return self._field(p, fields)
        texts = query(p.key)
        if p.where is Where.QUERY:
            return (
                p.kind.of_texts(f"query parameter {p.key}", texts) if texts else _default(p, f"query parameter {p.key}")
            )
        return _said_once(p, texts, fields)

    def _fields(self, body: Any) -> dict[str, Any]:
        """The body's fields, each of its type, or None for null."""
        body = {} if body is NO_BODY else body
        if not isinstance(body, dict):
            raise InvalidArgumentError(f"the body must be a JSON object, got {body!r:.80}")
        kinds = {p.key: p.kind for p in self.fields}
        for name, value in body.items():
            if name not in kinds:
                known = f"{', '.join(kinds)} are known" if kinds else "nothing goes into this body"
                raise InvalidArgumentError(f"field {name!r:.80} is unknown; {known}")
            if value is not None:
                body[name] = kinds[name].of_json(f"field {name!r}", value)
        return body

    def _field(self, p: Parameter, fields: dict[str, Any]) -> Any:
        if p.key not in fields or (p.required and fields[p.key] is None and not p.kind.nullable):
            return _default(p, f"field {p.key!r}")
        return fields[p.key]


class AdminBackend(Protocol):
    """Carries out operations whose arguments are checked: the HTTP API, or a broker in the process."""

    async def call(self, operation: Operation[R], arguments: Mapping[str, Any]) -> R:
        """Carry it out, with its arguments by name. Raises what the operation raises."""

    async def close(self) -> None:
        """Release what it holds. Idempotent."""


def _default(p: Parameter, what: str) -> Any:
    if p.required:
        raise InvalidArgumentError(f"{what} is missing; it must be {p.kind.form}")
    return p.default


def _said_once(p: Parameter, texts: Sequence[str], fields: dict[str, Any]) -> Any:
    """What query and body say, which is one thing."""
    said = [p.kind.of_texts(f"query parameter {p.key}", [text]) for text in texts]
    said += [] if fields.get(p.key) is None else [fields[p.key]]
    if not said:
        return _default(p, f"query parameter {p.key}")
    if len(set(said)) > 1:
        raise InvalidArgumentError(f"{p.key} must be given once, got {' and '.join(map(str, said))}")
    return said[0]
