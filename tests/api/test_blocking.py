"""The public API for code that does not await, end to end, from several threads."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import engine


def test_the_example_of_the_front_page(tmp_path: Path):
    with engine.open(tmp_path / "data") as e:
        with e.producer("orders") as p:
            mid = p.send(b"first", key="customer-7")
            p.send_nowait(b"second", key=b"k")
            p.send_batch([b"third", b"fourth"], keys=[b"k", b"k"])
            p.flush()
        with e.stream_consumer("orders", "billing", initial_position="earliest") as c:
            msg = c.receive(timeout=10)
            assert msg is not None
            assert (msg.value, msg.id) == (b"first", mid)
            values = []
            while len(values) < 3:
                batch = c.receive_batch(max_messages=10_000, timeout=10)
                values += batch.values
            assert values == [b"second", b"third", b"fourth"]
            c.acknowledge_cumulative(batch)
            assert c.receive(timeout=0) is None
            assert len(c.receive_batch(timeout=0.01)) == 0


def test_sending_from_many_threads(blocking: engine.Client):
    with blocking.producer("t") as producer, ThreadPoolExecutor(8) as pool:

        def work(number: int) -> list[engine.MessageId]:
            for n in range(200):
                producer.send_nowait(b"%d" % n, key=b"n%d" % number)
            return [producer.send(b"%d" % n, key=b"s%d" % number) for n in range(20)]

        ids = [i for found in pool.map(work, range(8)) for i in found]
        assert len(set(ids)) == 160
        producer.flush()
        assert producer.statistics().messages_acknowledged == 8 * 220
    by_key: dict[bytes, list[int]] = {}
    with blocking.stream_consumer("t", "s", initial_position="earliest") as consumer:
        for _ in range(8 * 220):
            message = consumer.receive(timeout=10)
            assert message is not None
            by_key.setdefault(message.key or b"", []).append(int(message.value))
    assert all(found == list(range(len(found))) for found in by_key.values())


def test_receiving_from_many_threads(blocking: engine.Client):
    with blocking.producer("t") as producer:
        producer.send_batch([b"%d" % n for n in range(2_000)])
    with blocking.stream_consumer("t", "s", initial_position="earliest") as consumer, ThreadPoolExecutor(4) as pool:

        def work(_: int) -> list[bytes]:
            found = []
            while (message := consumer.receive(timeout=0.5)) is not None:
                found.append(message.value)
            return found

        values = [v for found in pool.map(work, range(4)) for v in found]
    assert sorted(values) == sorted(b"%d" % n for n in range(2_000))


def test_send_nowait_waits_for_room(blocking: engine.Client):
    with blocking.producer("t", max_pending_bytes=5 << 20) as producer:
        for n in range(60):
            producer.send_nowait(bytes(1 << 20), key=b"%d" % n)
        producer.flush()
        assert producer.statistics().messages_acknowledged == 60


def test_send_nowait_raises_if_asked_to(blocking: engine.Client):
    with blocking.producer("t", max_pending_bytes=5 << 20, block_when_full=False) as producer:

        def fill() -> None:
            for _ in range(10_000):
                producer.send_nowait(bytes(1 << 20))

        with pytest.raises(engine.QueueFullError):
            fill()
        producer.writable()
        producer.flush()


def test_iteration_ends_when_another_thread_closes(blocking: engine.Client):
    with blocking.producer("t") as producer:
        producer.send_batch([b"a", b"b", b"c"])
    consumer = blocking.queue_consumer("t", "s", initial_position="earliest")
    seen = []

    def read() -> None:
        for message in consumer:
            seen.append(message.value)
            consumer.acknowledge(message)
            if len(seen) == 3:
                arrived.set()

    arrived = threading.Event()
    reader = threading.Thread(target=read)
    reader.start()
    assert arrived.wait(10)
    consumer.close()
    reader.join(10)
    assert not reader.is_alive()
    assert sorted(seen) == [b"a", b"b", b"c"]
    with pytest.raises(engine.AlreadyClosedError):
        consumer.receive()


def test_a_checkpoint_consumer(blocking: engine.Client):
    with blocking.producer("t") as producer:
        producer.send_batch([b"%d" % n for n in range(10)], keys=[b"k"] * 10)
    with blocking.checkpoint_consumer("t", start=engine.Checkpoint.earliest()) as reader:
        assert [m.value for m in (reader.receive(timeout=10) for _ in range(4)) if m] == [b"0", b"1", b"2", b"3"]
        kept = reader.checkpoint()
        assert reader.receive(timeout=10).value == b"4"  # type: ignore[union-attr]
        reader.seek(kept)
        assert reader.receive(timeout=10).value == b"4"  # type: ignore[union-attr]
        assert reader.statistics().segments == 1


def test_admin_and_errors(blocking: engine.Client):
    blocking.admin.create_topic("t", segments=2)
    assert blocking.admin.list_topics() == ["topic://public/default/t"]
    with pytest.raises(engine.AlreadyExistsError):
        blocking.admin.create_topic("t")
    with pytest.raises(engine.NotFoundError):
        blocking.admin.get_stats("nothing")
    assert blocking.topic_exists("t")
    assert not blocking.topic_exists("nothing")
    blocking.admin.split_segment("t", 0)
    blocking.admin.merge_segments("t", 2, 3)
    assert blocking.admin.rebucket_segment("t", 4, 5)["epoch"] == 3
    blocking.admin.create_segment("segment://public/default/t/0000-7fff-5")
    blocking.admin.terminate_segment("segment://public/default/t/0000-7fff-0")
    blocking.admin.delete_segment("segment://public/default/t/0000-7fff-0")
    blocking.admin.set_auto_scale_policy("t", {"max_segments": 9})
    assert blocking.admin.get_auto_scale_policy("t") == {"max_segments": 9}
    blocking.admin.remove_auto_scale_policy("t")
    with pytest.raises(engine.InvalidArgumentError, match="max_segments"):
        blocking.admin.set_auto_scale_policy("t", {"max_segments": 0})
    with pytest.raises(engine.InvalidArgumentError):
        blocking.producer("a/b")
    producer = blocking.producer("t")
    blocking.close()
    blocking.close()
    with pytest.raises(engine.AlreadyClosedError):
        producer.send_nowait(b"x")
    with pytest.raises(engine.AlreadyClosedError):
        producer.send(b"x")
    with pytest.raises(engine.AlreadyClosedError):
        blocking.producer("t")


def test_what_was_acknowledged_survives_closing_and_opening(tmp_path: Path):
    with engine.open(tmp_path / "data") as e:
        with e.producer("t") as producer:
            ids = [producer.send(b"%d" % n) for n in range(5)]
        with e.stream_consumer("t", "s", initial_position="earliest") as consumer:
            for _ in range(2):
                message = consumer.receive(timeout=10)
            consumer.acknowledge_cumulative(message)  # type: ignore[arg-type]
    with engine.open(tmp_path / "data") as e, e.stream_consumer("t", "s") as consumer:
        assert [consumer.receive(timeout=10).id for _ in range(3)] == ids[2:]  # type: ignore[union-attr]


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (False, False)])
def test_a_data_directory_that_is_not_shared_has_one_owner(tmp_path: Path, first: bool, second: bool):
    with engine.open(tmp_path / "data", shared=first), pytest.raises(engine.DataDirectoryBusyError):
        engine.open(tmp_path / "data", shared=second)


def test_configuration(tmp_path: Path):
    with engine.open(tmp_path / "a", config={"auto_create_topics": False}) as e, pytest.raises(engine.NotFoundError):
        e.producer("t")
    file = tmp_path / "engine.toml"
    file.write_text("segments = 3\n")
    with engine.open(tmp_path / "b", config=file) as e, e.producer("t"):
        assert len(e.admin.get_metadata("t")["segments"]) == 3
    for wrong in ({"no_such_key": 1}, {"segments": 0}, 3):
        with pytest.raises(engine.InvalidConfigurationError):
            engine.open(tmp_path / "c", config=wrong)  # type: ignore[arg-type]


def test_nobody_listens_there():
    client = engine.Client("engine://127.0.0.1:1")
    with pytest.raises(engine.ConnectError):
        client.producer("t")
    client.close()
    with pytest.raises(engine.InvalidArgumentError):
        engine.Client("http://127.0.0.1")


def test_a_forgotten_close_does_not_hang_nor_lose_what_was_enqueued(tmp_path: Path):
    """At the end of the interpreter everything is flushed and closed."""
    script = f"""
        import engine
        e = engine.open({str(tmp_path / "data")!r})
        p = e.producer("t")
        c = e.stream_consumer("t", "s")
        p.send_nowait(b"x")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)
    with engine.open(tmp_path / "data") as e:
        reader = e.checkpoint_consumer("t", start=engine.Checkpoint.earliest())
        assert reader.receive(timeout=10).value == b"x"  # type: ignore[union-attr]


def test_ctrl_c_leaves_nothing_hanging(tmp_path: Path):
    script = f"""
        import os, signal, threading, engine
        signal.signal(signal.SIGINT, signal.default_int_handler)  # who started the tests may ignore it
        with engine.open({str(tmp_path / "data")!r}) as e:
            with e.stream_consumer("t", "s") as c:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                try:
                    c.receive()
                except KeyboardInterrupt:
                    print("interrupted")
                with e.producer("t") as p:
                    p.send(b"x")
                assert c.receive(timeout=10).value == b"x"
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60, capture_output=True)
    assert run.stdout == b"interrupted\n"


def test_a_consumer_of_another_kind_is_refused_at_once(blocking: engine.Client):
    with blocking.stream_consumer("t", "s"), pytest.raises(engine.SubscriptionKindError):
        blocking.queue_consumer("t", "s")
    with blocking.queue_consumer("t", "s"), pytest.raises(engine.SubscriptionKindError):
        blocking.stream_consumer("t", "s")
