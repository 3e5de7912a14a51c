"""The rules of the log of objects, R1 to R19 of docs/formats/objects.md: each is named by the code that the page says
enforces it, and by a test.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.models.wal.state import Rule
from tests.tidy.source_tree import ENGINE, ROOT, files

PAGE = (ROOT / "docs" / "formats" / "objects.md").read_text()
RULES = [int(number) for number in re.findall(r"^\* \*\*R(\d+)\*\*", PAGE, re.MULTILINE)]
ROWS = re.findall(r"^\| (R\d[^|]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)
OBJECTS = ENGINE / "storage" / "objects"
_NAMED = re.compile(r"\bR(\d{1,2})\b(?: to R(\d{1,2})\b)?")
_IN_A_NAME = re.compile(r"(?<=_)r(\d{1,2})(?=_)")


def named(text: str) -> set[int]:
    """The rules that a text names, also as `R4 to R6`."""
    found = {each for a, b in _NAMED.findall(text) for each in range(int(a), int(b or a) + 1)}
    return found | {int(number) for name in re.findall(r"\btest_\w+", text) for number in _IN_A_NAME.findall(name)}


def paths(where: str) -> list[Path]:
    """The files of one row."""
    return [ENGINE / name if "/" in name else OBJECTS / name for name in re.findall(r"`([\w/]+\.py)`", where)]


def test_rules_are_numbered_without_gaps_and_each_has_a_row() -> None:
    assert list(range(1, len(RULES) + 1)) == RULES
    assert {rule for rules, _ in ROWS for rule in named(rules)} == set(RULES)


@pytest.mark.parametrize(("rules", "where"), ROWS)
def test_a_rule_is_named_where_it_is_enforced(rules: str, where: str) -> None:
    of_files = {path: named(path.read_text()) for path in paths(where)}
    wanted = named(rules)
    assert wanted <= set().union(*of_files.values()), "no file of the row names it"
    silent = [path.name for path, found in of_files.items() if not found & wanted]
    assert not silent, f"they name none of {rules}"
    text = "".join(path.read_text() for path in of_files)
    missing = [name for name in re.findall(r"`(\w+)\(\)`", where) if not re.search(rf"\bdef {name}\b", text)]
    assert not missing


def test_each_rule_is_named_by_a_test() -> None:
    tests = [path for path in files(".py", under=ROOT / "tests") if path != Path(__file__)]
    assert set().union(*(named(path.read_text()) for path in tests if path.name.startswith("test_"))) >= set(RULES)


def test_the_model_has_each_rule_but_that_of_clients() -> None:
    """What clients read (R17) has a model of its own, tests/models/reads.py."""
    assert {int(re.findall(r"\d+", rule.name)[0]) for rule in Rule} == set(RULES) - {17}


@pytest.mark.parametrize(
    ("text", "found"),
    [("(R4 to R6)", {4, 5, 6}), ("R1, R19.", {1, 19}), ("def test_r4_r15_it", {4, 15}), ("SR5 R5a r5_", set())],
)
def test_the_search_finds_what_it_should(text: str, found: set[int]) -> None:
    assert named(text) == found
