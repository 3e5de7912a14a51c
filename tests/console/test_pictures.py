"""The pictures of the README and of the console's page are taken of the console as it is."""

from __future__ import annotations

import importlib.util
import re
import struct
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
SIZE = (1280, 860)


def drawing() -> ModuleType:
    """`make pictures` runs it, too."""
    spec = importlib.util.spec_from_file_location("draw_console", ROOT / "tools" / "draw_console.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_three_pictures_of_the_readme_are_made_here(tmp_path: Path) -> None:
    await drawing().main(tmp_path, shown_s=1.0)
    made = pictures(tmp_path)
    assert len(made) == 3
    for page in ("README.md", "docs/console.md"):
        shown = set(re.findall(r"images/(console-\w+\.png)", (ROOT / page).read_text()))
        assert shown == set(made), page
    for name, picture in made.items():
        kept = (ROOT / "docs" / "images" / name).read_bytes()
        assert size_of(picture) == size_of(kept) == SIZE, name
        assert len(picture) > len(kept) / 3, "a page without contents is a small file"


def pictures(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.png")}


def size_of(picture: bytes) -> tuple[int, int]:
    """Width and height of a PNG."""
    assert picture.startswith(b"\x89PNG")
    width, height = struct.unpack_from(">II", picture, 16)
    return width, height
