"""The transaction of a job as its tasks and its driver see it, without a job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark_engine import attempts
from pyspark_engine.attempts import Attempt, Written
from pyspark_engine.options import Connection

import engine

POLL_S = 0.05


@pytest.fixture
def connection(broker: engine.Engine) -> Connection:
    return Connection(broker.service_url)


@pytest.fixture
def client(connection: Connection) -> Iterator[engine.Client]:
    """A task's."""
    with engine.Client(connection.url) as client:
        yield client


def write(client: engine.Client, name: str, topic: str, value: bytes) -> Written:
    """A task."""
    with client.producer(topic) as producer, Attempt(client, name, 60.0) as attempt:
        if not attempt.done:
            producer.send(value, transaction=attempt.transaction)
    return attempt.written


def read(broker: engine.Engine, topic: str) -> list[bytes]:
    """All that may be read."""
    with broker.topic_view(topic) as view:
        ranges = {i: (s.first, s.end) for i, s in view.segments(exact=True).segments.items()}
    with broker.range_reader(topic, ranges) as reader:
        return sorted(message.value for message in reader)


def test_attempts_that_count(broker: engine.Engine, client: engine.Client, connection: Connection, topic: str):
    """Of three runs of two tasks; then the driver commits once more, and another run of the job does nothing."""
    first, _, third = (write(client, topic, topic, value) for value in (b"first", b"second", b"third"))
    attempts.commit(connection, [first, None, Written(), third])
    attempts.commit(connection, [first, third])
    again = write(client, topic, topic, b"again")
    assert (again.transaction, again.attempt) == (first.transaction, None)
    attempts.commit(connection, [again])
    assert read(broker, topic) == [b"first", b"third"]


def test_another_run_of_the_job_was_faster(
    broker: engine.Engine, client: engine.Client, connection: Connection, topic: str
):
    """It commits while a task of this one writes, or when the driver is about to."""
    early = write(client, topic, topic, b"early")
    late = write(client, topic, topic, b"late")
    with client.producer(topic) as producer, Attempt(client, topic, 60.0) as attempt:
        attempts.commit(connection, [early])
        producer.send(b"too late", transaction=attempt.transaction)
    assert attempt.done
    attempts.commit(connection, [late])
    attempts.abort(connection, [late], topic)
    assert read(broker, topic) == [b"early"]


def write_behind_abort(broker: engine.Engine, client: engine.Client, topic: str) -> None:
    """A task that is in the middle when the transaction is aborted, as its timeout would."""
    with client.producer(topic) as producer, Attempt(client, topic, 60.0) as attempt:
        broker.admin.abort_transaction(attempt.transaction.id)
        producer.send(b"never", transaction=attempt.transaction)


def test_a_job_that_was_given_up(broker: engine.Engine, client: engine.Client, connection: Connection, topic: str):
    """Its tasks say so; half of it is never committed."""
    before = write(client, topic, topic, b"before")
    with pytest.raises(RuntimeError, match="was aborted during the write"):
        write_behind_abort(broker, client, topic)
    behind = write(client, topic, topic, b"behind")
    with pytest.raises(RuntimeError, match="have written in two of them"):
        attempts.commit(connection, [before, behind])
    attempts.abort(connection, [before, behind], None)
    assert read(broker, topic) == []
    assert not [t for t in broker.admin.list_transactions() if t["name"] == topic]


def test_a_failed_job_is_ended_by_its_name(
    broker: engine.Engine, client: engine.Client, connection: Connection, topic: str
):
    """Where no task could say which transaction it was."""
    written = write(client, topic, topic, b"never")
    attempts.abort(connection, [None, None], topic)
    assert broker.admin.get_transaction(str(written.transaction))["state"] == "ABORTED"


def test_a_late_task_of_a_job_that_nobody_runs_again(
    broker: engine.Engine, client: engine.Client, connection: Connection, topic: str
):
    """It finds that there is nothing to do, whether it had begun or not."""
    written = write(client, topic, topic, b"never")
    with client.producer(topic) as producer, Attempt(client, topic, 60.0) as attempt:
        attempts.abort(connection, [written, None], topic, for_good=True)
        producer.send(b"never", transaction=attempt.transaction)
    assert attempt.done
    assert write(client, topic, topic, b"never").attempt is None
    assert read(broker, topic) == []
    assert not [t for t in broker.admin.list_transactions() if t["name"] == topic]


def test_what_was_committed_is_not_given_up(
    broker: engine.Engine, client: engine.Client, connection: Connection, topic: str
):
    """Spark aborts a job whose commit has failed as it saw it."""
    written = write(client, topic, topic, b"there")
    attempts.commit(connection, [written])
    attempts.abort(connection, [written], topic, for_good=True)
    assert read(broker, topic) == [b"there"]


def test_the_driver_knows_the_query_by_its_checkpoint(tmp_path: Path):
    folder = tmp_path / "a query"
    folder.mkdir()
    assert attempts.name_in_driver(None, str(folder), 7) is None
    (folder / "metadata").write_text('{"id":"0a1b"}')
    assert attempts.name_in_driver(None, str(folder), 7) == "spark-0a1b-7"
    assert attempts.name_in_driver(None, folder.as_uri(), 7) == "spark-0a1b-7"
    assert attempts.name_in_driver("mine", None, 7) == "mine-7"
    for elsewhere in (None, "", "s3://bucket/a query", f"hdfs://host{folder}"):
        assert attempts.name_in_driver(None, elsewhere, 7) is None
    (folder / "metadata").write_text("[]")
    assert attempts.name_in_driver(None, str(folder), 7) is None


def test_who_writes_puts_the_end_off(broker: engine.Engine, client: engine.Client, topic: str):
    with Attempt(client, topic, 8.0) as attempt:
        first = broker.admin.get_transaction(attempt.transaction.id)["deadlineMs"]
        while broker.admin.get_transaction(attempt.transaction.id)["deadlineMs"] == first:
            time.sleep(POLL_S)
    attempt.transaction.abort()


def test_a_worker_that_ends_does_not_end_the_job(broker: engine.Engine, connection: Connection, topic: str):
    with engine.Client(connection.url) as one:
        written = write(one, topic, topic, b"value")
    attempts.commit(connection, [written])
    assert read(broker, topic) == [b"value"]
