"""The topics of a namespace: a page of their names, or following the list. At any broker."""

from __future__ import annotations

from engine.wire.commands.command import Command
from engine.wire.commands.header import Count, Header, Map, Part, Request


class WatchTopicListUpdate(Header, frozen=True, kw_only=True, omit_defaults=False):
    """A part of a topic list, or what has changed in it.

    `snapshot`: the whole list, in place of whatever the client has. Else `removed`, then `added`: a topic in both is
    another one of its name. `born`: when each of `snapshot`, then of `added`, was created, milliseconds. `more`: this
    is a part, and the next one follows; `hash`, of the list after all of it, is in the last. A part of a snapshot also
    says what has changed in those before it. `restart`: a snapshot begins, the parts before are void.
    """

    command = Command.WATCH_TOPIC_LIST_UPDATE
    request_id: Count | None = None
    session_id: Count
    hash: str
    snapshot: list[str] | None = None
    removed: list[str]
    added: list[str]
    born: list[Count]
    more: bool
    restart: bool | None = None

    def fault(self) -> str | None:
        listed = len(self.snapshot or ()) + len(self.added)
        return None if len(self.born) == listed else f"born must have {listed} items, got {len(self.born)}"


class WatchTopicList(Request[WatchTopicListUpdate], frozen=True, kw_only=True):
    """A session that follows a list. The last part of the answer has the id; then there is one per change, without it.

    Of "tenant/namespace", the topics that have all the `properties` and whose own name the RE2 `pattern` matches as a
    whole. `hash`: of the list that the client has; when it is the present one, no snapshot is sent.
    """

    command = Command.WATCH_TOPIC_LIST
    answer = WatchTopicListUpdate
    session_id: int
    namespace: str
    properties: Map | None = None
    pattern: str | None = None
    hash: str | None = None


class WatchTopicListClose(Header, frozen=True, kw_only=True):
    """The end of such a session."""

    command = Command.WATCH_TOPIC_LIST_CLOSE
    session_id: int


class TopicNames(Part, frozen=True, kw_only=True):
    """A page of names, in order."""

    topics: list[str]
    more: bool


class GetTopicsOfNamespace(Request[TopicNames], frozen=True, kw_only=True):
    """The page of the names behind `after`. A topic that is there all the time is on one of the pages."""

    command = Command.GET_TOPICS_OF_NAMESPACE
    answer = TopicNames
    namespace: str
    properties: Map | None = None
    pattern: str | None = None
    after: str | None = None
