"""The documents: links lead somewhere, and the examples run."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from opentelemetry.util._once import Once

import engine
from tests.kit.pages import programs
from tests.tidy.source_tree import ROOT, files, relative
from tests.tidy.spark_marks import SPARK_MARKS

PAGES = files(".md")

# TestBroker reads the source of its caller, which an example has none of.
FASTSTREAM_MARKS = (pytest.mark.filterwarnings(r"ignore:\s*Error[\s\S]*AST parsing:RuntimeWarning"),)

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings make."""
    headings = re.findall(r"^#+\s+(.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def test_links_lead_somewhere():
    faults = []
    for page in PAGES:
        for match in _LINK.finditer(_FENCE.sub("", page.read_text())):
            target, _, anchor = match["target"].partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            aim = (page.parent / target).resolve() if target else page
            if not aim.exists():
                faults.append(f"{relative(page)} links to {target}, which is not there")
            elif anchor and aim.suffix == ".md" and anchor not in anchors(aim):
                faults.append(f"{relative(page)} links to {target}#{anchor}; no such heading")
    assert not faults, "\n" + "\n".join(faults)


def examples() -> Iterator[pytest.ParameterSet]:
    """Every Python example of every page, named by its page and its number there."""
    for page in PAGES:
        for number, code in enumerate(programs(page), 1):
            marks = SPARK_MARKS if "pyspark" in code else FASTSTREAM_MARKS if "faststream" in code else ()
            yield pytest.param(relative(page), code, id=f"{relative(page)}-{number}", marks=marks)


@pytest.mark.parametrize(("page", "code"), list(examples()))
def test_examples_run(page: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each example is a whole program; it runs in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", None)  # one sets it
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER_SET_ONCE", Once())
    example = types.ModuleType("example")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, "example", example)
    exec(compile(code, page, "exec"), example.__dict__)
    for left in [value for value in example.__dict__.values() if isinstance(value, engine.Client)]:
        left.close()  # as the end of a notebook does


def test_every_setting_is_documented():
    """Each field of BrokerConfig has its line, with its default."""
    from engine.broker.settings.config import BrokerConfig

    page = (ROOT / "docs" / "configuration.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page, re.MULTILINE))
    for field in dataclasses.fields(BrokerConfig):
        assert field.name in rows, f"docs/configuration.md does not know {field.name}"
        if field.default is not None and field.default is not dataclasses.MISSING:
            said = rows.pop(field.name).strip("`")
            default = list(field.default) if isinstance(field.default, tuple) else field.default
            assert json.loads(said) == default, f"{field.name}: the page says {said}, the code {field.default!r}"
    invented = [name for name in rows if name not in {f.name for f in dataclasses.fields(BrokerConfig)}]
    assert not invented, f"docs/configuration.md has settings that do not exist: {invented}"


def commands(group: click.Group, path: str) -> Iterator[str]:
    """The full names of a group's commands."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}"


def test_every_command_is_documented():
    from engine.cli.main import cli

    page = (ROOT / "docs" / "operations.md").read_text()
    missing = [name for name in commands(cli, "engine") if f"`{name}" not in page]
    assert not missing, f"docs/operations.md does not know {missing}"
