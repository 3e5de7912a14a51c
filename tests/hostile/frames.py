"""Frames of eve's: each command with names of the neighbour's, in every spelling, over living connections."""

from __future__ import annotations

import contextlib
import itertools
import random
from typing import Any

import msgspec

from engine.broker.rights.table import COMMANDS as RULES
from engine.broker.session.handlers import HANDLERS
from engine.errors import EngineError
from engine.wire.commands import HEADERS, Command
from tests.fuzz.values import header
from tests.hostile.stage import EVE, MINE, OWN_TOPIC, PRODUCER, QUEUE, STREAM, THEIRS, TOPIC, EvePeer, Stage, eve
from tests.kit.peer import make_entries

# Not at random: a wrong token slows all of its address down, see tests/broker/test_attempts.py.
QUIET = (Command.PING, Command.PONG, Command.AUTHENTICATE)
COMMANDS = [kind.command for kind in HANDLERS if kind.command not in QUIET]
OVER_A_PROXY = [command for command in COMMANDS if command is not Command.BROKER_CALL]  # which ends the connection
SPELLINGS = [
    TOPIC, TOPIC.removeprefix("topic://"), f"segment://{THEIRS}/orders/0000-ffff-0", f"{THEIRS}/nothing",
    f"segment://{THEIRS}/nothing/0000-ffff-0", f"segment://{THEIRS}/orders/0000-7fff-1", "theirs/ns/orders\n",
    f"{MINE}/../../theirs/ns/orders", f"{MINE}/own/../{THEIRS}/orders", "theirs%2Fns%2Forders", "THEIRS/ns/orders",
    "topic:// theirs/ns/orders", f"topic://topic://{THEIRS}/orders", f"segment://{OWN_TOPIC}/{THEIRS}/0000-ffff-0",
    "theirs/ns/*", "*", "*/*/*", "theirs/ns/orders/", "/theirs/ns/orders",
]  # fmt: skip
NAMESPACES = [THEIRS, "theirs", "*", "*/*", "theirs/*", f"{MINE}/../{THEIRS}", "theirs/ns\nmine/ns", f"{THEIRS}/orders"]


class Frames:
    """A connection of eve's that is made again whenever the broker has had enough of it."""

    def __init__(self, stage: Stage, door: str, seed: int) -> None:
        self._stage = stage
        self._door = door
        self._rng = random.Random(f"{seed} {door}")
        self._ids = itertools.count(1000)
        self._peer: EvePeer | None = None
        self.said: list[str] = []  # for the report of a failure

    async def attack(self, rounds: int) -> None:
        """Raises AssertionError for what should not have been received."""
        for number in range(rounds):
            peer = await self._connected()
            command, said, payload = self._frame()
            with contextlib.suppress(UnicodeEncodeError, OverflowError):  # what msgpack does not say
                peer.send(command, said, payload)
                self.said.append(f"{command.name} {said}")
                if _names_theirs(command, said):
                    peer.to_refuse[said["request_id"]] = self.said[-1]
            if number % 50 == 49 or number == rounds - 1:
                await self._answered()
        assert self._peer is not None
        await self._peer.close()

    async def _connected(self) -> EvePeer:
        if self._peer is None or self._peer.lost.done():
            if self._peer is not None:
                self._check(self._peer)
            self._peer = await eve(self._stage, self._door)
        return self._peer

    async def _answered(self) -> None:
        peer = await self._connected()
        peer.send(Command.PING, {})
        with contextlib.suppress(ConnectionError):
            await peer.take(Command.PONG)
        # A watch that was closed before it was open is not answered by a proxy.
        await peer.until(
            lambda: peer.leaks or peer.lost.done() or all("WATCH_" in asked for asked in peer.to_refuse.values())
        )
        self._check(peer)

    def _frame(self) -> tuple[Command, dict[str, Any], bytes]:
        rng, victim = self._rng, self._stage.victim
        command = rng.choice(COMMANDS if self._door == "broker" else OVER_A_PROXY)
        likely: dict[str, list[Any]] = {
            "topic": SPELLINGS, "namespace": NAMESPACES,
            "subscription": [STREAM, QUEUE],
            "consumer_id": [victim.stream, victim.queue, 7], "producer_id": [victim.producer, 8], "session_id": [1, 9],
            "producer_name": [PRODUCER], "consumer_name": ["c"], "id": [victim.transaction], "token": [EVE],
            "transactions": [[victim.transaction]], "mode": ["queue", "exclusive", "shared", "reader"],
            "access_mode": ["shared", "exclusive", "exclusive_with_fencing"], "initial_position": ["earliest"],
            "kind": ["stream", "checkpoint"], "when": ["earliest", "latest", 0], "action": ["commit", "abort"],
            "create": [True], "instance": ["i"], "timeout": [1.0], "name": ["nightly"], "entries": [1],
            "ack_type": ["individual", "cumulative"], "position": [3], "ranges": [[[0, 2]]], "at": ["latest", 0],
            "target": ["segment", "controller", "transactions"], "start": [0], "bucketBoundaries": [[65535]],
            "messages": [10**6], "bytes": [10**6], "schema": [None, {"type": "json", "definition": "{}"}],
            "transaction": [None, victim.transaction],
            "attempt": [None], "code": [None], "message": [None], "seen": [[[0, 2]]],
            "buckets": [None], "created_ms": [None], "accepted": [None], "sent": [None], "mark": [None],
            "count": [None], "properties": [None], "pattern": [None], "after": [None], "hash": [None],
            "claim": [None], "method": ["open"],
        }  # fmt: skip
        said = header(rng, command, likely, rng.choice((0.9, 1.0, 1.0)))  # a malformed one ends the connection
        if "request_id" in said:
            said["request_id"] = next(self._ids)  # so that answers are told apart
        payload = rng.choice([b"", b"x" * 10, make_entries([b"forged"], producer=PRODUCER, first=50)[0]])
        return command, said, payload

    def _check(self, peer: EvePeer) -> None:
        assert not peer.leaks, (peer.leaks, self.said[-20:])
        peer.frames.clear()
        del self.said[:-200]


def _names_theirs(command: Command, said: dict[str, Any]) -> bool:
    """Whether it is a request that needs a right on something of the neighbour's."""
    kind = HEADERS[command]
    rule = RULES[kind]
    if rule is None or "request_id" not in said:
        return False
    try:
        need = rule(msgspec.convert(said, kind))
    except (EngineError, msgspec.ValidationError):
        return False  # it has no meaning, and is refused
    return need.resource.startswith("theirs")
