"""Checkpoints as of one moment, of a time, and after what retention took: over several segments at once."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import engine

KEYS = [b"k%d" % n for n in range(64)]


def positions_after(messages: list[engine.Message]) -> list[dict[int, int]]:
    """What was delivered, by segment, after each of these, beginning with none."""
    found: list[dict[int, int]] = [{}]
    for message in messages:
        found.append({**found[-1], message.segment_id: message.offset + 1})
    return found


def test_semantics_27_a_checkpoint_is_of_one_moment_in_all_segments(blocking: engine.Client):
    """Taken by one thread while another receives: it is where the other stood between two messages."""
    blocking.admin.create_topic("t", segments=4)
    count = 5000
    with blocking.producer("t") as producer:
        producer.send_batch([b"%d" % n for n in range(count)], keys=[KEYS[n % 64] for n in range(count)])
        producer.flush()
    got: list[engine.Message] = []
    taken: list[engine.Checkpoint] = []
    with blocking.checkpoint_consumer("t", start=engine.Checkpoint.earliest()) as consumer:

        def receive() -> None:
            while len(got) < count:
                message = consumer.receive(timeout=20.0)
                assert message is not None
                got.append(message)

        receiving = threading.Thread(target=receive)
        receiving.start()
        while receiving.is_alive():
            taken.append(consumer.checkpoint())
        receiving.join()
        taken.append(consumer.checkpoint())
    stood = [{i: n for i, n in checkpoint.positions.items() if n} for checkpoint in taken]
    assert all(len(checkpoint.positions) == 4 for checkpoint in taken)
    moments = positions_after(got)
    assert all(place in moments for place in stood)
    for checkpoint, place in ((taken[len(taken) // 2], stood[len(taken) // 2]), (taken[-1], stood[-1])):
        left = count - sum(place.values())
        with blocking.checkpoint_consumer("t", start=checkpoint) as consumer:
            values = {consumer.receive(timeout=20.0).value for _ in range(left)}  # type: ignore[union-attr]
            assert values == {m.value for m in got[count - left :]}
            assert consumer.receive(timeout=0.05) is None


async def test_a_time_is_a_place_in_every_segment(client: engine.AsyncClient):
    await client.admin.create_topic("t", segments=4)
    async with (
        await client.producer("t") as producer,
        await client.checkpoint_consumer("t", start=engine.Checkpoint.earliest()) as consumer,
    ):
        await producer.send_batch([b"before"] * 64, keys=KEYS)
        await producer.flush()
        last = max([await consumer.receive(timeout=20) for _ in KEYS], key=lambda m: m.publish_time).publish_time
        while True:  # until the broker's clock has gone on
            await producer.send(b"between", key=b"k0")
            message = await consumer.receive(timeout=20)
            assert message is not None
            if message.publish_time > last + timedelta(milliseconds=1):
                break
            await asyncio.sleep(0.001)
        await producer.send_batch([b"behind"] * 64, keys=KEYS)
        await producer.flush()
        when = engine.Checkpoint.at_timestamp(message.publish_time)
        async with await client.checkpoint_consumer("t", start=when) as late:
            values = [(await late.receive(timeout=20)).value for _ in range(65)]  # type: ignore[union-attr]
            assert sorted(values) == [b"behind"] * 64 + [b"between"]
            assert await late.receive(timeout=0.05) is None
        for place, expected in (
            (engine.Checkpoint.earliest(), 64),
            (when, 65),
            (engine.Checkpoint.from_bytes(when.to_bytes()), 65),
            (engine.Checkpoint.latest(), 0),
        ):
            await consumer.seek(place)
            for _ in range(expected):
                assert await consumer.receive(timeout=20) is not None
            if expected != 64:
                assert await consumer.receive(timeout=0.05) is None
        await consumer.seek(engine.Checkpoint.earliest())
        kept = engine.Checkpoint.from_bytes((await consumer.checkpoint()).to_bytes())
        assert kept.positions.keys() == {0, 1, 2, 3}
        await consumer.seek(kept)
        assert (await consumer.receive(timeout=20)).value == b"before"  # type: ignore[union-attr]
