"""Auto-scale on the command line: what is overridden, what is in effect, who says so, and why nothing happens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.cli import autoscale, dag, statistics

Run = Callable[..., Any]

LOAD = {"msgRateIn": 12.5, "bytesRateIn": 2048.0, "msgRateOut": 25.0, "bytesRateOut": 4096.0, "ageMs": 65_000}


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    return ["--data", str(tmp_path / "own")]


def said_by(shown: str, field: str) -> list[str]:
    """The row of a field: its value and who says so."""
    (row,) = re.findall(rf"^{field} +(.+?) +(topic|namespace|broker) *$", shown, re.MULTILINE)
    return list(row)


def test_a_topic_says_what_it_overrides_and_what_is_in_effect(engine: Run, place: list[str]):
    engine("topics", "create", "t", *place)
    done = engine("topics", "autoscale", "set", "t", "--max-segments", 8, "--split-cooldown", "2m", *place)
    assert (done.code, done.err) == (0, "t overrides max_segments, split_cooldown\n")
    engine("namespaces", "autoscale", "set", "public/default", "--max-segments", 4, "--merge-window", 90, *place)
    shown = engine("topics", "autoscale", "show", "t", *place).out
    assert re.search(r"^auto-scale +on *$", shown, re.MULTILINE)
    assert said_by(shown, "max_segments") == ["8", "topic"]
    assert said_by(shown, "split_cooldown") == ["120 s", "topic"]
    assert said_by(shown, "merge_window") == ["90 s", "namespace"]
    assert said_by(shown, "split_bytes_rate_in_threshold") == ["50.0 MiB/s", "broker"]
    facts = json.loads(engine("topics", "autoscale", "show", "t", "--json", *place).out)
    assert facts["topic"] == {"max_segments": 8, "split_cooldown": 120.0}
    assert facts["namespace"] == {"max_segments": 4, "merge_window": 90.0}
    assert facts["policy"]["maxSegments"] == 8
    assert engine("topics", "autoscale", "remove", "t", *place).code == 0
    assert said_by(engine("topics", "autoscale", "show", "t", *place).out, "max_segments") == ["4", "namespace"]


def test_the_history_says_what_was_decided_and_when(engine: Run, place: list[str]):
    engine("topics", "create", "t", *place)
    found = json.loads(engine("topics", "autoscale", "history", "t", "--json", *place).out)
    assert (found["leading"], found["decisions"]) == (False, [])
    assert engine("topics", "autoscale", "history", "t", *place).err == "no leader answers\n"
    assert "does not exist" in engine("topics", "autoscale", "history", "none", *place).err


def test_a_namespace_says_what_it_overrides(engine: Run, place: list[str]):
    nothing = "public/default overrides nothing\n"
    assert engine("namespaces", "autoscale", "set", "public/default", "--disable", *place).code == 0
    shown = engine("namespaces", "autoscale", "show", "public/default", *place)
    assert re.search(r"^enabled +no *$", shown.out, re.MULTILINE)
    assert json.loads(engine("namespaces", "autoscale", "show", "public/default", "--json", *place).out) == {
        "enabled": False
    }
    assert engine("namespaces", "autoscale", "remove", "public/default", *place).err == nothing
    assert engine("namespaces", "autoscale", "show", "public/default", *place).err == nothing


def test_what_is_wrong_together_is_shown(engine: Run, place: list[str]):
    engine("topics", "create", "t", *place)
    done = engine("topics", "autoscale", "set", "t", "--min-segments", 65, *place)
    assert done.err == "t overrides min_segments\nauto-scale is off: min_segments is 65, above max_segments, 64\n"
    shown = engine("topics", "autoscale", "show", "t", *place).out
    assert re.search(r"^auto-scale +off: min_segments is 65, above max_segments, 64 *$", shown, re.MULTILINE)
    assert "off: min_segments" in engine("topics", "describe", "t", *place).out


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ((), 2, "give at least one field"),
        (("--split-cooldown", "soon"), 2, "a duration must be like 90s, 5m or 2h, got 'soon'"),
        (("--merge-bytes-rate-in-threshold", "5s"), 2, "a size must be like 512KB, 50MB or 2GB, got '5s'"),
        (("--max-segments", 0), 1, "max_segments must be an integer from 1"),
    ],
)
def test_what_is_mistyped_is_named(engine: Run, place: list[str], options: tuple[object, ...], code: int, text: str):
    engine("topics", "create", "t", *place)
    for words in (("topics", "autoscale", "set", "t"), ("namespaces", "autoscale", "set", "public/default")):
        refused = engine(*words, *options, *place)
        assert refused.code == code
        assert text in refused.err


def test_decisions_as_people_read_them():
    decision = {"action": "split", "segments": [3], "reason": "load", "suppressed": ["merge_cooldown"], "atMs": 0}
    assert autoscale.decision_text(decision) == (
        "1970-01-01T00:00:00+00:00: split of 3, because: load; held back by merge_cooldown"
    )
    waiting = {"action": "nothing", "segments": [], "reason": "max_segments", "suppressed": ["max_segments"], "atMs": 0}
    assert autoscale.decision_text(waiting).endswith(": nothing, because: max_segments")
    assert autoscale.decision_text(None) == "none yet, since this broker leads the topic"


def test_loads_shares_and_owners_that_do_not_answer(capsys: pytest.CaptureFixture[str]):
    segment = {
        "state": "ACTIVE",
        "hashRange": {"start": 0, "end": 0xFFFF},
        "bucketCount": 4,
        "firstOffset": 0,
        "nextOffset": 5,
        "storageSize": 10,
        "producerCount": 1,
        "msgRateIn": 1.0,
        "msgRateOut": 2.0,
        "unavailable": None,
        "load": LOAD,
    }
    gone = {**segment, "unavailable": "no owner answered", "load": None}
    statistics.print_segments({"0": segment, "1": gone})
    statistics.print_loads({"0": segment, "1": gone, "2": {**segment, "state": "SEALED"}})
    shown = capsys.readouterr().out
    assert re.search(r"^ +1 +0000-ffff +ACTIVE +4 +- +- +- +- +- *$", shown, re.MULTILINE)
    assert "segment 1 is unavailable: no owner answered\n" in shown
    assert re.findall(r"^ +(\d) +12.5 +2.0 KiB/s +25.0 +4.0 KiB/s +65 s *$", shown, re.MULTILINE) == ["0"]
    assert (dag.message_count(segment), dag.message_count(gone)) == ("5 messages", "unavailable")
    assert statistics.share({"segments": [0, 2], "buckets": {"2": 3}}) == "0, 2 (3 buckets)"
    assert statistics.share({"segments": list(range(20)), "buckets": {}}).endswith("11 and 8 more")
