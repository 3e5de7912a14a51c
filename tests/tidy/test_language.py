"""The language of the pages: a component is *it*, and a rule says what must be, not what is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy import source_tree
from tests.tidy.prose import faults, faults_in, page_prose, source_prose
from tests.tidy.source_tree import ENGINE, ROOT

PLACES = [ROOT / "docs", ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PLACES += [ROOT / "bindings", ROOT / "benchmarks"]
PLACES += sorted(path for path in ENGINE.iterdir() if path.is_dir() or path.suffix == ".py")


@pytest.mark.parametrize("place", PLACES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_speak_of_components_as_it(place: Path):
    found = faults(place)
    hint = "a component is *it*; 'who' stands behind the noun of a person ('an operator who'); say what a value must be"
    assert not found, f"{hint}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Whoever holds it tells nobody.", ["Whoever", "nobody"]),
        ("the broker who owns it", ["who"]),
        ("| producers | who waits |", ["who"]),
        ("It asks him, and someone answers.", ["him", "someone"]),
        ("an int of at least 0 is\nright", ["is\nright"]),
        ("an int of at least 0 is right", ["is right"]),
        ("an operator who restarts it; users, who may not", []),
        ("segments whose ranges tile the ring lie right behind it", []),
        ("its file is right behind the header", []),
    ],
)
def test_the_rule_finds(text: str, found: list[str]):
    assert [words for _, words in sorted(faults_in(text))] == found


def test_pages_are_read_without_code():
    page = "# It\n\n```console\n$ whoami # nobody\n```\n\nSee `who` and [this](nobody.md).\nHere he is.\n"
    ((line, prose),) = page_prose(page)
    assert list(faults_in(prose, line)) == [(8, "he")]


def test_sources_are_read_by_comments_and_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(source_tree, "ROOT", tmp_path)
    python = 'who = {"nobody": 1}  # somebody asks\nraise ValueError(f"x is {who}; y is right")\n'
    assert [f for line, words in source_prose(python, ".py") for f in faults_in(words, line)] == [
        (1, "somebody"),
        (2, "is right"),
    ]
    (tmp_path / "a.pyx").write_text('"""One.\n\nHe waits."""\ncdef int who  # the reader who is late\n')
    (tmp_path / "b.h").write_text("int he; /* nobody\n here */\n")
    assert faults(tmp_path) == ["a.pyx:3 says 'He'", "a.pyx:4 says 'who'", "b.h:1 says 'nobody'"]
