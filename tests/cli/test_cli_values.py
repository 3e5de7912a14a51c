"""What people type: pairs, separators, instants, positions, addresses, lines."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta, timezone

import click
import pytest

from engine.cli import output
from engine.cli.records import raw_records
from engine.cli.serve import address, at
from engine.cli.values import instant, key_values, position, separator
from engine.errors import InvalidArgumentError


def test_pairs():
    assert key_values(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    assert key_values([]) == {}


@pytest.mark.parametrize("text", ["a", "=1", ""])
def test_what_is_no_pair_is_named(text: str):
    with pytest.raises(click.BadParameter, match="NAME=VALUE"):
        key_values([text])


@pytest.mark.parametrize(
    ("text", "meant"), [(None, None), (":", b":"), (r"\t", b"\t"), (r"\0", b"\0"), ("é", "é".encode())]
)
def test_separators(text: str | None, meant: bytes | None):
    assert separator(text) == meant


def test_an_empty_separator_is_refused():
    with pytest.raises(click.BadParameter):
        separator("")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2013-01-01", datetime(2013, 1, 1, tzinfo=UTC)),
        ("2013-01-01T05:00:00Z", datetime(2013, 1, 1, 5, tzinfo=UTC)),
        ("2013-01-01T05:00:00+02:00", datetime(2013, 1, 1, 5, tzinfo=timezone(timedelta(hours=2)))),
        ("1356998400000", datetime(2013, 1, 1, tzinfo=UTC)),
        ("yesterday", None),
        ("9" * 30, None),
    ],
)
def test_instants(text: str, meant: datetime | None):
    assert instant(text) == meant


def test_positions():
    assert position("earliest") == "earliest"
    assert position("2013-01-01") == datetime(2013, 1, 1, tzinfo=UTC)
    with pytest.raises(click.BadParameter, match="earliest, latest"):
        position("noon")


@pytest.mark.parametrize(
    ("text", "pair"),
    [("127.0.0.1:6650", ("127.0.0.1", 6650)), ("[::1]:0", ("::1", 0)), (":8080", ("0.0.0.0", 8080))],
)
def test_addresses(text: str, pair: tuple[str, int]):
    assert address(None, None, text) == pair  # type: ignore[arg-type]
    assert address(None, None, at(pair)) == pair  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["localhost", "localhost:", "localhost:port", "localhost:70000"])
def test_what_is_no_address_is_named(text: str):
    with pytest.raises(click.BadParameter, match="HOST:PORT"):
        address(None, None, text)  # type: ignore[arg-type]


def test_lines_become_messages():
    (found,) = raw_records(io.BytesIO(b"a\nb\n\nc\n"), b"k", common={"p": "q"})
    assert (found.values, found.keys, found.size) == ([b"a", b"b", b"", b"c"], [b"k"] * 4, 7)
    assert list(found.rows())[3] == (b"c", b"k", None, {"p": "q"})
    (found,) = raw_records(io.BytesIO(b"k:v:w\n:x\n"), None, b":")
    assert (found.keys, found.values) == ([b"k", b""], [b"v:w", b"x"])


def test_a_line_without_separator_is_named():
    lines = raw_records(io.BytesIO(b"k:v\nw\nk:x\n"), None, b":")
    assert next(lines).values == [b"v"]
    with pytest.raises(InvalidArgumentError, match="line 2 has no ':'"):
        next(lines)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), ("", "-"), (True, "yes"), (1234567, "1,234,567"), (1.25, "1.2"), ("x", "x")]
)
def test_cells(value: object, text: str):
    assert output.show(value) == text
