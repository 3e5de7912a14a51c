"""The commands and their fields as docs/formats/wire.md lists them are those of the code."""

from __future__ import annotations

import re

from engine.wire.commands import HEADERS, Command
from tests.tidy.source_tree import ROOT
from tests.tidy.wire_fields import answer, lines

PAGE = (ROOT / "docs" / "formats" / "wire.md").read_text()


def test_every_command_has_its_header():
    assert list(HEADERS) == list(Command)
    for command, kind in HEADERS.items():
        assert kind.__name__ == command.name.title().replace("_", ""), command.name


def test_every_command_is_listed_with_its_number_and_its_answer():
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\w+) \| (\w*)", PAGE, re.MULTILINE)
    assert [(int(number), name) for number, name, _, _ in rows] == [(int(c), c.name) for c in Command]
    for _, name, sender, answered in rows:
        assert sender in ("client", "broker", "both"), name
        if (expected := answer(HEADERS[Command[name]])) is not None:
            assert answered == expected, name


def test_every_field_is_listed():
    """`python tests/tidy/wire_fields.py` prints the rows."""
    said = [line for line in PAGE.splitlines() if re.match(r"\| \w+ \| (?:`\w+\??` .*)? ?\|$", line)]
    assert said == lines()
