"""What is no frame of Apache Pulsar's protocol ends its own connection, with the reason, and nothing else."""

from __future__ import annotations

import random
import struct

import pytest

from engine.pulsar import consumers
from engine.pulsar.messages import FIELDS, command, framed
from tests.pulsar.conftest import EARLIEST, WAIT_MS
from tests.pulsar.raw import CONNECT, Raw, greeted
from tests.reference.pulsar_reference import PulsarMessage, payload_of


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (struct.pack(">II", 0x7FFFFFFF, 5) + bytes(20), "at most"),
        (struct.pack(">II", 12, 100) + bytes(20), "hold its command"),
        (struct.pack(">II", 12, 8) + b"\xff" * 8, "a command of"),
        (struct.pack(">II", 6, 2) + b"\x08\x63", "does not know command 99"),
        (CONNECT, "does not accept CONNECT"),
        (framed("send", producer=2**63, sequence=1), "an id must be below"),
    ],
    ids=["giant", "size", "garbage", "unknown", "twice", "id"],
)
async def test_what_is_no_command_ends_the_connection(served, sent, why, caplog):
    async with Raw(served) as raw:
        await greeted(raw)
        await raw.say(sent)
        errors = await raw.ends()
        assert why in " ".join(errors) or why in caplog.text


async def test_the_first_frame_must_be_connect(served):
    async with Raw(served) as raw:
        await raw.say(framed("lookup", topic="t", request=1))
        assert "must be CONNECT" in (await raw.ends())[0]


async def test_half_a_frame_and_the_end(served, client, topic):
    for cut in (1, 5, 9, len(CONNECT) - 1):
        async with Raw(served) as raw:
            await raw.say(CONNECT[:cut])
    client.create_producer(topic).send(b"still there")


async def test_a_frame_in_single_bytes(served):
    async with Raw(served) as raw:
        for i in range(len(CONNECT)):
            await raw.say(CONNECT[i : i + 1])
        heard = await raw.hear()
        assert heard is not None
        assert heard[0] == "connected"


def sending(payload: bytes, sequence: int = 0) -> bytes:
    head = command("send", producer=1, sequence=sequence)
    return struct.pack(">II", 4 + len(head) + len(payload), len(head)) + head + payload


async def test_a_bad_payload_is_refused_in_its_turn_and_nothing_of_it_is_stored(served, client, topic):
    good = payload_of([PulsarMessage(b"good", b"k")])
    bad = bytearray(good)
    bad[-1] ^= 1
    async with Raw(served) as raw:
        await greeted(raw)
        await raw.say(framed("producer", topic=topic, producer=1, request=5))
        heard = await raw.hear()
        assert heard is not None
        assert heard[0] == "producer_success"
        rng = random.Random(3)
        hostile = [bytes(bad), b"", b"\x0e\x01", good[:-1], *(rng.randbytes(60) for _ in range(50))]
        await raw.say(*(sending(one, i) for i, one in enumerate(hostile)), sending(good, 99))
        for i in range(len(hostile)):
            heard = await raw.hear()
            assert heard is not None
            assert (heard[0], heard[1].sequence) == ("send_error", i)
        heard = await raw.hear()
        assert heard is not None
        assert (heard[0], heard[1].sequence, heard[1].message_id.entry) == ("send_receipt", 99, 0)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert consumer.receive(WAIT_MS).data() == b"good"


async def test_acknowledgements_and_seeks_that_name_nothing(served, topic):
    async with Raw(served) as raw:
        await greeted(raw)
        await raw.say(framed("subscribe", topic=topic, subscription="s", type=1, consumer=1, request=1))
        heard = await raw.hear()
        assert heard is not None
        assert heard[0] == "success"
        for number, entry in enumerate((0, 5, 2**62, 2**64 - 1), 2):
            await raw.say(framed("ack", consumer=1, type=0, request=number, ids=[{"ledger": 0, "entry": entry}]))
            heard = await raw.hear()
            assert heard is not None
            assert heard[0] == "ack_response"
            assert "must name the first message" in heard[1].message
        for number, (entry, why) in enumerate(((2**64 - 1, ""), (0, "must be there"), (2**62, "must be there")), 10):
            await raw.say(framed("ack", consumer=1, type=1, request=number, ids=[{"ledger": 0, "entry": entry}]))
            heard = await raw.hear()
            assert heard is not None
            assert why in heard[1].message
        await raw.say(framed("ack", consumer=9, type=0, request=20, ids=[{"ledger": 0, "entry": 0}]))
        heard = await raw.hear()
        assert heard is not None
        assert "not attached" in heard[1].message
        await raw.say(framed("seek", consumer=9, request=21), framed("ping"))
        assert [await raw.hear() for _ in range(2)]


async def test_closing_what_the_broker_has_closed_succeeds(served, topic):
    """A seek of one consumer closes the others, and a client that has not heard of it closes them as well."""
    async with Raw(served) as raw:
        await greeted(raw)
        for number in (1, 2):
            await raw.say_command("subscribe", topic=topic, subscription="s", type=1, consumer=number, request=number)
            assert (await raw.heard("success")).request == number
        await raw.say_command("seek", consumer=1, request=3, message_id={"ledger": 2**64 - 1, "entry": 2**64 - 1})
        assert (await raw.heard("success")).request == 3
        for number, what in ((4, "consumer"), (5, "producer")):
            await raw.say_command(f"close_{what}", **{what: 2, "request": number})
            assert (await raw.heard("success")).request == number


async def test_readers_that_are_moved_and_never_come_back_are_forgotten(served, topic, monkeypatch):
    """Each would be remembered for as long as the connection lives."""
    made, begin = [], consumers.Consumers.__init__

    def noted(self, *given):
        begin(self, *given)
        made.append(self)

    monkeypatch.setattr(consumers.Consumers, "__init__", noted)
    monkeypatch.setattr(consumers, "SOUGHT_MAX", 3)
    async with Raw(served) as raw:
        await greeted(raw)
        for number in range(1, 11):
            reader = {"topic": topic, "subscription": f"r{number}", "type": 0, "durable": False}
            await raw.say_command("subscribe", **reader, consumer=number, request=2 * number)
            assert (await raw.heard("success")).request == 2 * number
            await raw.say_command("seek", consumer=number, request=2 * number + 1, publish_time=1)
            assert (await raw.heard("success")).request == 2 * number + 1
        assert [len(one._sought) for one in made] == [3]


async def test_random_commands_leave_the_broker_as_it_was(served, client, topic):
    rng = random.Random(11)
    names = [name for name in FIELDS.values() if name not in ("connect", "message")]
    for _ in range(30):
        async with Raw(served) as raw:
            await greeted(raw)
            frames = []
            for _ in range(20):
                frame = bytearray(framed(rng.choice(names)))
                frame += rng.randbytes(rng.randrange(20))
                frame[0:4] = (len(frame) - 4).to_bytes(4, "big")
                frames.append(bytes(frame))
            raw.writer.writelines(frames)
    client.create_producer(topic).send(b"still there")
