"""Names of topics and segments, and their written forms.

Existing things keep their names: names are read, and looked up, by the rules of check_name(). New names must also pass
check_new_name(): such a name is what it looks like, on a terminal, in a shell, in a pattern.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from engine.errors import InvalidArgumentError
from engine.limits import NAME_SIZE_MAX
from engine.model.hashrange import HashRange
from engine.model.text import HIDDEN

TOPIC_SCHEME = "topic://"
CLASSIC_SCHEME = "persistent://"
SEGMENT_SCHEME = "segment://"
DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "default"
ROLE = "role:"  # begins the name of a role where limits are of it, or use of them
EACH_ROLE = "role:*"

_DESCRIPTOR = re.compile(r"([0-9a-f]{4})-([0-9a-f]{4})-(0|[1-9][0-9]{0,18})")
_CLASSIC = "persistent:"  # begins the local name of a classic topic; in metadata and paths: do not change
_FORMS = "write 'name', 'tenant/namespace/name' or 'topic://tenant/namespace/name'"
_FORBIDDEN = re.compile(r"[/\x00-\x1f\x7f]")
_PATTERN_CHARACTERS = "*>^$"  # in no new name, so that a pattern is never taken for a name
# Letters, marks and symbols without a visible form: fillers, the grapheme joiner, variation selectors, Braille's blank.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_NO_PATTERN = "; stream and queue consumers receive from all topics that match with namespace=…, pattern=…"


def check_name(part: str, what: str) -> str:
    """`part` itself, if it may name an existing tenant, namespace, topic, subscription or client.

    Raises InvalidArgumentError for an empty name, one with "/" or a control character, "." and "..", or one over 255
    bytes of UTF-8.
    """
    if not isinstance(part, str):
        raise InvalidArgumentError(f"{what} must be text, got {type(part).__name__}")
    if not part:
        right = _FORMS if what == "topic name" else "give it at least one character"
        raise InvalidArgumentError(f"{what} must not be empty: {right}")
    try:
        size = len(part.encode())
    except UnicodeEncodeError as e:
        raise InvalidArgumentError(f"{what} must be valid Unicode text, got {part!r}") from e
    if size > NAME_SIZE_MAX:
        raise InvalidArgumentError(f"{what} must have at most {NAME_SIZE_MAX} bytes of UTF-8, got {size}")
    if part in (".", ".."):
        raise InvalidArgumentError(f"{what} must not be {part!r}, which file systems reserve")
    if wrong := _FORBIDDEN.search(part):
        kind = "'/'" if wrong[0] == "/" else f"control character {wrong[0]!r}"
        raise InvalidArgumentError(f"{what} must have no {kind}, got {part!r}")
    return part


def check_new_name(part: str, what: str, *, pattern: bool = True) -> str:
    """`part` itself, if a new thing may have this name. `pattern`: whether characters of patterns are refused.

    Raises InvalidArgumentError for names that check_name() refuses, for white space, control, format, private and
    invisible characters, for a Unicode normal form other than C, for a leading "-", and for characters of patterns.
    """
    check_name(part, what)
    if part.isascii() and part.isalnum():
        return part
    for one in part:
        if one.isspace():
            raise _refused(what, "have no white space", part)
        if unicodedata.category(one) in HIDDEN:
            raise _refused(what, f"have no control, format or private characters (U+{ord(one):04X})", part)
        if _INVISIBLE.match(one):
            raise _refused(what, f"have no invisible characters (U+{ord(one):04X})", part)
    if part.startswith("-"):
        raise _refused(what, "not begin with '-', as options do", part)
    if (composed := unicodedata.normalize("NFC", part)) != part:
        raise _refused(what, f"be in Unicode normal form C, {composed!a}", part)
    if pattern and any(one in _PATTERN_CHARACTERS for one in part):
        raise _refused(what, f"have none of {' '.join(_PATTERN_CHARACTERS)}, as patterns do", part, _NO_PATTERN)
    return part


def _refused(what: str, rule: str, part: str, more: str = "") -> InvalidArgumentError:
    return InvalidArgumentError(f"the name of a new {what} must {rule}, got {part!a}{more}")


def check_property_names(properties: Mapping[str, str], what: str) -> None:
    """Raise InvalidArgumentError for a property's name with a control, format or private character."""
    for name in properties:
        if not name.isprintable() and (wrong := [one for one in name if unicodedata.category(one) in HIDDEN]):
            rule = f"must have no control, format or private characters (U+{ord(wrong[0]):04X})"
            raise InvalidArgumentError(f"the name of a property of a {what} {rule}, got {name!a:.80}")


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """`topic://tenant/namespace/local`.

    `persistent://tenant/namespace/name` is another topic, a classic one, whose `local` is "persistent:name".
    """

    tenant: str
    namespace: str
    local: str

    @classmethod
    def parse(cls, text: str | TopicName) -> TopicName:
        """Parse any of the written forms. Raises InvalidArgumentError."""
        if isinstance(text, TopicName):
            return text
        if not isinstance(text, str):
            raise InvalidArgumentError(f"topic name must be text, got {type(text).__name__}: {_FORMS}")
        classic = text.startswith(CLASSIC_SCHEME)
        rest = text.removeprefix(CLASSIC_SCHEME if classic else TOPIC_SCHEME)
        if "://" in rest:
            scheme = rest.split("://")[0]
            raise InvalidArgumentError(
                f"topic name {text!r}: scheme {scheme!r} is unknown, only topic:// and {CLASSIC_SCHEME} are; {_FORMS}"
            )
        parts = rest.split("/")
        if len(parts) == 1 and rest == text:
            parts = [DEFAULT_TENANT, DEFAULT_NAMESPACE, *parts]
        if len(parts) != 3:
            count = f"{len(parts)} part{'s' * (len(parts) != 1)} between its slashes"
            raise InvalidArgumentError(f"topic name {text!r} has {count}, not 3 or a name alone: {_FORMS}")
        for part, what in zip(parts, ("tenant", "namespace", "topic name"), strict=True):
            check_name(part, what if what == "topic name" else f"{what} of {text!r}")
        if classic:
            parts[2] = check_name(_CLASSIC + parts[2], "topic name")
        return cls(*parts)

    @property
    def classic(self) -> bool:
        """Whether it is a `persistent://` topic: one segment for ever, so that all its messages have one order."""
        return self.local.startswith(_CLASSIC) and self.local != _CLASSIC

    def __str__(self) -> str:
        if self.classic:
            return f"{CLASSIC_SCHEME}{self.tenant}/{self.namespace}/{self.local.removeprefix(_CLASSIC)}"
        return f"{TOPIC_SCHEME}{self.tenant}/{self.namespace}/{self.local}"

    def check(self) -> None:
        """Raise InvalidArgumentError unless a topic may have this name."""
        check_name(self.tenant, "tenant")
        check_name(self.namespace, "namespace")
        check_name(self.local, "topic name")

    def check_new(self) -> None:
        """Raise InvalidArgumentError unless a new topic may have this name."""
        check_new_name(self.tenant, "tenant")
        check_new_name(self.namespace, "namespace")
        check_new_name(self.local, "topic")

    def segment(self, hash_range: HashRange, segment_id: int) -> SegmentName:
        """The name of one of this topic's segments."""
        return SegmentName(self, hash_range, segment_id)


