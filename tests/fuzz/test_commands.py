"""Commands whose fields have the right types and wrong values, at a living broker: typed errors, no traceback."""

from __future__ import annotations

import itertools
import logging
import random
from pathlib import Path
from typing import Any

import pytest

from engine.broker.server import Broker
from engine.broker.session.handlers import HANDLERS
from engine.broker.settings.config import BrokerConfig
from engine.errors import EngineError
from engine.limits import FRAME_HEADER_SIZE_MAX
from engine.wire.commands import Command
from tests.fuzz.values import header
from tests.kit.peer import Peer, make_entries

COMMANDS = [kind.command for kind in HANDLERS if kind.command not in (Command.PING, Command.PONG)]
BUCKETS = [16383, 32767, 49151, 65535]
MODES = ((1, "queue", "q"), (2, "shared", "sh"), (3, "exclusive", "ex"), (8, "reader", None))
PRODUCER = 4
# Fields that lead further than to the first check.
LIKELY: dict[str, list[Any]] = {
    "subscription": ["q", "sh", "ex"],
    "consumer_id": [1, 2, 3, 8],
    "producer_id": [PRODUCER, 5],
    "session_id": [6, 7],
    "entries": [1],
    "namespace": ["public/default"],
    "mode": ["queue", "shared", "exclusive", "reader"],
    "ack_type": ["individual", "cumulative"],
    "kind": ["stream", "checkpoint"],
    "initial_position": ["earliest"],
    "consumer_name": ["c"],
    "producer_name": ["p"],
    "access_mode": ["shared"],
    "claim": [[0, 1, 1], [0, 1, 1, 2**55, 7], [1], [0, 1, 1, -1, 2**63 - 1], ["a", 1, 1]],
    "name_proof": [b"x" * 16, b"", b"y" * 1000],
    "at": ["latest", 0],
    "when": ["earliest", "latest", 0, -1, 2**62],
    "bucketBoundaries": [BUCKETS],
    "create": [True],
    "instance": ["i"],
    "timeout": [1.0],
    "messages": [10],
    "bytes": [1000],
    "id": ["0" * 16],
    "action": ["commit", "abort"],
    "ranges": [[[0, 0]], [[0, 1]], [[1, 0]], [[0, 2**63]], [[-1, 1]], b"\xff" * 16],
    "position": [0, 1, 2, 3],
    "buckets": [[[0, 1]], [[0, 2], [3, 1]], [[99, 1]], [[0, -1]], [[0]], [["a", 1]], [[0, 2**64 - 1]]],
    "backoff": [[0.1, 1, 2], ["a"], [1], [float("nan"), 1, 1], [1, 2, float("inf")], [0, 0, 0]],
    "seen": [[[0, 1]], b"x" * 16],
    "priority": [0, -5, 2**62],
    "start": [0, -1, 2**62],
}


class Attacker:
    """One connection at a time; what it has attached, it attaches anew when the broker has had enough of it."""

    def __init__(self, broker: Broker, url: str, segment: str, rng: random.Random) -> None:
        self._broker = broker
        self._url = url
        self._segment = segment
        self._rng = rng
        self._peer: Peer | None = None
        self._good = 0.7
        self.ids = itertools.count(100)
        self.lives = 0

    async def peer(self) -> Peer:
        """The connection, with a consumer of each kind and a producer."""
        if self._peer is None or self._peer.lost.done():
            self.lives += 1
            self._good = self._rng.choice([0.5, 0.9, 0.97])
            peer = self._peer = await Peer.connect(self._broker, self._url)
            for ident, mode, subscription in MODES:
                fields = {"topic": self._segment, "subscription": subscription, "mode": mode, "consumer_name": "c"}
                more = {"initial_position": "earliest", "start": 0, "bucketBoundaries": BUCKETS}
                peer.send(Command.SUBSCRIBE, {"request_id": next(self.ids), "consumer_id": ident, **fields, **more})
            fields = {"topic": self._segment, "producer_name": f"p{self.lives}", "access_mode": "shared"}
            request_id = next(self.ids)
            peer.send(Command.PRODUCER, {"request_id": request_id, "producer_id": PRODUCER, **fields})
            await peer.take(Command.PRODUCER_SUCCESS, Command.ERROR, request_id=request_id)
        return self._peer

    async def say(self) -> str:
        """One frame; what it was."""
        peer, rng = await self.peer(), self._rng
        command = rng.choice(COMMANDS)
        likely = {**LIKELY, "request_id": [next(self.ids)], "topic": [self._segment, "orders"]}
        said = header(rng, command, likely, self._good)
        payload = rng.choice([b"", b"x" * 10, b"\x80", make_entries([b"v"], producer=f"p{self.lives}")[0]])
        try:
            peer.send(command, said, payload)
        except (UnicodeEncodeError, OverflowError):  # what msgpack does not say
            return ""
        peer.frames.clear()
        return f"{command.name} {said}"


