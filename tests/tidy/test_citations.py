"""Citations: each rule, invariant, bar, proposal and page that the tree cites is in the tree, under that name.

semantics 24, semantics 7 to 9     a rule of docs/semantics.md; test_semantics_24_… in a test's name
D6, T1 to T7                       an invariant of docs/invariants.md; test_d6_…, test_d4_g3_…
P4                                 a bar of docs/bars.md; W1: a workload of the peers, there as well
PIP-468                            a proposal in the index of docs/semantics.md; test_pip_486_…
docs/formats/log.md                a page; with an anchor: a heading of it
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tidy.source_tree import ENGINE, ROOT, files, relative
from tests.tidy.test_docs import PAGES, anchors

DOCS = ROOT / "docs"
SEMANTICS, INVARIANTS, BARS = DOCS / "semantics.md", DOCS / "invariants.md", DOCS / "bars.md"
TESTS = files(".py", under=ROOT / "tests")
MEASURED = ROOT / "benchmarks"  # where P4 and W1 are bars and workloads; elsewhere only on pages

_GAP = r"(?:[ \t]|\n[ \t]*(?:#[ \t]?|\*[ \t])?)+"  # a citation may go on in the next line, of a comment too
_NUMBERS = rf"\d+(?:(?:,|{_GAP}to|{_GAP}and){_GAP}\d+\b(?!\s*[%:.]\d))*"
_RULES = re.compile(rf"\bsemantics{_GAP}({_NUMBERS})", re.IGNORECASE)
_RULE_NAME = re.compile(r"\btest_semantics_(\d+)(?:_(to|and)_(\d+))?(?=_)")
_LETTERS = re.compile(r"(?<![\w%/+.\-=&#{])([DOGCTML])(\d{1,2})\b(?![-.]\d)")
_LETTER_NAME = re.compile(r"\btest_((?:[dogctml]\d_)+)(to_[dogctml]\d_)?")
_BAR = re.compile(r"(?<![\w%/+.\-=&#{])[PW]\d{1,2}\b")
_PIP = re.compile(r"\bPIP-(\d+)|\btest_pip_(\d+)_")
_PAGE = re.compile(r"(?<![\w./])(docs/[\w/-]+\.md)(#[\w-]+)?")
_FILE = re.compile(r"(?<![\w./-])(?:[\w-]+/)*[\w-]+\.(?:pyx|pxd|pyi|py)\b")
# Documents under which the rules were cited before they were pages of the tree.
_STRANGER = re.compile(
    r"\b(?:SEMANTICS|DESIGN|RELIABILITY|STYLE|HOUSE)(?:\.md|(?:\s+sections?)?\s+\d)|\b(?:DESIGN|SEMANTICS)\b"
)


class Citation(NamedTuple):
    """What is cited, as the pages name it, and where in a text."""

    at: int
    name: str


def spread(first: str, last: str | None) -> Iterable[int]:
    """The numbers from one to another, or the one."""
    return range(int(first), int(last or first) + 1)


def citations(text: str, *, bars: bool = False) -> Iterator[Citation]:
    """Everything that a text cites: "semantics 24", "D6", "PIP-468", "docs/x.md", and with `bars` "P4"."""
    for found in _RULES.finditer(text):
        for part in re.finditer(rf"(\d+)(?:{_GAP}to{_GAP}(\d+))?", found[1]):
            yield from (Citation(found.start(), f"semantics {n}") for n in spread(part[1], part[2]))
    for found in _RULE_NAME.finditer(text):
        numbers = spread(found[1], found[3]) if found[2] == "to" else (n for n in found.group(1, 3) if n)
        yield from (Citation(found.start(), f"semantics {n}") for n in numbers)
    for found in _LETTERS.finditer(text):
        yield Citation(found.start(), found[1] + found[2])
        if follows := re.match(rf"{_GAP}to{_GAP}{found[1]}(\d+)\b", text[found.end() :]):
            yield from (Citation(found.start(), f"{found[1]}{n}") for n in spread(found[2], follows[1]))
    for found in _LETTER_NAME.finditer(text):
        names = found[1].upper().strip("_").split("_")
        if found[2]:
            names = [f"{names[0][0]}{n}" for n in spread(names[0][1:], found[2].strip("_")[-1])]
        yield from (Citation(found.start(), name) for name in names)
    for pattern in (_BAR,) if bars else ():
        yield from (Citation(found.start(), found.group()) for found in pattern.finditer(text))
    yield from (Citation(found.start(), f"PIP-{found[1] or found[2]}") for found in _PIP.finditer(text))
    yield from (Citation(found.start(), found[1] + (found[2] or "")) for found in _PAGE.finditer(text))


def rules() -> dict[str, str]:
    """Under each heading of docs/semantics.md what stands there, by "semantics 24"."""
    parts = re.split(r"^### (\d+)\. .*$", SEMANTICS.read_text().split("\n## The specification")[0], flags=re.MULTILINE)
    return {f"semantics {n}": text for n, text in zip(parts[1::2], parts[2::2], strict=True)}


def invariants() -> dict[str, str]:
    """Under each heading of docs/invariants.md what stands there, by "D6"."""
    text = INVARIANTS.read_text().split("\n## Rules with")[0]
    parts = re.split(r"^### ([A-Z]\d)\. .*$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(page: Path, pattern: str) -> set[str]:
    """The first cells of a page's tables that look like this."""
    return set(re.findall(rf"^\| ({pattern}) \|", page.read_text(), re.MULTILINE))


