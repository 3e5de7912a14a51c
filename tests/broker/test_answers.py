"""A peer that asks for much and does not read costs a bounded part of the broker's memory."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from engine.broker.session.answers import REQUEST_BYTES_MAX, Answers
from engine.limits import CONNECTION_WRITE_HIGH, KIB, MIB
from engine.wire.commands import Command
from tests.kit.peer import Peer, listening, until

LIST = {"namespace": "public/default", "properties": None, "pattern": None, "after": None}


async def test_requests_that_wait_are_bounded_by_what_their_headers_take(start_broker):
    async with start_broker() as broker:
        url = await listening(broker)
        peer = await Peer.connect(broker, url)
        (connection,) = broker.connections
        heap = broker.memory.topic_lists
        heap.pool(next(iter(heap.statistics()))).resize(0)
        blocker = await heap.acquire(1, next(iter(heap.statistics())))  # whoever asks waits
        size = 100 * KIB
        requests = [peer.next_id() for _ in range(100)]
        for request_id in requests:
            header = {"request_id": request_id, **LIST, "unknown": "x" * size}
            peer.send(Command.GET_TOPICS_OF_NAMESPACE, header)
        await until(lambda: connection.held)
        for _ in range(100):
            await asyncio.sleep(0)
        assert connection.pulse.frames <= 2 + REQUEST_BYTES_MAX // size + 1
        heap.release(blocker)
        for request_id in requests:
            await peer.take(Command.SUCCESS, request_id=request_id)


async def test_lookups_are_answered_as_the_peer_reads_and_all_of_them_in_the_end(start_broker):
    async with start_broker() as broker:
        url = await listening(broker)
        await broker.admin.create_topic("wide", segments=1024)
        other = await Peer.connect(broker, url)
        peer = await Peer.connect(broker, url)
        connection = list(broker.connections)[-1]
        peer.stop_reading()
        # What the system holds for a peer that does not read differs between machines: here it is little.
        connection.stream.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 256 * KIB)
        sessions = [peer.next_id() for _ in range(120)]  # of 100 KB each
        for session in sessions:
            header = {"request_id": session, "session_id": session, "topic": "wide", "create": False}
            peer.send(Command.SCALABLE_TOPIC_LOOKUP, header)
        await until(lambda: not connection.answers.idle and connection.stream.unsent_bytes > 2 * CONNECTION_WRITE_HIGH)
        await other.ask(Command.SCALABLE_TOPIC_LOOKUP, session_id=1, topic="wide", create=False)
        assert connection.stream.unsent_bytes < 2 * CONNECTION_WRITE_HIGH + MIB
        assert broker.memory.lookups.used == 0  # who does not read does not take others' turn
        peer.resume_reading()
        for session in sessions:
            await peer.take(Command.SCALABLE_TOPIC_UPDATE, request_id=session)


async def test_a_connection_counts_for_the_address_it_came_from_whatever_a_proxy_says_of_it(start_broker):
    async with start_broker(connections_per_address_max=2) as broker:
        url = await listening(broker)
        for _ in range(4):
            peer = await Peer.connect(broker, url, hello=False)
            await peer.hello(forwarded="192.0.2.1:1")
            peer.stream.close()
            await until(lambda: not broker.connections)


async def test_a_namespace_without_topics_is_not_kept_by_those_who_ask_for_it(start_broker):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        for n in range(5):
            await peer.ask(Command.GET_TOPICS_OF_NAMESPACE, **{**LIST, "namespace": f"a/n{n}"})
        await until(lambda: not broker.service.topic_lists.namespaces)
        session = peer.next_id()
        await peer.ask(
            Command.WATCH_TOPIC_LIST, session_id=session, namespace="a/n0", properties=None, pattern=None, hash=None
        )
        await asyncio.sleep(0)
        assert broker.service.topic_lists.namespaces == 1  # while it is followed


class Told:
    """A connection, and its stream, that note what happens to them."""

    takes_answers = True

    def __init__(self) -> None:
        self.stream = self.pressure = self
        self.header_size = 0
        self.said: list[object] = []

    def succeed(self, request_id: int, result: object) -> None:
        self.said.append(request_id)

    def flush(self) -> None:
        self.said.append("flush")

    def release(self, reason: object) -> None: ...


async def test_an_answer_goes_at_once_when_no_other_is_to_come_along():
    connection: Any = Told()
    answers = Answers(connection)
    gates = [asyncio.Event() for _ in range(3)]

    async def request(gate: asyncio.Event) -> dict[str, Any]:
        await gate.wait()
        return {}

    work = [asyncio.ensure_future(answers.work(i, request(gate), answers.begun())) for i, gate in enumerate(gates)]
    for gate, task in zip(gates, work, strict=True):
        gate.set()
        await task
    assert connection.said == [0, 1, 2, "flush"]
    assert answers.idle


async def test_bodies_of_requests_to_the_admin_api_are_bounded_together(broker, http):
    bodies = broker.memory.bodies
    bodies.resize(MIB)
    address = http._base_url
    head = b"PUT /admin/v2/namespaces/a/b/policies HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    half = head + b"Content-Length: 1000000\r\n\r\n" + bytes(KIB)
    writers = [(await asyncio.open_connection(address.host, address.port))[1] for _ in range(5)]
    for writer in writers:
        writer.write(half)
    await until(lambda: bodies.queue == 4)
    assert bodies.used == 1_000_000
    for writer in writers:
        writer.close()
    await until(lambda: not bodies.used and not bodies.queue)
    async with http.put("/admin/v2/scalable/public/default/t", json={"segments": 2}) as answer:
        assert answer.status == 204