def parse_namespace(text: str) -> tuple[str, str]:
    """(tenant, namespace) of "tenant/namespace". Raises InvalidArgumentError."""
    parts = text.split("/") if isinstance(text, str) else []
    if len(parts) != 2:
        raise InvalidArgumentError(f"namespace {text!r} is malformed: write 'tenant/namespace'")
    return check_name(parts[0], "tenant"), check_name(parts[1], "namespace")


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """`segment://tenant/namespace/local/{start:04x}-{end:04x}-{id}`."""

    topic: TopicName
    hash_range: HashRange
    segment_id: int
    _text: str = field(default="", init=False, repr=False, compare=False)  # built on first use

    @property
    def descriptor(self) -> str:
        """The last part of the name, which is also the name of the segment's folder."""
        return f"{self.hash_range.start:04x}-{self.hash_range.end:04x}-{self.segment_id}"

    def __str__(self) -> str:
        if not self._text:
            t = self.topic
            text = f"{SEGMENT_SCHEME}{t.tenant}/{t.namespace}/{t.local}/{self.descriptor}"
            object.__setattr__(self, "_text", text)
        return self._text

    @classmethod
    def parse(cls, text: str) -> SegmentName:
        """Undo str(). Raises InvalidArgumentError."""
        rest = text.removeprefix(SEGMENT_SCHEME) if isinstance(text, str) else ""
        head, _, descriptor = rest.rpartition("/")
        if rest == text or not _DESCRIPTOR.fullmatch(descriptor):
            raise InvalidArgumentError(f"segment name {text!r} is not segment://tenant/namespace/topic/ssss-eeee-id")
        return cls.described(TopicName.parse(TOPIC_SCHEME + head), descriptor)

    @classmethod
    def described(cls, topic: TopicName, descriptor: str) -> SegmentName:
        """The segment of a topic that has this `descriptor`. Raises InvalidArgumentError."""
        match = _DESCRIPTOR.fullmatch(descriptor)
        if not match:
            raise InvalidArgumentError(f"segment descriptor must be ssss-eeee-id, got {descriptor!r}")
        start, end, segment_id = match.groups()
        return cls(topic, _hash_range(start, end), int(segment_id))


@lru_cache(1024)  # most segments have one of few ranges
def _hash_range(start: str, end: str) -> HashRange:
    return HashRange(int(start, 16), int(end, 16))