def known() -> set[str]:
    """Whatever may be cited but pages."""
    return {*rules(), *invariants(), *rows(BARS, r"[PW]\d+"), *rows(SEMANTICS, r"PIP-\d+")}


def resolves(name: str, names: set[str]) -> bool:
    """Whether what is cited is there."""
    if not name.startswith("docs/"):
        return name in names
    page, _, anchor = name.partition("#")
    return (ROOT / page).exists() and (not anchor or anchor in anchors(ROOT / page))


def texts() -> Iterator[tuple[Path, str, bool]]:
    """(file, what it says, whether it cites bars) of all that cites."""
    places = [ROOT / place for place in ("src", "tests", "benchmarks", "bindings")]
    sources = [p for place in places for p in files(".py", ".pyx", ".pxd", ".pyi", ".h", under=place)]
    for path in [*sources, *PAGES, ROOT / "Makefile", ROOT / "setup.py"]:
        if path != Path(__file__):
            yield path, path.read_text(), MEASURED in path.parents or path.suffix == ".md"


def line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def test_every_citation_resolves():
    names = known()
    faults = [
        f"{relative(path)}:{line(text, found.at)} cites {found.name}, which is nowhere"
        for path, text, bars in texts()
        for found in citations(text, bars=bars)
        if not resolves(found.name, names)
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_nothing_cites_documents_that_are_elsewhere():
    faults = [
        f"{relative(path)}:{line(text, found.start())} cites {found.group()!r}; cite a page of docs/"
        for path, text, _ in texts()
        for found in _STRANGER.finditer(text)
    ]
    assert not faults, "\n" + "\n".join(faults)


def paths_that_end() -> set[str]:
    """Every end of a path in the tree that begins at a folder or at the file's name."""
    found = set()
    for path in files(".py", ".pyx", ".pxd", ".pyi"):
        parts = path.relative_to(ROOT).parts
        found.update("/".join(parts[i:]) for i in range(len(parts)))
    return found


def test_files_that_are_mentioned_exist():
    """A file that was moved or renamed is mentioned under its new name. A page may show files of a project of its own:
    each begins with its name in a comment.
    """
    ends = paths_that_end()
    faults = [
        f"{relative(path)}:{line(text, found.start())} mentions {found.group()}, which is nowhere"
        for path, text, _ in texts()
        if path.suffix == ".md" or ENGINE in path.parents
        for found in _FILE.finditer(text)
        if found.group() not in ends and f"```py\n# {found.group()}\n" not in text
    ]
    assert not faults, "\n" + "\n".join(faults)


@functools.cache  # with the first test: other workers collect this file, and run none of it
def cited() -> dict[str, set[str]]:
    """What is cited -> the names of the tests' files that do."""
    where: dict[str, set[str]] = {}
    for path in (p for p in TESTS if p != Path(__file__)):
        for found in citations(path.read_text()):
            where.setdefault(found.name, set()).add(path.name)
    return where


def test_rules_are_numbered_without_gaps():
    assert list(rules()) == [f"semantics {n}" for n in range(1, len(rules()) + 1)]


@pytest.mark.parametrize("name", [*rules(), *invariants()])
def test_each_is_cited_by_a_test(name: str):
    assert cited().get(name), f"no test says that it checks {name}"


@pytest.mark.parametrize(("name", "text"), [*rules().items(), *invariants().items()])
def test_the_tests_that_it_names_cite_it(name: str, text: str):
    named = re.findall(r"`(test_\w+\.py)`", text)
    there = {path.name for path in TESTS}
    assert named, f"{name} names no test"
    assert not set(named) - there, f"{name} names tests that do not exist: {sorted(set(named) - there)}"
    silent = [test for test in named if test not in cited().get(name, ())]
    assert not silent, f"{name} names tests that do not cite it: {silent}"


def defined() -> set[str]:
    """The names of all classes and functions of the product."""
    found = set()
    for path in files(".py", ".pyx", ".pxd", under=ENGINE):
        found.update(re.findall(r"^\s*(?:async\s+)?(?:def|class|cdef\s+class)\s+(\w+)", path.read_text(), re.MULTILINE))
    return found


def test_rules_name_parts_that_exist():
    names = defined()
    for rule, text in rules().items():
        (enforced,) = re.findall(r"^\* Enforced: (.*?)\n\*", text, re.MULTILINE | re.DOTALL)
        parts = [part for part in re.findall(r"`([^`]+)`", enforced) if "/" not in part]
        rooms = re.findall(r"\(`([\w/]+)`\)", enforced)
        assert all((ENGINE / room).is_dir() for room in rooms), f"{rule}: no such rooms: {rooms}"
        missing = [part for part in parts if part not in names and part not in rooms]
        assert not missing, f"{rule} names parts that are not in src: {missing}"


def judged() -> Counter[tuple[str, str]]:
    """(bar, what is asked for) of each that `benchmarks/demands.py` judges, as often as it does."""
    found: Counter[tuple[str, str]] = Counter()
    for call in ast.walk(ast.parse((MEASURED / "demands.py").read_text())):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Bar":
            asked = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg in ("at_least", "at_most")}
            for word, factor in asked.items():
                found[ast.literal_eval(call.args[0]), f"{'≥' if word == 'at_least' else '≤'} {factor:g} ×"] += 1
    return found


