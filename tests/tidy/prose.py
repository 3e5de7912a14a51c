"""Finds prose that speaks of components as if they were persons, in pages (.md) and in comments and texts of sources.

A component is *it*. "who" is for persons, and stands directly behind the noun that names them: "an operator who …".
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.source_tree import relative

SUFFIXES = {".md", ".py", ".pyi", ".pyx", ".pxd", ".h"}

# Words for persons, in a noun's place: no component has any of them.
_PRONOUN = re.compile(
    r"\b(whoever|whomever|nobody|somebody|everybody|anybody|someone|everyone|anyone|no one|"
    r"he|him|himself|his|she|her|herself)\b",
    re.IGNORECASE,
)
_WHO = re.compile(r"\bwhom?\b", re.IGNORECASE)
_PERSONS = re.compile(
    r"\b(operator|user|person|reader of this page|attacker|developer|maintainer|contributor|programmer|author|reviewer|"
    r"administrator|newcomer|engineer)s?,?\s$|\bpeople,?\s$",
    re.IGNORECASE,
)
# "An int of at least 0 is right": say what it must be.
_RIGHT = re.compile(r"\b(?:is|are|be|was|were)\s+right\b(?! (?:behind|after|before)\b)", re.IGNORECASE)

_FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_PLACEHOLDER = re.compile(r"\{[^{}\n]*\}")  # of an f-string
_TARGET = re.compile(r"\]\([^)\s]*\)")
_CYTHON = re.compile(r'("""|\'\'\')(?:\\.|.)*?\1|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*', re.DOTALL)
_C = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def _blank(match: re.Match[str]) -> str:
    """A placeholder that is no word and keeps the number of lines."""
    return "·" + "\n" * match.group().count("\n")


def page_prose(text: str) -> Iterator[tuple[int, str]]:
    """(1, a page's text without examples, code and addresses); lines keep their numbers."""
    for what in (_FENCE, _CODE, _TARGET):
        text = what.sub(_blank, text)
    yield 1, text


def source_prose(text: str, suffix: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each comment, docstring and sentence of a source file."""
    if suffix in (".py", ".pyi"):
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
        found = ((t.start[0], t.string) for t in tokens if t.type in kinds)
    else:
        pattern = _C if suffix == ".h" else _CYTHON
        found = ((text.count("\n", 0, m.start()) + 1, m.group()) for m in pattern.finditer(text))
    for line, words in found:
        if " " in words:  # else a name, not a sentence
            yield line, _PLACEHOLDER.sub(_blank, _CODE.sub(_blank, words))


def faults_in(text: str, first_line: int = 1) -> Iterator[tuple[int, str]]:
    """(line, words) of each fault of one piece of prose."""
    for pattern in (_PRONOUN, _WHO, _RIGHT):
        for match in pattern.finditer(text):
            if pattern is _WHO and _PERSONS.search(text[max(0, match.start() - 40) : match.start()]):
                continue
            yield first_line + text.count("\n", 0, match.start()), match.group()


def faults(*places: Path) -> list[str]:
    """One line for each fault in these files, and in the pages and sources below these folders."""
    paths = [p for place in places for p in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    found = []
    for path in (p for p in paths if p.suffix in SUFFIXES):
        text = path.read_text()
        pieces = page_prose(text) if path.suffix == ".md" else source_prose(text, path.suffix)
        hits = sorted(hit for line, words in pieces for hit in faults_in(words, line))
        found += [f"{relative(path)}:{line} says {words!r}" for line, words in hits]
    return found
