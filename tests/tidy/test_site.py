"""The documentation site: it builds without a warning, links and anchors resolve, search finds each public name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import engine
from tests.tidy.source_tree import ROOT

pytestmark = pytest.mark.timeout(600)  # the site is built, beside whatever else runs


class Links(HTMLParser):
    """The anchors of a page, and what it links to or shows."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.targets.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It is built strictly: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", str(ROOT / "mkdocs.yml"), "-d", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    return folder


def test_every_link_and_anchor_resolves(site: Path):
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > 50
    faults = []
    for page, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or target == "javascript:void(0)":
                continue
            aim = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            aim = aim / "index.html" if aim.is_dir() else aim
            if not aim.exists():
                faults.append(f"{page.relative_to(site)}: {target} is not there")
            elif parts.fragment and aim in pages and unquote(parts.fragment) not in pages[aim].anchors:
                faults.append(f"{page.relative_to(site)}: {target} has no such anchor")
    assert not faults, "\n" + "\n".join(sorted(faults))


def test_nothing_is_fetched_from_elsewhere(site: Path):
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert 'src="http' not in text, page.name
        assert 'rel="stylesheet" href="http' not in text, page.name


def test_search_finds_each_public_name(site: Path):
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    found = {re.split(r"\W", e["title"])[0] for e in entries if e["location"].startswith("reference/")}
    assert not {name for name in engine.__all__ if not name.startswith("__")} - found


def test_each_public_name_is_on_one_page_of_the_reference(site: Path):
    anchors = [a for page in (site / "reference").glob("*.html") for a in Links(page).anchors]
    for name in engine.__all__:
        assert anchors.count(f"engine.{name}") == (0 if name.startswith("__") else 1), name
