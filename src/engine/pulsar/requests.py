"""Requests of one connection about topics: where they are, which there are, and their schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError, NotFoundError
from engine.model.names import CLASSIC_SCHEME, TOPIC_SCHEME, TopicName
from engine.pulsar.layouts import owner_of, partitions_of, segment_of
from engine.pulsar.names import scalable_of, segment_in, service_url, topic_of
from engine.pulsar.schemas import create_schema, schema_of
from engine.pulsar.server_errors import number_of
from engine.pulsar.transactions import COORDINATORS, COORDINATORS_COUNT
from engine.pulsar.watches import HeldList
from engine.wire import commands

if TYPE_CHECKING:
    from engine.pulsar.session import Session

_CONNECT, _FAILED_LOOKUP = 1, 2
_SUCCESS, _FAILED = 0, 1
_NON_PERSISTENT = 1


class Requests:
    """Loop thread only."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def handlers(self) -> dict[str, Callable[[Any, memoryview], None]]:
        """The commands that are about topics."""
        return {
            "lookup": self._begin(self._lookup, "lookup_response", response=_FAILED_LOOKUP),
            "partitioned": self._begin(self._partitions, "partitioned_response", response=_FAILED),
            "get_topics": self._begin(self._topics, None),
            "get_schema": self._begin(self._schema, "get_schema_response"),
            "get_or_create_schema": self._begin(self._create_schema, "get_or_create_schema_response"),
            "auth_response": self._begin(self._authenticate, None),
        }

    def _begin(self, work: Any, answer: str | None, **said: Any) -> Callable[[Any, memoryview], None]:
        """A handler that runs `work`; an error is said in the `answer` of the request."""
        session = self._session

        def handle(header: Any, payload: memoryview) -> None:
            def failed(error: EngineError) -> None:
                assert answer is not None
                session.say(answer, request=header.request, error=number_of(error), message=str(error), **said)

            session.start(getattr(header, "request", 0), work(header), None if answer is None else failed)

        return handle

    async def _lookup(self, header: Any) -> None:
        """A topic that is not there yet is created by the broker that was asked."""
        session, name = self._session, segment_in(header.topic)
        try:
            if header.topic.startswith((TOPIC_SCHEME, COORDINATORS)):  # any broker does
                url = session.host.addresses.url_for(session.stream)
            elif name is None:
                url = (await segment_of(session, topic_of(header.topic), create=False)).url
            else:
                url = await owner_of(session, name)
        except NotFoundError:
            if name is not None:
                raise
            url = session.host.addresses.url_for(session.stream)
        session.say(
            "lookup_response",
            request=header.request,
            response=_CONNECT,
            authoritative=True,
            url=service_url(url),
            url_tls=service_url(url, tls=True),
        )

    async def _partitions(self, header: Any) -> None:
        if header.topic == COORDINATORS:
            self._session.say(
                "partitioned_response", request=header.request, response=_SUCCESS, partitions=COORDINATORS_COUNT
            )
            return
        classic = segment_in(header.topic) is None
        try:
            count = await partitions_of(self._session, topic_of(header.topic)) if classic else 0
        except NotFoundError:
            if not header.create:  # the client asks whether it is there
                raise
            count = 0
        self._session.say("partitioned_response", request=header.request, response=_SUCCESS, partitions=count)

    async def _topics(self, header: Any) -> None:
        """The classic topics of a namespace. A pattern is the client's to apply; some have another syntax than ours."""
        names, held = list[str](), HeldList(self._session)
        try:
            if header.mode != _NON_PERSISTENT:
                await self._collect(header.namespace, names, held)
        except BaseException:
            held.release()
            raise
        held.release_when_taken()
        self._session.say("get_topics_response", request=header.request, topics=names, filtered=False, changed=True)

    async def _collect(self, namespace: str, names: list[str], held: HeldList) -> None:
        session, more, after = self._session, True, None
        while more:
            answer = await session.ask(
                lambda number, after=after: commands.GetTopicsOfNamespace(  # type: ignore[misc]
                    request_id=number, namespace=namespace, after=after
                )
            )
            page = answer.result["topics"] if isinstance(answer.result, dict) else answer.result.topics
            more = answer.result["more"] if isinstance(answer.result, dict) else answer.result.more
            after = page[-1] if page else None
            classic = [name for name in page if name.startswith(CLASSIC_SCHEME)]
            held.add(classic)
            names.extend(classic)

    async def _schema(self, header: Any) -> None:
        fields, version = await schema_of(self._session, _topic_in(header.topic), header.version)
        self._session.say("get_schema_response", request=header.request, schema=fields, version=version)

    async def _create_schema(self, header: Any) -> None:
        topic = _topic_in(header.topic)
        declared = await create_schema(self._session, topic, header.schema)
        if declared is not None:
            self._session.producers.declared(topic, declared)
        version = b"" if declared is None else declared.version
        self._session.say("get_or_create_schema_response", request=header.request, version=version)

    async def _authenticate(self, header: Any) -> None:
        """A newer token for the connection."""
        token = header.response.auth_data.decode("utf-8", "replace")
        answer = await self._session.ask(lambda number: commands.Authenticate(request_id=number, token=token))
        result = answer.result
        self._session.refresh_later(result.get("token_left") if isinstance(result, dict) else result.token_left)


def _topic_in(text: str) -> TopicName:
    """The topic of any name that a client may ask with."""
    if (name := segment_in(text)) is not None:
        return name.topic
    return scalable_of(text) if text.startswith(TOPIC_SCHEME) else topic_of(text)
