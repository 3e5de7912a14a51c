"""`engine inspect --repair`: a used directory whose metadata are gone, older or damaged serves its messages again."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

import engine as product
from engine.broker.opening import METADATA_FILE

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "directories" / "0.1.0-killed.tar.xz"
TRANSACTED = {"transacted", "transacted-too"}


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, Any]:
    """A directory in `data`, of every kind of state; what is in it."""
    with tarfile.open(GOLDEN) as packed:
        packed.extractall(tmp_path, filter="data")
    return json.loads((tmp_path / "expected.json").read_text())


def files_of(data: Path) -> dict[str, bytes]:
    return {p.relative_to(data).as_posix(): p.read_bytes() for p in sorted(data.rglob("*")) if p.is_file()}


def logs_of(data: Path) -> dict[str, bytes]:
    return {name: content for name, content in files_of(data).items() if name.startswith("segments/")}


def remove_metadata(data: Path) -> None:
    for path in data.glob("metadata.*"):
        path.unlink()


def read(e: product.Engine, topic: str, count: int) -> list[tuple[int, int, bytes]]:
    """So many messages, from the beginning."""
    with e.checkpoint_consumer(topic, start=product.Checkpoint.earliest()) as c:
        received = [c.receive(timeout=60.0) for _ in range(count)]
    return [(m.id.segment_id, m.id.offset, m.value) for m in received]


def visible(topic: str, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """What is read when the outcomes of transactions are lost."""
    kinds = ("before", "between")
    return [m for m in facts["messages"] if topic not in TRANSACTED or m["label"].startswith(kinds)]


def test_without_its_metadata_a_directory_is_repaired(expected: dict[str, Any], tmp_path: Path, engine) -> None:
    data, topics = tmp_path / "data", expected["topics"]
    remove_metadata(data)
    with pytest.raises(product.CorruptionError, match="`engine inspect --repair"):
        product.open(data)
    before = files_of(data)
    assert "`engine inspect --repair" in engine("topics", "list", "--data", data).err
    dry = engine("inspect", "--repair", "--dry-run", data)
    assert dry.code == 0
    assert "Nothing was written" in dry.out
    assert "subscriptions and what they have acknowledged" in dry.out
    assert files_of(data) == before
    assert engine("inspect", "--repair", data).code == 0
    assert logs_of(data) == {k: v for k, v in before.items() if k.startswith("segments/")}
    with product.open(data, config=expected["config"]) as e:
        for topic, facts in topics.items():
            check_layout(e.admin.get_metadata(topic), facts["metadata"])
            sent = visible(topic, facts)
            assert {(s, o) for s, o, _ in read(e, topic, len(sent))} == {(m["segment"], m["offset"]) for m in sent}
        with e.producer("numbered", name="first", initial_sequence_id=-1) as p:
            numbers = topics["numbered"]["producers"]["first"]["sequences"]
            for n in numbers:
                p.send_nowait(b"once more", key=f"key-{n % 11}", sequence_id=n)
            p.flush()
            new = p.send(b"new", sequence_id=numbers[-1] + 1)
        count = len(topics["numbered"]["messages"])
        assert [m for m in read(e, "numbered", count + 1) if m[2] in (b"once more", b"new")] == [
            (new.segment_id, new.offset, b"new")
        ]
    assert "Nothing to repair" in engine("inspect", "--repair", data).out


def check_layout(found: dict[str, Any], lost: dict[str, Any]) -> None:
    """All that files say."""
    same = ("segmentId", "hashRange", "state", "parentIds", "childIds")
    assert found["segments"].keys() == lost["segments"].keys()
    for number, segment in lost["segments"].items():
        assert {k: found["segments"][number][k] for k in same} == {k: segment[k] for k in same}
    assert found["epoch"] > lost["epoch"]
    assert found["nextSegmentId"] >= lost["nextSegmentId"]


def test_messages_of_lost_transactions_can_be_shown(expected: dict[str, Any], tmp_path: Path, engine) -> None:
    data = tmp_path / "data"
    remove_metadata(data)
    report = json.loads(engine("inspect", "--repair", "--dry-run", "--json", data).out)
    hidden = {k: v for k, v in report["hidden_messages"].items() if "/transacted/" in k}
    assert engine("inspect", "--repair", "--transactions", "show", data).code == 0
    plain = len(visible("transacted", expected["topics"]["transacted"]))
    with product.open(data, config=expected["config"]) as e:
        assert len(read(e, "transacted", plain + sum(hidden.values()))) == 58


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A directory with the metadata of before a split; its messages are the numbers from 0 to 59."""
    data = tmp_path / "older"
    with product.open(data) as e:
        e.admin.create_topic("t", properties={"a": "b"}, entry_buckets=2)
        send(e, range(20))
    kept = {p.name: p.read_bytes() for p in data.glob("metadata.*")}
    with product.open(data) as e:
        e.admin.split_segment("t", 0)
        send(e, range(20, 60))
    for name, content in kept.items():
        (data / name).write_bytes(content)
    return data


