"""Topics as tables in Polars, DuckDB, pandas and Arrow, with the installed package: embedded and from a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_server import Server
from tests.firstuse.wheels import Installed
from tests.kit.pages import programs
from tests.kit.programs import ROOT

pytestmark = pytest.mark.timeout(1800)  # the first test of each Python builds its wheel

PROGRAM = Path(__file__).with_name("tables_program.py")
FOUND = ["pyarrow", "polars, table", "duckdb, table", "polars, reader", "duckdb, reader", "pandas"]


def test_embedded(installed: Installed, tmp_path: Path):
    assert installed.run("python", "-W", "error", PROGRAM, at=tmp_path).splitlines() == FOUND


def test_served(installed: Installed, broker: Server, tmp_path: Path):
    printed = installed.run("python", "-W", "error", PROGRAM, at=tmp_path, SALES_URL=broker.url)
    assert printed.splitlines() == FOUND


def test_the_page(installed: Installed, tmp_path: Path):
    """Each program of the page in a folder of its own."""
    for number, code in enumerate(programs(ROOT / "docs" / "tables.md"), 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "program.py").write_text(code)
        installed.run("python", "program.py", at=folder)
