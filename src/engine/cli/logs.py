"""Logs as lines of text or of JSON, with facts as fields; a flood of equal warnings is rate-limited.

Fields are those passed as `extra=`, and those arguments of the message whose type identifies them: a topic, a segment,
an error. They are part of the message too.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from engine.model.names import SegmentName, TopicName
from engine.model.text import plain

BURST = 10  # warnings of one kind, in one period, that are all written
PERIOD_S = 10.0
KINDS_MAX = 1_000  # kinds of warnings that are tracked; above, tracking restarts

# Attributes that the standard library puts into every record; all others are fields.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """One line: time, level, source, message, fields as name=value; foreign text cannot break it into two."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """The sentence with its fields."""
        text = super().formatMessage(record)
        return plain(" ".join([text, *(f"{name}={value}" for name, value in fields_of(record).items())]))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the library's name
        """What was raised, on its lines."""
        return plain(super().formatException(ei), keep="\n\t")


class JsonFormatter(logging.Formatter):
    """One object a line. `event` is the message before formatting: the same for all of its kind."""

    def format(self, record: logging.LogRecord) -> str:
        """Time in UTC, level, logger, message, event, fields, and what was raised."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.args:
            line["event"] = str(record.msg)
        line |= arguments_of(record) | fields_of(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        text = json.dumps(line, default=str, ensure_ascii=False)
        return text if text.isprintable() else json.dumps(line, default=str)  # a terminal may show it


class RateLimit(logging.Filter):
    """Passes BURST warnings and errors of one kind per period; the next one that passes carries the count of others.

    A kind is a logger and a message before formatting. Critical records always pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}  # since when, how many

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is written; `suppressed` of a record: how many of its kind were not."""
        if not logging.WARNING <= record.levelno < logging.CRITICAL:
            return True
        kind = (record.name, str(record.msg))
        since, count = self._seen.get(kind, (record.created, 0))
        if record.created - since >= PERIOD_S:
            if count > BURST:
                record.suppressed = count - BURST
            since, count = record.created, 0
        if len(self._seen) >= KINDS_MAX:
            self._seen.clear()
        self._seen[kind] = since, count + 1
        return count < BURST


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Those passed as `extra`, and `suppressed`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def arguments_of(record: logging.LogRecord) -> dict[str, Any]:
    """Arguments that are names or errors, as fields."""
    found: dict[str, Any] = {}
    for argument in record.args if isinstance(record.args, tuple) else ():
        if isinstance(argument, SegmentName):
            found |= {"topic": str(argument.topic), "segment": argument.segment_id}
        elif isinstance(argument, TopicName):
            found["topic"] = str(argument)
        elif isinstance(argument, BaseException):
            found |= {"error": type(argument).__name__, "reason": str(argument)}
    return found


def configure(level: str, log_format: str) -> None:
    """All logs of the process go to the error stream. `log_format`: "text" or "json"."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(RateLimit())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
