"""A scripted broker that gives out a shared segment: which buckets are the consumer's, the test says."""

from __future__ import annotations

import struct
from typing import Any

from engine._native.produce.batcher import Batcher
from engine._native.produce.hashing import XXH64, hash_keys
from engine._native.serve.log import stamp
from engine.errors import EngineError
from engine.wire.commands import Command
from engine.wire.stream import FrameStream
from tests.kit.fake_broker import SALT, TOPIC, FakeBroker, FakeConnection

BUCKETS = 4
ENDS = [(b + 1) * (65536 // BUCKETS) - 1 for b in range(BUCKETS)]
KEYS: dict[int, str] = {}
for key in map(str, range(100)):
    KEYS.setdefault(int(hash_keys([key], XXH64)[0] & 0xFFFF) // (65536 // BUCKETS), key)


class SharedBroker(FakeBroker):
    """One segment. `shared`: how it is given out. `own`: the consumer's buckets. `acked`: by bucket, what is durable.

    `open_buckets`: what SEGMENT_OFFSET says is not acknowledged.
    """

    def __init__(self) -> None:
        super().__init__(segments=1, buckets=BUCKETS)
        self.shared = True
        self.own = set(range(BUCKETS))
        self.acked = dict.fromkeys(range(BUCKETS), 0)
        self.open_buckets: list[int] | None = None

    def _accept(self, stream: FrameStream, url: str) -> FakeConnection:
        self.connections.append(SharedConnection(self, stream, url))
        return self.connections[-1]

    def put(self, bucket: int, *values: bytes) -> None:
        """An entry of one bucket, sent to whoever has it."""
        first = self.ends[0]
        batcher = Batcher(b"p")
        batcher.set_layout([0], [0], [ENDS])
        for value in values:
            batcher.send_nowait(value, key=KEYS[bucket])
        batcher.seal_all()
        data = bytearray(batcher.take()[0].data)
        stamp(data, SALT, 1, first, 1_700_000_000_000, first, 0)
        self.blocks[0].append((first, len(values), bytes(data)))
        self.ends[0] = first + len(values)
        for connection in self.connections:
            connection.feed()

    def bucket_acks(self) -> list[dict[int, int]]:
        """What the ACKs said of buckets, in the order they came."""
        return [dict(header["buckets"]) for header in self.of(Command.ACK) if header.get("buckets") is not None]


class SharedConnection(FakeConnection):
    """Dispatches by bucket, and takes acknowledgements by bucket."""

    broker: SharedBroker

    def assign(self, request_id: int | None = None) -> None:
        mode = "shared" if self.broker.shared else "exclusive"
        segment: dict[str, Any] = {"segment_id": 0, "topic": f"segment://{str(TOPIC)[8:]}/0000-ffff-0", "mode": mode}
        if self.broker.shared:
            segment["bucketBoundaries"] = ENDS
        self.stream.send(Command.SCALABLE_TOPIC_ASSIGNMENT, {
            "request_id": request_id, "consumer_id": self.registered, "layout_epoch": self.broker.epoch,
            "segments": [segment] if self.broker.assigned else [],
        })  # fmt: skip

    def feed(self) -> None:
        for ident, (segment, offset) in list(self.consumers.items()):
            following = offset
            for first, count, data in self.broker.blocks[segment]:
                if first + count <= following or min(self.credit[ident]) <= 0 or self.lost:
                    continue
                following = first + count
                bucket = struct.unpack_from("<H", data, 28)[0] // (65536 // BUCKETS)
                if bucket not in self.broker.own or self.broker.acked[bucket] >= following:
                    continue
                self.credit[ident][0] -= count
                self.credit[ident][1] -= len(data)
                header = {"consumer_id": ident, "segment_id": segment, "salt": SALT, "messages": count}
                self.stream.send(Command.MESSAGE, header, data)
            self.consumers[ident] = (segment, following)

    def ack(self, header: dict[str, Any], payload: memoryview) -> None:
        if not self.broker.confirming:
            return
        error: EngineError | None = self.broker.refuse_acks
        if error is not None:
            self.error(header, error)
            return
        position = header.get("position")
        said = [(b, position) for b in range(BUCKETS)] if position is not None else header["buckets"]
        for bucket, upto in said:
            self.broker.acked[bucket] = max(self.broker.acked[bucket], upto)
        self.answer(header)

    def segment_offset(self, header: dict[str, Any], payload: memoryview) -> None:
        result: dict[str, Any] = {"offset": self.broker.ends[0], "first": 0, "end": self.broker.ends[0]}
        result["acknowledged"] = self.broker.cursors[0]
        if self.broker.open_buckets is not None:
            result["open_buckets"] = self.broker.open_buckets
        self.answer(header, result=result)
