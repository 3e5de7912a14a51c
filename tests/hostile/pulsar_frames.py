"""Frames of eve's in Apache Pulsar's protocol: each command with names of the neighbour's, over living connections."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from engine.errors import (
    AlreadyExistsError,
    AuthorizationError,
    InvalidArgumentError,
    TooManyRequestsError,
    TransactionNotFoundError,
    UnsupportedError,
)
from engine.model.transactions import parse_id
from engine.pulsar.messages import FIELDS, Command, framed
from engine.pulsar.server_errors import number_of
from engine.wire.url import parse_url
from tests.hostile.stage import CANARY, EVE, MINE, PRODUCER, QUEUE, STREAM, THEIRS, Stage
from tests.reference.pulsar_reference import PulsarMessage, payload_of

CLASSIC, SECRET_CLASSIC = f"persistent://{THEIRS}/invoices", f"persistent://{THEIRS}/{CANARY}-invoices"
OWN_CLASSIC = f"persistent://{MINE}/invoices"
# Names that are the neighbour's in every reading, so that a request for them must be refused.
SURE = [
    CLASSIC, f"{CLASSIC}-partition-0", f"persistent://{THEIRS}/nothing", f"{THEIRS}/invoices",
    f"topic://{THEIRS}/orders",
    f"segment://{THEIRS}/orders/0000-ffff-0", f"topic://{THEIRS}/nothing", f"segment://{THEIRS}/orders/0000-7fff-1",
]  # fmt: skip
UNSURE = [
    OWN_CLASSIC, f"persistent://{MINE}/../../{THEIRS}/invoices", f"persistent://{MINE}/invoices\n", "invoices",
    f"non-persistent://{THEIRS}/invoices", f"persistent://persistent://{THEIRS}/invoices", f"persistent://{THEIRS}/*",
    "persistent://theirs%2Fns/invoices", f"segment://{MINE}/own/{THEIRS}/orders/0000-ffff-0", f"topic://{MINE}/own",
    f"persistent://{THEIRS}/persistent:invoices", f"{THEIRS}/persistent:invoices",
    "persistent://theirs/global/ns/invoices",
]  # fmt: skip
NAMESPACES = [THEIRS, "theirs", "*", "*/*", f"{MINE}/../{THEIRS}", f"{MINE}\n{THEIRS}", f"{THEIRS}/", MINE]
QUIET = ("connect", "connected", "ping", "pong", "auth_response")  # not at random
COMMANDS = [name for name in FIELDS.values() if name not in QUIET]
_ENDING = re.compile("success|.*(_success|_response|_update|_change|_receipt|_error|error|message|reached_end)")
ASKING = [name for name in COMMANDS if not _ENDING.fullmatch(name)]  # the others end the connection
_NAMED = ("topic", "namespace")
_REPLIES_TO = ("request", "session", "watch")  # the fields by which a request and its answer belong together
_KINDS = (AuthorizationError, InvalidArgumentError, TooManyRequestsError, AlreadyExistsError, UnsupportedError)
REFUSALS = {number_of(kind("")) for kind in (*_KINDS, TransactionNotFoundError)}


class PulsarFrames:
    """A connection of eve's that is made again whenever the broker has had enough of it."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._address = parse_url(stage.urls["broker"])
        self._rng = random.Random(seed)
        self._ids = itertools.count(1000)
        self._asked: dict[tuple[str, int], str] = {}  # what must be refused, by the field and the number in it
        self._said: list[str] = []  # for the report of a failure
        self.refused = 0
        number = parse_id(stage.victim.transaction)
        self._transactions = [(number & (1 << 63) - 1, number >> 63), (1, 0), (0, 0)]
        self._ids_of_theirs = [stage.victim.producer, stage.victim.stream, stage.victim.queue, 1, 2]

    async def attack(self, rounds: int) -> None:
        """Raises AssertionError for what should not have been received."""
        while rounds > 0:
            reader, writer = await asyncio.open_connection(*self._address)
            try:
                said = {"auth_method": "token", "auth_data": EVE.encode()}
                writer.write(framed("connect", client_version="eve", protocol=19, **said))
                assert await self._heard(reader) == "connected"
                for _ in range(min(rounds, 10)):
                    rounds -= 1
                    writer.write(self._frame())
                writer.write(framed("ping"))
                while await self._heard(reader) not in ("pong", None):
                    pass
                await self._rest(reader)
            finally:
                writer.close()

    async def _rest(self, reader: asyncio.StreamReader) -> None:
        """Until each request that must be refused is answered, or the connection has ended with an error."""
        while self._asked and await self._heard(reader) is not None:
            pass
        self._asked.clear()

    async def _heard(self, reader: asyncio.StreamReader) -> str | None:
        """The name of the next command, which is looked at; None: the broker has ended the connection."""
        try:
            async with asyncio.timeout(60):
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        assert CANARY.encode() not in frame, (frame, self._said[-20:])
        found = Command.FromString(frame[4 : 4 + int.from_bytes(frame[:4], "big")])
        name = FIELDS[found.type]
        self._look(name, getattr(found, name))
        return name

    def _look(self, name: str, answer: Any) -> None:
        fields = answer.DESCRIPTOR.fields_by_name
        for field in _REPLIES_TO:
            asked = self._asked.pop((field, getattr(answer, field)), None) if field in fields else None
            if asked is not None:
                refused = "error" in fields and answer.HasField("error") and answer.error in REFUSALS
                assert refused, f"{asked} was answered by {name} {answer!s:.400}"
                self.refused += 1

    def _frame(self) -> bytes:
        name = self._rng.choice(ASKING if self._rng.random() < 0.98 else COMMANDS)
        message = Command(type=next(number for number, known in FIELDS.items() if known == name))
        said = getattr(message, name)
        said.SetInParent()
        self._fill(said)
        self._note(name, said)
        head = message.SerializeToString()
        body = b""
        if name == "send":
            body = payload_of([PulsarMessage(b"forged", b"k")], sequence=50)
        return b"".join(((len(head) + 4 + len(body)).to_bytes(4, "big"), len(head).to_bytes(4, "big"), head, body))

    def _note(self, name: str, said: Any) -> None:
        text = f"{name} {said!s}"
        self._said.append(text)
        del self._said[:-200]
        fields = said.DESCRIPTOR.fields_by_name
        theirs = ("topic" in fields and said.topic in SURE) or ("namespace" in fields and said.namespace == THEIRS)
        if theirs and not _always_the_same(name, said):
            field = next(field for field in _REPLIES_TO if field in fields)
            self._asked[field, getattr(said, field)] = text

    def _fill(self, said: Any) -> None:
        """Most fields, each with a value that may mean something."""
        rng, transaction = self._rng, self._rng.choice(self._transactions)
        for field in said.DESCRIPTOR.fields:
            if field.name in _REPLIES_TO:
                setattr(said, field.name, next(self._ids))
            elif field.name in ("txn_low", "txn_high"):
                setattr(said, field.name, transaction[field.name == "txn_high"])
            elif field.name not in _NAMED and rng.random() < 0.3:
                continue
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                self._fill(_part(said, field))
            else:
                value = rng.choice(self._likely(field))
                if _repeated(said, field):
                    getattr(said, field.name).append(value)
                else:
                    setattr(said, field.name, value)

    def _likely(self, field: FieldDescriptor) -> list[Any]:
        known: dict[str, list[Any]] = {
            "topic": SURE + UNSURE, "namespace": NAMESPACES, "partitions": SURE, "subscription": [STREAM, QUEUE],
            "name": [PRODUCER, "c"], "producer": self._ids_of_theirs, "consumer": self._ids_of_theirs,
            "type": [0, 1, 2, 3], "initial_position": [1], "create": [True], "access_mode": [0, 1, 2, 3],
            "pattern": [".*", f"{THEIRS}/.*"], "mode": [0, 1, 2], "durable": [True, False], "encrypted": [False],
            "tc": [0, 1], "action": [0, 1], "permits": [1000], "read_compacted": [False], "replicated": [False],
        }  # fmt: skip
        of_any: dict[int, list[Any]] = {
            FieldDescriptor.TYPE_STRING: ["", PRODUCER, CLASSIC], FieldDescriptor.TYPE_BYTES: [b"", b"{}", b"press"],
            FieldDescriptor.TYPE_BOOL: [False, True],
        }  # fmt: skip
        values = of_any.get(field.type, [0, 1, 2, 2**31 - 1])
        found = known.get(field.name, values)
        return found if type(found[0]) is type(values[0]) else values  # answers have other fields of these names


def _always_the_same(name: str, said: Any) -> bool:
    """Whether the answer says nothing of what was named: the broker that was asked, that a segment has no partitions,
    that there are no topics of a kind that is not served.
    """
    if name == "get_topics":
        return bool(said.mode == 1)
    scheme = said.topic.partition("://")[0] if "topic" in said.DESCRIPTOR.fields_by_name else ""
    return (name, scheme) in (("lookup", "topic"), ("partitioned", "segment"))


def _repeated(said: Any, field: FieldDescriptor) -> bool:
    return hasattr(getattr(said, field.name), "append")


def _part(said: Any, field: FieldDescriptor) -> Any:
    part = getattr(said, field.name)
    if _repeated(said, field):
        return part.add()
    part.SetInParent()
    return part
