"""`TopicFilter`: selects topics of a namespace by properties and name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from engine.errors import InvalidArgumentError, UnsupportedError
from engine.limits import PROPERTIES_SIZE_MAX, TOPIC_PATTERN_MEMORY_MAX, TOPIC_PATTERN_SIZE_MAX

_NO_RE2 = "a pattern of topics needs the package google-re2 where the broker runs: pip install 'engine[patterns]'"


class TopicFilter:
    """Topics that have all of `properties`, and whose own name (without tenant and namespace) fully matches `pattern`
    and is in `among`; None: any. Filters with the same conditions are equal. Raises InvalidArgumentError;
    UnsupportedError for a pattern without the package for it.

    Patterns are RE2's: linear in time, without back-references and look-around.
    """

    __slots__ = ("_match", "among", "pattern", "properties")

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        pattern: str | None = None,
        among: frozenset[str] | None = None,
    ) -> None:
        self.properties = frozenset(_checked(properties or {}).items())
        self.pattern = pattern
        self.among = among
        self._match = None if pattern is None else _compiled(pattern)

    def within(self, among: frozenset[str] | None) -> TopicFilter:
        """The same conditions, of these topics; None: of any."""
        if among == self.among:
            return self
        found = TopicFilter(pattern=self.pattern, among=among)
        found.properties = self.properties
        return found

    def passes(self, local: str, properties: Mapping[str, str]) -> bool:
        """Whether a topic of that own name, with these properties, is selected."""
        if self.properties and not self.properties <= properties.items():
            return False
        if self.among is not None and local not in self.among:
            return False
        return self._match is None or self._match(local) is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicFilter):
            return NotImplemented
        return (self.properties, self.pattern, self.among) == (other.properties, other.pattern, other.among)

    def __hash__(self) -> int:
        return hash((self.properties, self.pattern, self.among))


def _checked(properties: Mapping[str, str]) -> Mapping[str, str]:
    pairs: Iterable[tuple[Any, Any]] = properties.items() if isinstance(properties, Mapping) else [(None, None)]
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in pairs):
        raise InvalidArgumentError(f"properties must be a mapping of text to text, got {properties!r:.80}")
    if (size := sum(len(k) + len(v) for k, v in properties.items())) > PROPERTIES_SIZE_MAX:
        raise InvalidArgumentError(f"properties must have at most {PROPERTIES_SIZE_MAX} characters, got {size}")
    return properties


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> Callable[[str], Any]:
    if not isinstance(pattern, str):
        raise InvalidArgumentError(f"pattern must be text, got {type(pattern).__name__}")
    if len(pattern) > TOPIC_PATTERN_SIZE_MAX:
        raise InvalidArgumentError(f"pattern must have at most {TOPIC_PATTERN_SIZE_MAX} characters, got {len(pattern)}")
    try:
        import re2  # slow to load, and seldom needed
    except ImportError as e:
        raise UnsupportedError(_NO_RE2) from e
    options = re2.Options()
    options.max_mem = TOPIC_PATTERN_MEMORY_MAX
    options.log_errors = False
    try:
        found: Callable[[str], Any] = re2.compile(pattern, options).fullmatch
        return found
    except (re2.error, UnicodeEncodeError) as e:
        reason = e.args[0] if isinstance(e, re2.error) and e.args else e
        why = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidArgumentError(f"pattern must be an RE2 pattern, got {pattern!r}: {why}") from e
