"""Logs as JSON and as text, and what becomes of a flood of warnings."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator

import pytest

from engine.cli import logs
from engine.errors import StorageError
from engine.model.hashrange import HashRange
from engine.model.names import TopicName

TOPIC = TopicName.parse("orders")
SEGMENT = TOPIC.segment(HashRange(0, 65535), 3)


@pytest.fixture
def written() -> Iterator[Callable[[logging.Formatter], tuple[logging.Logger, io.StringIO]]]:
    """A logger with that formatter and the limit, and what it writes."""
    log = logging.Logger("engine.test")  # of its own: nothing of it goes elsewhere

    def make(formatter: logging.Formatter) -> tuple[logging.Logger, io.StringIO]:
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        handler.setFormatter(formatter)
        handler.addFilter(logs.RateLimit())
        log.addHandler(handler)
        return log, stream

    yield make
    log.handlers.clear()


def test_json_has_the_sentence_its_kind_and_its_facts(written):
    log, stream = written(logs.JsonFormatter())
    log.info("%s: %s of %s", TOPIC, "split", [1, 2], extra={"change": "split", "segments": [1, 2]})
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "engine.test",
        "message": f"{TOPIC}: split of [1, 2]",
        "event": "%s: %s of %s",
        "topic": str(TOPIC),
        "change": "split",
        "segments": [1, 2],
    }


def test_json_names_segments_and_errors_among_the_arguments(written):
    log, stream = written(logs.JsonFormatter())
    log.warning("%s cannot be read: %s", SEGMENT, StorageError("the disk is gone"))
    line = json.loads(stream.getvalue())
    assert (line["topic"], line["segment"]) == (str(TOPIC), 3)
    assert (line["error"], line["reason"]) == ("StorageError", "the disk is gone")


def test_json_is_one_line_whatever_is_logged(written):
    log, stream = written(logs.JsonFormatter())
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("it\nfailed", extra={"thing": object()})
    (text,) = stream.getvalue().splitlines()
    line = json.loads(text)
    assert line["message"] == "it\nfailed"
    assert "ValueError: two\nlines" in line["exception"]
    assert line["thing"].startswith("<object")


def test_text_has_its_fields_behind_the_sentence(written):
    log, stream = written(logs.TextFormatter())
    log.info("serving on %s", "engine://x", extra={"url": "engine://x"})
    assert stream.getvalue().endswith("INFO engine.test serving on engine://x url=engine://x\n")


def at(second: float, message: str, level: int = logging.WARNING) -> logging.LogRecord:
    record = logging.LogRecord("engine.test", level, "", 0, message, ("x",), None)
    record.created = second
    return record


def test_of_a_flood_the_first_pass_and_the_rest_are_counted():
    limit = logs.RateLimit()
    passed = [limit.filter(at(1.0 + i / 1000, "closed %s")) for i in range(1_000)]
    assert sum(passed) == logs.BURST
    assert all(passed[: logs.BURST])
    later = at(2.0 + logs.PERIOD_S, "closed %s")
    assert limit.filter(later)
    assert logs.fields_of(later) == {"suppressed": 1_000 - logs.BURST}
    assert limit.filter(calm := at(2.1 + logs.PERIOD_S, "closed %s"))
    assert logs.fields_of(calm) == {}


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.CRITICAL])
def test_what_is_no_warning_is_not_limited(level):
    limit = logs.RateLimit()
    assert all(limit.filter(at(1.0, "same", level)) for _ in range(1_000))


def test_other_warnings_are_not_held_back_and_their_kinds_are_bounded():
    limit = logs.RateLimit()
    for i in range(3 * logs.KINDS_MAX):
        assert limit.filter(at(1.0, f"kind {i}"))
        assert len(limit._seen) <= logs.KINDS_MAX


def test_no_text_of_others_makes_a_line_of_its_own_or_reaches_a_terminal(written):
    log, stream = written(logs.TextFormatter())
    name = "a\x1b[2J\n2026-01-01 ERROR forged\u202e"
    log.info("topic %s", name, extra={"peer": name})
    assert stream.getvalue().count("\n") == 1
    assert "a\\x1b[2J\\n2026-01-01 ERROR forged\\u202e" in stream.getvalue()
    try:
        raise StorageError(name)
    except StorageError:
        log.exception("failed")
    assert "\x1b" not in stream.getvalue()


def test_json_lines_hold_what_was_said_and_nothing_that_a_terminal_obeys(written):
    log, stream = written(logs.JsonFormatter())
    log.info("topic %s", "größe\x9b2J\u202e")
    assert stream.getvalue().strip().isprintable()
    assert json.loads(stream.getvalue())["message"] == "topic größe\x9b2J\u202e"
