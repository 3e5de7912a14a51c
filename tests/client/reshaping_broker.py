"""The scripted broker with a topic that splits, merges and rebuckets while a producer sends."""

from __future__ import annotations

import random
import struct
from typing import Any

from engine.errors import EngineError, InvalidArgumentError, ProducerBusyError, SegmentSealedError, StorageError
from engine.wire.commands import Command
from engine.wire.stream import FrameStream
from tests.client.reshaped_topic import Piece, ReshapedTopic
from tests.kit.fake_broker import DURABLE, TOPIC, URL, FakeBroker, FakeConnection


class ReshapingBroker(FakeBroker):
    """Nothing is told by itself: `reshape` changes the topic, tell_sealed() and push() say so."""

    def __init__(self, segments: int = 1, buckets: int = 1, seed: int = 0) -> None:
        super().__init__(segments, buckets)
        self.topic = ReshapedTopic(random.Random(seed), segments, buckets)
        self.addresses: dict[str, str] = {}  # of segments, where they are named
        self.shown = self.topic.epoch
        self.seen_dag = self._dag()
        self.faulty = 0  # so many appends fail, with the attachment
        self.owners: dict[int, str] = {}  # of exclusive access

    def _accept(self, stream: FrameStream, url: str = URL) -> FakeConnection:
        self.connections.append(ReshapingConnection(self, stream, url))
        return self.connections[-1]

    def dag(self) -> dict[str, Any]:
        """As it was when push() was called last."""
        return self.seen_dag

    def _dag(self) -> dict[str, Any]:
        segments = [
            {
                "segmentId": p.ident,
                "hashRange": {"start": p.range.start, "end": p.range.end},
                "state": "SEALED" if p.sealed else "ACTIVE",
                "parentIds": p.parents,
                "childIds": p.children,
                "bucketBoundaries": p.bucket_ends,
            }
            for p in self.topic.lineage()
        ]
        return {"epoch": self.topic.epoch, "keyHash": "xxh64", "durability": "fsync", "segments": segments,
                "segmentBrokers": dict(self.addresses), "controllerBrokerUrl": URL}  # fmt: skip

    def push(self, dag: dict[str, Any] | None = None) -> None:
        """Every session hears of the layout as it is now, or as it was."""
        self.seen_dag = self._dag()
        for connection in self.connections:
            for session in connection.sessions if not connection.lost else ():
                shown = dag or self.seen_dag
                fields = {"request_id": None, "session_id": session, "topic": str(TOPIC), "epoch": shown["epoch"]}
                connection.stream.send(Command.SCALABLE_TOPIC_UPDATE, {**fields, "dag": shown})

    def tell_sealed(self) -> None:
        """Everybody attached to a sealed segment gets his receipts, and is told to go."""
        for connection in self.connections:
            if isinstance(connection, ReshapingConnection) and not connection.lost:
                connection.tell_sealed()

    def split(self, at: int = 0, *, tell: bool = True) -> None:
        """Split and say so, as a broker does where nothing goes wrong."""
        self.topic.split(at)
        if tell:
            self.tell_sealed()
            self.push()

    @property
    def values(self) -> list[bytes]:
        """All that was written, by segment."""
        return [m.value for piece in self.topic.lineage() for m in piece.messages()]


class ReshapingConnection(FakeConnection):
    """Appends to the topic."""

    broker: ReshapingBroker

    def producer(self, header: dict[str, Any], payload: memoryview) -> None:
        piece = self.broker.topic.pieces[int(header["topic"].rsplit("-", 1)[1])]
        error = self.broker.refuse_attach(header["topic"])
        owner = self.broker.owners.get(piece.ident, header["producer_name"])
        if piece.sealed:
            error = SegmentSealedError("sealed")
        elif header["access_mode"] != "shared" and owner != header["producer_name"]:
            error = ProducerBusyError("taken")
        if error is not None:
            self.error(header, error)
            return
        if header["access_mode"] != "shared":
            self.broker.owners[piece.ident] = header["producer_name"]
        self.producers[header["producer_id"]] = piece.ident
        self.answer(header, Command.PRODUCER_SUCCESS, producer_id=header["producer_id"],
                    producer_name=header["producer_name"], last_sequence=-1, **DURABLE)  # fmt: skip

    def send(self, header: dict[str, Any], payload: memoryview) -> None:
        ident = header["producer_id"]
        if ident not in self.producers:
            return
        piece = self.broker.topic.pieces[self.producers[ident]]
        receipt: dict[str, Any] = {"producer_id": ident, "sequences": [], "offsets": [], **DURABLE}
        refusal: tuple[int, EngineError] | None = None
        for first, data in images(payload):
            if piece.sealed or self.broker.faulty:
                refusal = (first, SegmentSealedError("sealed") if piece.sealed else StorageError("no"))
                self.broker.faulty -= not piece.sealed
                break
            offset, _ = self.append(piece, data)
            receipt["sequences"].append(first)
            receipt["offsets"].append(offset)
        if receipt["sequences"]:
            self.held.append(receipt)
        if not self.broker.holding:
            self.send_held()
        if refusal is not None:
            self.send_held()
            self.refuse(ident, *refusal)

    def append(self, piece: Piece, data: bytes) -> tuple[int, bool]:
        try:
            return piece.append(data)
        except InvalidArgumentError as e:
            raise AssertionError(f"the client sent what no broker takes: {e}") from e

    def refuse(self, ident: int, first: int, error: EngineError) -> None:
        said = {"producer_id": ident, "code": error.code, "message": str(error)}
        self.stream.send(Command.SEND_ERROR, {"sequence": first, **said})
        self.end(ident, error)

    def end(self, ident: int, error: EngineError) -> None:
        del self.producers[ident]
        said = {"producer_id": ident, "code": error.code, "message": str(error)}
        self.stream.send(Command.CLOSE_PRODUCER, said)

    def tell_sealed(self) -> None:
        self.send_held()
        for ident, segment in list(self.producers.items()):
            if self.broker.topic.pieces[segment].sealed:
                self.end(ident, SegmentSealedError("sealed"))


def images(payload: memoryview) -> list[tuple[int, bytes]]:
    """(first sequence, image) of the entries of a SEND."""
    found, at = [], 0
    while at < len(payload):
        size, first = struct.unpack_from("<I", payload, at + 4)[0], struct.unpack_from("<Q", payload, at + 48)[0]
        found.append((first, bytes(payload[at : at + size])))
        at += size
    return found