async def attack(path: Path, seed: int, rounds: int, caplog: pytest.LogCaptureFixture) -> None:
    """Every so many frames a neighbour has to be served, and in the end to have what it had."""
    rng = random.Random(seed)
    caplog.set_level(logging.ERROR)
    broker = Broker(path, config=BrokerConfig())
    await broker.start()
    try:
        host, port = await broker.serve("127.0.0.1", 0)
        url = f"engine://{host}:{port}"
        neighbour = await Peer.connect(broker, url)
        segment = await neighbour.segment("orders")
        producer = await neighbour.producer(segment, "neighbour")
        neighbour.publish(producer, make_entries([b"a", b"b"], producer="neighbour"))
        await neighbour.receipts(producer, 2)
        attacker, said = Attacker(broker, url, segment, rng), []
        for number in range(rounds):
            said.append(await attacker.say())
            if number % 25 == 24:
                neighbour.send(Command.PING, {})
                await neighbour.take(Command.PONG)
                faults = [r for r in caplog.records if r.exc_info or r.levelno >= logging.ERROR]
                assert not faults, (
                    f"seed {seed}: {faults[0].getMessage()} {faults[0].exc_info}; last said: {said[-60:]}"
                )
                del said[:-60]
        neighbour.frames.clear()
        consumer = await neighbour.consumer(segment, "reader", None, start=0)
        assert [value for _, value in await neighbour.messages(consumer, 2)][:2] == [b"a", b"b"]
    finally:
        await broker.close()


@pytest.mark.parametrize("seed", [1, 2])
async def test_hostile_commands(tmp_path, caplog, seed):
    await attack(tmp_path, seed, 1_500, caplog)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
async def test_hostile_commands_for_long(tmp_path, caplog):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    await attack(tmp_path, seed, 150_000, caplog)


@pytest.mark.parametrize("number", [2**64 - 1, 2**63, 2**40])
@pytest.mark.parametrize("mode", ["queue", "exclusive", "shared", "reader"])
async def test_credit_beyond_all_bounds_is_as_much_as_can_be(tmp_path, mode, number):
    """Found by the above: of a sharer, it was more than native code can hold."""
    broker = Broker(tmp_path)
    await broker.start()
    try:
        peer = await Peer.connect(broker)
        segment = await peer.segment("orders")
        producer = await peer.producer(segment)
        more = {"bucketBoundaries": BUCKETS} if mode == "shared" else {}
        consumer = await peer.consumer(segment, mode, None if mode == "reader" else "s", credit=0, **more)
        for _ in range(3):
            peer.flow(consumer, number, number)
        peer.publish(producer, make_entries([b"a"]))
        assert [value for _, value in await peer.messages(consumer, 1)] == [b"a"]
    finally:
        await broker.close()


async def test_answers_are_typed(tmp_path):
    """A malformed request fails with a typed, short error, and fails no other request."""
    broker = Broker(tmp_path)
    await broker.start()
    try:
        peer = await Peer.connect(broker)
        for name in ("x" * 100_000, "topic://" + "é\u0000" * 1_000):
            with pytest.raises(EngineError) as caught:
                await peer.lookup(name)
            assert len(str(caught.value).encode()) < FRAME_HEADER_SIZE_MAX // 64
            assert type(caught.value) is not EngineError
    finally:
        await broker.close()
