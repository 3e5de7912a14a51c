"""What handlers return and brokers publish: a body with a key, headers, and when it is due."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Self, TypedDict

from faststream.response import PublishCommand, Response
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand

import engine

Key = bytes | str | None
Due = float | timedelta | None


class RequestOptions(TypedDict, total=False):
    """What a request says beside its body and its topic. `key`: same key, same order. `headers`: properties of the
    message, as text. `timeout`: seconds for the answer, 30 by default.
    """

    key: Key
    headers: dict[str, Any] | None
    correlation_id: str | None
    timeout: float


class BatchOptions(TypedDict, total=False):
    """What a batch says beside its bodies and its topic, for each that has nothing of its own. `reply_to`: the topic of
    the answer.
    """

    key: Key
    headers: dict[str, Any] | None
    correlation_id: str | None
    reply_to: str
    transaction: engine.AsyncTransaction | None


class PublishOptions(BatchOptions, total=False):
    """What a message says beside its body and its topic. `deliver_after` (seconds or a timedelta), `deliver_at`: when
    queue subscribers get it.
    """

    deliver_after: Due
    deliver_at: datetime | None


class EngineResponse(Response):
    """A body with options of its own: returned from a handler, or one of the bodies of `publish_batch`.

    `key`: same key, same order. `deliver_after` (seconds or a timedelta) and `deliver_at`: when queue subscribers get
    it; stream and checkpoint subscribers get it at once.
    """

    def __init__(
        self,
        body: Any,
        *,
        key: Key = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        deliver_after: Due = None,
        deliver_at: datetime | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.key = key
        self.deliver_after = deliver_after
        self.deliver_at = deliver_at

    def get_publish_key(self) -> Key:
        """Its key."""
        return self.key

    def as_publish_command(self) -> EnginePublishCommand:
        """What a publisher sends; the publisher adds the topic."""
        return EnginePublishCommand(
            self.body,
            key=self.key,
            headers=self.headers,
            correlation_id=self.correlation_id,
            deliver_after=self.deliver_after,
            deliver_at=self.deliver_at,
            _publish_type=PublishType.PUBLISH,
        )


class EnginePublishCommand(BatchPublishCommand):
    """A message to publish, or several, on its way through the middlewares to the producer."""

    def __init__(
        self,
        message: Any,
        /,
        *messages: Any,
        topic: str = "",
        key: Key = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        deliver_after: Due = None,
        deliver_at: datetime | None = None,
        transaction: engine.AsyncTransaction | None = None,
        timeout: float | None = None,
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            message,
            *messages,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.key = key
        self.deliver_after = deliver_after
        self.deliver_at = deliver_at
        self.transaction = transaction
        self.timeout = timeout

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> Self:
        """The same of a command that a handler's plain return value made. `batch`: its body is a sequence of bodies."""
        if isinstance(cmd, cls):
            if not batch or cmd.extra_bodies:
                return cmd
            first, others = cls._parse_bodies(cmd.body, batch=True)
            cmd.body, cmd.extra_bodies = first, tuple(others)
            return cmd
        first, others = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            first,
            *others,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )

    def each(self) -> Sequence[EngineResponse]:
        """Its messages, each with what it has of its own, else with what the command says."""
        bodies = self.batch_bodies
        return [self.made_of(body if isinstance(body, Response) else EngineResponse(body)) for body in bodies]

    def made_of(self, own: Response) -> EngineResponse:
        """A message with what it has of its own, else with what the command says."""
        is_timed = isinstance(own, EngineResponse) and not (own.deliver_after is None and own.deliver_at is None)
        timed = own if isinstance(own, EngineResponse) and is_timed else self
        key = own.get_publish_key()
        return EngineResponse(
            own.body,
            key=self.key if key is None else key,
            headers=self.headers | own.headers,
            correlation_id=own.correlation_id or self.correlation_id,
            deliver_after=timed.deliver_after,
            deliver_at=timed.deliver_at,
        )