def test_bars_are_those_that_are_judged():
    table = re.findall(r"^\| (P\d+) \|.*\| ([≥≤] [\d.]+ ×) \|[^|]*\|$", BARS.read_text(), re.MULTILINE)
    assert Counter(table) == judged()


def test_each_bar_has_a_command_that_is_there():
    commands = re.findall(r"^\| P\d+ \|.*\| ([^|]+) \|$", BARS.read_text(), re.MULTILINE)
    groups = set(re.findall(r'^    "(\w+)": \w+,$', (MEASURED / "measures.py").read_text(), re.MULTILINE))
    words = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    holders = set(re.findall(r"^class (\w+)", "\n".join(p.read_text() for p in MEASURED.glob("*.py")), re.MULTILINE))
    wrong = []
    for command in set(commands) - {"the same"}:
        script, group = re.search(r"\w+\.py", command), re.search(r"--only (\w+)", command)
        word, holder = re.search(r"make ([\w-]+)", command), re.search(r"--bench (\w+)", command)
        there = (script and (MEASURED / script[0]).exists()) or (word and word[1] in words)
        if not there or (group and group[1] not in groups) or (holder and holder[1] not in holders):
            wrong.append(command)
    assert len(commands) > 40
    assert not wrong


@pytest.mark.parametrize(("text", "names"), [
    ("(semantics 24)", ["semantics 24"]),
    ("Semantics 7 to 9.", ["semantics 7", "semantics 8", "semantics 9"]),
    ("(PIP-486, semantics 11, 15 to 16)", ["semantics 11", "semantics 15", "semantics 16", "PIP-486"]),
    ("# as in (semantics\n    # 23, 24)", ["semantics 23", "semantics 24"]),
    ('"""by sequence (semantics\n23, 24). A lane"""', ["semantics 23", "semantics 24"]),
    ("def test_semantics_8_and_9_gating", ["semantics 8", "semantics 9"]),
    ("def test_semantics_16_to_18_whatever", ["semantics 16", "semantics 17", "semantics 18"]),
    ("def test_semantics_32_a_steady", ["semantics 32"]),
    ("(L1, G3)", ["L1", "G3"]),
    ("T1 to T3 hold", ["T1", "T1", "T2", "T3", "T3"]),
    ("def test_d4_g3_a_seal", ["D4", "G3"]),
    ("def test_d1_to_d3_kill", ["D1", "D2", "D3"]),
    ("gcc -O1, %2F, 5.0.0-M1, 0xC3, {T1}, AD6, D6a, C3.5", []),
    ("def test_pip_486_buckets", ["PIP-486"]),
    ("as docs/formats/log.md#rules says", ["docs/formats/log.md#rules"]),
])  # fmt: skip
def test_the_search_finds_what_is_cited(text: str, names: list[str]):
    assert sorted(found.name for found in citations(text)) == sorted(names)


