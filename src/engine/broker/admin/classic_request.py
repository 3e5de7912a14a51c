"""`Asked`: one request of Apache Pulsar's admin REST, and the operations of ours that it executes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from engine.broker.admin.http_checks import request_of
from engine.broker.admin.ports import Served
from engine.broker.admin.shown import shown
from engine.broker.rights.principal import PEER, PRINCIPAL
from engine.broker.rights.table import OPERATIONS as RULES
from engine.errors import InvalidArgumentError
from engine.model import admin_operations as rows
from engine.model.admin_requests import Operation
from engine.model.fields import load
from engine.model.names import CLASSIC_SCHEME, TOPIC_SCHEME, TopicName
from engine.model.partitions import partition_count, partition_names

SCALABLE = "/admin/v2/scalable/"


class Asked:
    """`call` executes an operation, if the principal may."""

    def __init__(self, broker: Served, request: web.Request) -> None:
        self.broker = broker
        self.request = request
        self.parts: Mapping[str, str] = arguments_of(request.match_info, path_of(request))

    @property
    def topic(self) -> TopicName:
        return TopicName.parse(self.parts["topic"])

    @property
    def forced(self) -> bool:
        return self.request.query.get("force", "false").lower() == "true"

    async def body(self) -> Any:
        """Raises InvalidArgumentError."""
        text = await self.request.read()
        try:
            return load(text) if text.strip() else None
        except ValueError as e:
            raise InvalidArgumentError(f"the body is not JSON: {e}") from e

    async def call(self, operation: Operation[Any], **arguments: Any) -> Any:
        """Raises AuthorizationError, and what the operation raises."""
        principal = PRINCIPAL.get()
        if not principal.unlimited:
            request = request_of(self.request)
            self.broker.rights.check(principal, RULES[operation.name](arguments), request, PEER.get())
        return shown(self.broker.rights, operation, arguments, await self.broker.admin.call(operation, arguments))

    async def record(self) -> tuple[dict[str, str], int]:
        """The topic's properties, and how many partitions it stands for. Raises NotFoundError, UnsupportedError."""
        found = await self.call(rows.GET_METADATA, topic=str(self.topic))
        properties = dict(found["properties"])
        return properties, partition_count(self.topic, properties)

    async def topics(self) -> list[str]:
        """The topics that messages are in: itself, or its partitions."""
        _, count = await self.record()
        return partition_names(self.topic, range(count)) if count else [str(self.topic)]

    async def on_each(self, operation: Operation[Any], **arguments: Any) -> None:
        """Execute it on each of the topics(); first all are checked, then all are done."""
        for topic in await self.topics():
            await self.call(operation, topic=topic, **arguments)


def path_of(request: web.Request) -> str:
    """Of its route; nothing where there is none."""
    resource = request.match_info.route.resource
    return "" if resource is None else resource.canonical


def arguments_of(parts: Mapping[str, str], path: str) -> dict[str, str]:
    """What of a path the table of rights and the operations take. `path`: of the route."""
    found = {name: parts[name] for name in ("tenant", "subscription") if name in parts}
    if "namespace" in parts:
        found["namespace"] = f"{parts['tenant']}/{parts['namespace']}"
        if "topic" in parts:
            scheme = TOPIC_SCHEME if path.startswith(SCALABLE) else CLASSIC_SCHEME
            found["topic"] = f"{scheme}{found['namespace']}/{parts['topic']}"
    return found


def whole(what: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InvalidArgumentError(f"{what} must be a whole number, got {text!r:.80}")
    return int(text)