def send(e: product.Engine, numbers: range) -> None:
    with e.producer("t") as p:
        for n in numbers:
            p.send_nowait(b"%d" % n, key=f"key-{n % 16}")
        p.flush()


def test_an_older_record_goes_on(older: Path, engine) -> None:
    with pytest.raises(product.CorruptionError, match="older copy"):
        product.open(older)
    assert engine("inspect", "--repair", older).code == 0
    assert {p.name for p in (older / "before-repair-1").iterdir()} >= {METADATA_FILE, "metadata.mark"}
    with product.open(older) as e:
        assert sorted(int(value) for _, _, value in read(e, "t", 60)) == list(range(60))
        metadata = e.admin.get_metadata("t")
        assert metadata["properties"] == {"a": "b"}
        assert [s["state"] for s in metadata["segments"].values()] == ["SEALED", "ACTIVE", "ACTIVE"]
        e.admin.split_segment("t", 1)
        send(e, range(60, 80))
        assert len(read(e, "t", 80)) == 80


def test_metadata_that_are_damaged_are_set_aside(older: Path, engine) -> None:
    path = older / METADATA_FILE
    image = bytearray(path.read_bytes())
    image[4096 : 4096 + 2000] = bytes(2000)
    path.write_bytes(image)
    result = engine("inspect", "--repair", older)
    assert result.code == 0
    assert "damaged" in result.out
    assert (older / "before-repair-1" / METADATA_FILE).read_bytes() == bytes(image)
    with product.open(older) as e:
        assert len(read(e, "t", 60)) == 60


def test_a_log_of_the_metadata_that_is_damaged_is_set_aside(tmp_path: Path, engine) -> None:
    """What the file holds without it goes on: subscriptions, for instance."""
    data, killed = tmp_path / "data", tmp_path / "killed"
    with product.open(data) as e:
        e.admin.create_topic("t", properties={"a": "b"})
        e.admin.create_subscription("t", "s", initial_position="earliest")
        send(e, range(20))
    with product.open(data, shared=False) as e:
        e.admin.create_topic("u")
        with e.producer("u") as p:
            p.send(b"late")
        shutil.copytree(data, killed)
    log = killed / f"{METADATA_FILE}-wal"
    image = bytearray(log.read_bytes())
    image[100] ^= 1  # in the first commit
    log.write_bytes(image)
    with pytest.raises(product.CorruptionError, match=r"metadata\.db-wal is damaged"):
        product.open(killed)
    result = engine("inspect", "--repair", killed)
    assert result.code == 0
    assert "the file is used without it" in result.out
    assert (killed / "before-repair-1" / log.name).read_bytes() == bytes(image)
    with product.open(killed) as e:
        assert e.admin.get_metadata("t")["properties"] == {"a": "b"}
        with e.stream_consumer("t", "s") as c:
            assert [int(c.receive(timeout=60.0).value) for _ in range(20)]
        assert [value for _, _, value in read(e, "u", 1)] == [b"late"]


def test_a_mark_that_is_lost_is_made_anew(tmp_path: Path, engine) -> None:
    data = tmp_path / "data"
    with product.open(data) as e:
        e.admin.create_topic("t")
        send(e, range(3))
    (data / "metadata.mark").unlink()
    with pytest.raises(product.CorruptionError, match=r"metadata\.mark is missing"):
        product.open(data)
    assert engine("inspect", "--repair", data).code == 0
    with product.open(data) as e:
        assert len(read(e, "t", 3)) == 3