def test_bars_are_found_where_they_are_measured():
    assert [c.name for c in citations('Bar("P4", Peer("W1"))', bars=True)] == ["P4", "W1"]
    assert not list(citations('Bar("P4", Peer("W1"))'))


@pytest.mark.parametrize("name", [
    "semantics 0", "semantics 43", "D7", "D0", "G5", "T8", "M5", "L3", "P22", "W9", "PIP-1", "docs/design.md",
    "docs/formats/log.md#no-such-heading",
])  # fmt: skip
def test_what_is_nowhere_does_not_resolve(name: str):
    assert [found.name for found in citations(f"({name})", bars=True)] == [name]
    assert not resolves(name, known())


@pytest.mark.parametrize(
    "name", ["semantics 1", "semantics 42", "D6", "L2", "P1", "W5", "PIP-468", "docs/bars.md#bars"]
)
def test_what_is_there_resolves(name: str):
    assert resolves(name, known())


def test_files_are_found():
    text = "as storage/reader.py and `_native/layout.pxd` do, see tests/tidy/; not engine.storage.reader or ./x.python"
    assert [found.group() for found in _FILE.finditer(text)] == ["storage/reader.py", "_native/layout.pxd"]
    assert "engine/errors.py" in paths_that_end()
    assert "rrors.py" not in paths_that_end()


@pytest.mark.parametrize(("text", "found"), [
    ("(DESIGN section 6)", True), ("SEMANTICS 24", True), ("STYLE 15 asks", True), ("see RELIABILITY.md", True),
    ("style 14", False), ("(semantics 24)", False), ("RELIABILITY", False), ("a STYLE of its own", False),
])  # fmt: skip
def test_documents_that_are_elsewhere_are_found(text: str, found: bool):
    assert bool(_STRANGER.search(text)) is found
