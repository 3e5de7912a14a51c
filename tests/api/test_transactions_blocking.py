"""Transactions for code that does not await."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import engine

IN_TIME = 20.0  # for what comes at once, on a busy machine too


def test_a_block_commits_or_aborts(blocking: engine.Client):
    with (
        blocking.producer("t") as producer,
        blocking.stream_consumer("t", "s", initial_position="earliest") as consumer,
    ):
        with blocking.transaction() as transaction:
            producer.send(b"a", key="k", transaction=transaction)
            producer.send_nowait(b"b", key="k", transaction=transaction)
            producer.send_batch([b"c"], ["k"], transaction=transaction)
            assert consumer.receive(timeout=0) is None
            assert repr(transaction) == f"<Transaction {transaction.id} OPEN>"
        assert (transaction.state, transaction.name, transaction.attempt) == ("COMMITTED", None, None)

        def change_of_mind() -> None:
            with blocking.transaction() as aborted:
                producer.send(b"never", transaction=aborted)
                raise RuntimeError(aborted.id)

        with pytest.raises(RuntimeError):
            change_of_mind()
        producer.send(b"after")
        batch = [consumer.receive(timeout=IN_TIME) for _ in range(4)]
        assert [message.value for message in batch if message is not None] == [b"a", b"b", b"c", b"after"]


def test_what_was_taken_is_taken_with_what_was_made_of_it(blocking: engine.Client):
    with blocking.producer("t") as producer:
        producer.send_batch([b"%d" % i for i in range(20)])
    consumer = blocking.queue_consumer("t", "q", initial_position="earliest")
    with consumer, blocking.producer("u") as producer:
        left = 20
        while left:
            batch = consumer.receive_batch(max_messages=6, timeout=IN_TIME)
            with blocking.transaction() as transaction:
                consumer.acknowledge(batch, transaction=transaction)
                for message in batch:
                    producer.send_nowait(message.value, transaction=transaction)
            left -= len(batch)
        assert consumer.receive(timeout=0.05) is None
    with blocking.stream_consumer("u", "s", initial_position="earliest") as result:
        found = [result.receive(timeout=IN_TIME) for _ in range(20)]
        assert sorted(int(message.value) for message in found if message is not None) == list(range(20))


def test_a_stream_acknowledges_and_goes_back(blocking: engine.Client):
    with blocking.producer("t") as producer:
        producer.send_batch([b"a", b"b"], ["k", "k"])
    with blocking.stream_consumer("t", "s", initial_position="earliest") as consumer:
        first = consumer.receive(timeout=IN_TIME)
        assert first is not None
        transaction = blocking.transaction()
        consumer.acknowledge_cumulative(first, transaction=transaction)
        transaction.flush()
        transaction.abort()
        again = consumer.receive(timeout=IN_TIME)
        assert again is not None
        assert again.value == b"a"


def test_attempts_on_threads_of_their_own(blocking: engine.Client):
    """Each worker joins; the driver accepts some."""
    with blocking.producer("t") as producer:
        job = blocking.transaction(name="job")

        def work(attempt: str) -> None:
            with blocking.join_transaction(job.id, attempt) as part:
                for i in range(200):
                    producer.send_nowait(f"{attempt}:{i}".encode(), key=attempt, transaction=part)

        workers = [threading.Thread(target=work, args=(f"{n}",)) for n in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        job.commit(accepted=["1", "3"])
    assert blocking.transaction(name="job").state == "COMMITTED"
    with blocking.stream_consumer("t", "s", initial_position="earliest") as consumer:
        found = [consumer.receive(timeout=IN_TIME) for _ in range(400)]
        for attempt in ("1", "3"):
            of_it = [m.value.decode() for m in found if m is not None and m.key == attempt.encode()]
            assert of_it == [f"{attempt}:{i}" for i in range(200)]
        assert consumer.receive(timeout=0.05) is None


def test_bad_input_is_refused(blocking: engine.Client):
    with pytest.raises(engine.InvalidArgumentError):
        blocking.transaction(0)
    with pytest.raises(engine.TransactionNotFoundError):
        blocking.join_transaction("0" * 16)
    transaction = blocking.transaction()
    with pytest.raises(engine.InvalidArgumentError):
        transaction.commit(accepted="a")
    transaction.commit()
    with pytest.raises(engine.TransactionConflictError):
        transaction.abort()
    with blocking.producer("t") as producer:
        with pytest.raises(engine.TransactionConflictError):
            producer.send(b"late", transaction=transaction)
        with pytest.raises(engine.TransactionConflictError):
            producer.send_nowait(b"late", transaction=transaction)
        with pytest.raises(engine.InvalidArgumentError):
            producer.send(b"x", transaction="no transaction")  # type: ignore[arg-type]
        producer.send(b"goes on")


def test_after_close(blocking: engine.Client):
    transaction = blocking.transaction()
    producer = blocking.producer("t")
    blocking.close()
    with pytest.raises(engine.AlreadyClosedError):
        blocking.transaction()
    with pytest.raises(engine.AlreadyClosedError):
        transaction.commit()
    with pytest.raises(engine.EngineError):
        producer.send_nowait(b"x", transaction=transaction)


def test_what_was_left_is_ended_by_others(tmp_path: Path):
    with engine.open(tmp_path / "data", listen="127.0.0.1:0") as e, e.producer("t") as producer:
        another = engine.Client(e.service_url)
        transaction = another.transaction(name="job")
        with another.transaction(name="job") as again:  # its end commits nothing
            again.leave()
        transaction.leave()
        another.close()
        joined = e.join_transaction(transaction.id)
        assert joined.state == "OPEN"
        producer.send(b"a", transaction=joined)
        joined.commit()
        assert e.transaction(name="job").state == "COMMITTED"
