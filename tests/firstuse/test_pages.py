"""The programs of pages, as a new user types them: one after the other in one folder, with the installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.firstuse.wheels import Installed
from tests.kit.pages import programs
from tests.kit.programs import ROOT

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(1800)]  # the first test of each Python builds its wheel

PAGES = ("backup", "processes", "recipes", "request-reply", "table-views", "tracing")


@pytest.mark.parametrize("page", PAGES)
def test_its_programs_run(page: str, installed: Installed, tmp_path: Path):
    """Each is a whole program, and needs nothing but the wheel and what its page names."""
    codes = programs(ROOT / "docs" / f"{page}.md")
    assert codes
    for number, code in enumerate(codes, 1):
        (tmp_path / f"program_{number}.py").write_text(code)
        installed.run("python", "-W", "error", f"program_{number}.py", at=tmp_path)