def test_what_cannot_be_repaired_is_named_and_the_rest_is(older: Path, engine) -> None:
    with product.open(older.with_name("other")) as e:
        e.admin.create_topic("t")
        send(e, range(3))
    damaged = older / "segments" / "public" / "default" / "damaged" / "0000-ffff-0"
    damaged.mkdir(parents=True)
    (damaged / "0.log").write_bytes(b"no log" * 100)
    result = engine("inspect", "--repair", older)
    assert result.code == 1
    assert "not repaired" in result.err
    assert "damaged/0000-ffff-0/0.log" in result.err
    with pytest.raises(product.CorruptionError, match="damaged/0000-ffff-0"):
        product.open(older)
    (damaged / "0.log").unlink()
    with product.open(older) as e:
        assert len(read(e, "t", 60)) == 60


def test_a_topic_whose_name_no_directory_holds_is_named_where_it_is_lost(tmp_path: Path, engine) -> None:
    data, topic = tmp_path / "data", "ä" * 120
    with product.open(data) as e, e.producer(topic) as p:
        p.send(b"1")
    assert "Nothing to repair" in engine("inspect", "--repair", data).out
    remove_metadata(data)
    result = engine("inspect", "--repair", data)
    assert (result.code, result.err.count("not repaired")) == (1, 1)


def test_repair_refuses_what_it_is_not_for(tmp_path: Path, engine) -> None:
    data = tmp_path / "data"
    with product.open(data) as e:
        e.admin.create_topic("t")
        before = logs_of(data)
        result = engine("inspect", "--repair", data)
        assert result.code == 1
        assert "is open in another engine" in result.err
        assert logs_of(data) == before
    assert engine("inspect", "--dry-run", data).code == 2
    assert engine("inspect", "--repair", data / METADATA_FILE).code == 2
    (tmp_path / "empty").mkdir()
    assert engine("inspect", "--repair", tmp_path / "empty").code == 1


def metadata_of(data: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in data.glob("metadata.*") if p.suffix != ".lock"}


def put_back(data: Path, metadata: dict[str, bytes]) -> None:
    remove_metadata(data)
    for name, content in metadata.items():
        (data / name).write_bytes(content)


def send_orders(data: Path, *values: bytes) -> None:
    with product.open(data) as e, e.producer("orders") as producer:
        for value in values:
            producer.send(value, key=b"k")


def test_an_older_copy_of_all_the_metadata_is_refused_and_repaired(tmp_path: Path, engine) -> None:
    """Every record explains what is there; but the logs were written under a later start than the copy knows."""
    data = tmp_path / "data"
    send_orders(data, b"1")
    older = metadata_of(data)
    send_orders(data, b"2")
    put_back(data, older)
    before = files_of(data)
    with pytest.raises(
        product.CorruptionError, match=r"generation 2 of the metadata, and metadata\.db is of generation 1"
    ):
        product.open(data)
    after = files_of(data)
    after.pop("metadata.db.lock")
    assert after == {name: content for name, content in before.items() if name != "metadata.db.lock"}
    dry = engine("inspect", "--repair", data, "--dry-run")
    assert dry.code == 0
    assert "of generation 2" in dry.out
    assert engine("inspect", "--repair", data).code == 0
    send_orders(data, b"3")
    with product.open(data) as e:
        assert [value for *_, value in read(e, "orders", 3)] == [b"1", b"2", b"3"]


def test_the_metadata_of_another_directory_are_refused(tmp_path: Path) -> None:
    send_orders(tmp_path / "a", b"1")
    send_orders(tmp_path / "b", b"2")
    put_back(tmp_path / "a", metadata_of(tmp_path / "b"))
    with pytest.raises(product.CorruptionError, match=r"log files were written under the metadata [0-9a-f]{16}, and"):
        product.open(tmp_path / "a")


def test_the_store_of_a_topic_with_a_long_name_is_missed_too(tmp_path: Path) -> None:
    """Its directory does not say the name, only its checksum."""
    data, topic = tmp_path / "data", "ü" * 120
    with product.open(data) as e, e.producer(topic) as producer:
        producer.send(b"1")
    with product.open(data):
        pass
    remove_metadata(data)
    with pytest.raises(product.CorruptionError, match="~"):
        product.open(data)
