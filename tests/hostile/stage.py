"""The stage: a broker and a proxy with all their ports, a neighbour with something to lose, and what must not change.

Eve knows the names of the neighbour's topic, subscriptions and producer, and its transaction's id, as a former
colleague would. All that it does not know has CANARY in it: names, keys, values, properties, schemas, tokens. So
nothing that arrives over any port may have CANARY in it, whatever was asked.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.errors import (
    AlreadyExistsError,
    AuthorizationError,
    InvalidArgumentError,
    ProtocolError,
    TooManyRequestsError,
    TransactionNotFoundError,
    UnsupportedError,
)
from engine.metadata.keys import CLAIMS, LAST
from engine.wire.commands import Command
from tests.hostile.ports import opened
from tests.kit.peer import Frame, Peer, make_entries

CANARY = "c4n4ry"
EVE, VICTIM, ROOT = "token-of-eve", f"{CANARY}-token-of-victim", f"{CANARY}-token-of-root"
MINE, THEIRS = "mine/ns", "theirs/ns"
TOPIC, SECRET_TOPIC, OWN_TOPIC = f"topic://{THEIRS}/orders", f"topic://{THEIRS}/{CANARY}", f"topic://{MINE}/own"
STREAM, QUEUE, PRODUCER = "s", "q", "press"  # as eve knows them
WEAKEST = ("lookup",)
MESSAGES = [f"{CANARY}-value-{n}".encode() for n in range(3)]
# What a request for the neighbour's may be answered with. That something is not there would be an answer, too.
REFUSALS = {
    error.code
    for error in (AuthorizationError, InvalidArgumentError, ProtocolError, TooManyRequestsError, AlreadyExistsError,
                  UnsupportedError, TransactionNotFoundError)
}  # fmt: skip
_ENDINGS = (Command.ERROR, Command.SEND_ERROR, Command.CLOSE_PRODUCER, Command.CLOSE_CONSUMER)


def shows(*parts: Any) -> bool:
    """Whether something that only the neighbour knows is in there."""
    return any(CANARY in (p.decode(errors="replace") if isinstance(p, bytes | memoryview) else repr(p)) for p in parts)


class EvePeer(Peer):
    """A raw connection that reports everything that it should not have received."""

    def __init__(self) -> None:
        super().__init__()
        self.leaks: list[str] = []
        self.to_refuse: dict[int, str] = {}  # requests for what is the neighbour's, by their ids

    def frame_received(self, command: Command, header: dict[str, Any], payload: memoryview) -> None:
        if shows(header, bytes(payload)):
            self.leaks.append(f"{command.name} {header!r:.400}")
        asked = self.to_refuse.pop(header.get("request_id", -1), None)
        if asked is not None and (command is not Command.ERROR or header["code"] not in REFUSALS):
            self.leaks.append(f"{asked} was answered by {command.name} {header!r:.400}")
        super().frame_received(command, header, payload)


@dataclass
class Victim:
    """A neighbour at work: a producer, a consumer of each kind, an open transaction, over one raw connection."""

    peer: Peer
    producer: int
    stream: int
    queue: int
    transaction: str
    segment: str
    sent: int = len(MESSAGES)
    heard: list[Frame] = field(default_factory=list)

    @classmethod
    async def at_work(cls, broker: Broker, url: str) -> Victim:
        peer = await Peer.connect(broker, url, hello=False)
        await peer.hello(token=VICTIM)
        segment = await peer.segment(TOPIC)
        definition = {"type": "record", "name": CANARY, "fields": [{"name": CANARY, "type": "string"}]}
        schema = {"type": "json", "definition": json.dumps(definition)}
        await peer.ask(Command.TOPIC_SCHEMA, topic=TOPIC, producer=True, schema=schema)
        producer = await peer.producer(segment, PRODUCER)
        peer.publish(producer, make_entries(MESSAGES, producer=PRODUCER, key=f"{CANARY}-key"))
        await peer.receipts(producer, len(MESSAGES))
        stream = await peer.consumer(segment, "exclusive", STREAM, name=f"{CANARY}-reader")
        queue = await peer.consumer(segment, "queue", QUEUE, name=f"{CANARY}-worker")
        for consumer in (stream, queue):
            await peer.messages(consumer, len(MESSAGES))
        await peer.ack(stream, position=1)
        begun = await peer.ask(Command.NEW_TXN, timeout=3600.0, name=f"{CANARY}-nightly")
        transaction = begun["result"]["id"]
        await peer.ack(queue, ranges=[[0, 0]], transaction=transaction)
        return cls(peer, producer, stream, queue, transaction, segment)

    async def goes_on(self) -> None:
        """Nothing of it was ended, no message came twice, and it sends, receives, acknowledges and commits."""
        assert not self.peer.lost.done()
        ended = [frame[:2] for frame in self.peer.frames if frame[0] in _ENDINGS]
        assert not ended, ended
        more = f"{CANARY}-value-{self.sent}".encode()
        self.peer.publish(self.producer, make_entries([more], producer=PRODUCER, first=self.sent))
        _, offsets = await self.peer.receipts(self.producer, 1)
        assert offsets == [self.sent]
        for consumer in (self.stream, self.queue):
            assert await self.peer.messages(consumer, 1) == [(self.sent, more)]
        self.sent += 1
        await self.peer.ack(self.stream, position=self.sent)
        ended_as = await self.peer.ask(Command.END_TXN, id=self.transaction, action="commit")
        assert ended_as["result"]["state"] == "COMMITTED"


@dataclass
class Stage:
    """`urls`, `admin_urls`: of the broker itself, and over the proxy."""

    broker: Broker
    urls: dict[str, str]
    admin_urls: dict[str, str]
    victim: Victim

    async def records(self) -> dict[str, bytes]:
        """All that is recorded, but for what eve may cause: records of its namespace, its role, its transactions, and
        the key of claims, which is made with the first exclusive access of anybody.
        """
        found = {}
        for record in await self.broker.metadata.newest.list("", LAST):
            found[record.key] = record.value
        return {k: v for k, v in found.items() if not _of_eve(k, v) and not k.endswith(("/load", CLAIMS))}


def _of_eve(key: str, value: bytes) -> bool:
    return any(text in key or text.encode() in value for text in ("mine", "eve"))


@contextlib.asynccontextmanager
async def staged(folder: Path, rights: tuple[str, ...] = WEAKEST, **settings: Any) -> AsyncIterator[Stage]:
    """`rights`: those of eve, in its own namespace."""
    roles = folder / "roles"
    roles.write_text("".join(line_of(r, t) + "\n" for r, t in (("eve", EVE), ("victim", VICTIM), ("root", ROOT))))
    config = BrokerConfig(
        roles_file=str(roles),
        superusers=["root"],
        cluster_token=f"{CANARY}-cluster-token",
        audit_log=str(folder / "audit"),
        **settings,
    )
    async with opened(folder, config) as at:
        admin = at.broker.admin
        await admin.create_topic(TOPIC, properties={CANARY: CANARY})
        await admin.create_topic(SECRET_TOPIC)
        await admin.create_topic(OWN_TOPIC)
        await admin.set_namespace_policies(THEIRS, {"retention_time_s": 86_400})
        await admin.grant("theirs", "victim", ["admin"])
        await admin.grant(TOPIC.removeprefix("topic://"), f"{CANARY}-role", ["consume"], subscription_prefix=CANARY)
        await admin.grant(MINE, "eve", list(rights))
        victim = await Victim.at_work(at.broker, at.url)
        urls = {"broker": at.url, "proxy": at.over_url}
        yield Stage(at.broker, urls, {"broker": at.admin_url, "proxy": at.over_admin_url}, victim)


@contextlib.asynccontextmanager
async def nothing_changes(stage: Stage) -> AsyncIterator[None]:
    """What the neighbour has is recorded as before, and its work goes on."""
    before = await stage.records()
    assert any(CANARY in key or CANARY.encode() in value for key, value in before.items())
    yield
    after = await stage.records()
    changed = {k: (before.get(k), after.get(k)) for k in before.keys() | after.keys() if before.get(k) != after.get(k)}
    assert not changed, changed
    await stage.victim.goes_on()


async def eve(stage: Stage, door: str, token: str | None = EVE, **hello: Any) -> EvePeer:
    """A raw connection of eve's."""
    peer = await EvePeer.connect(stage.broker, stage.urls[door], hello=False)
    assert isinstance(peer, EvePeer)
    await peer.hello(token=token, **hello)
    return peer
