"""Writes the drawings of docs/map.md from the table of rooms and floors, and from what each package says it is for.

`python tools/draw_map.py` rewrites what stands between the markers; `--check` only says whether it is current. The
table is that of tests/tidy/test_layers.py, so that the map cannot show another house than the one that is tested.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "map.md"
ENGINE = ROOT / "src" / "engine"
BEGIN, END = "<!-- {} -->", "<!-- end of {} -->"
sys.path.insert(0, str(ROOT))

from tests.tidy.test_layers import FLOORS, MAY_IMPORT  # noqa: E402 - the tests are no package of the product

LEAVES = ("errors", "limits", "clock", "checks", "lazy")
HIDDEN = {*LEAVES, "control.policy", "__init__", "__main__"}
WIDTH = 118


def sentence(package: str) -> str:
    """The first sentence of a package's docstring."""
    source = (ENGINE / package.replace(".", "/") / "__init__.py").read_text()
    text = " ".join((ast.get_docstring(ast.parse(source)) or "").split())
    return text.partition(". ")[0].rstrip(".") + "."


def height(room: str) -> int:
    """How many rooms lie below, counted along the longest chain of imports that are allowed."""
    below = [height(other) for other in MAY_IMPORT[room] if other not in HIDDEN]
    return 1 + max(below, default=-1)


def rooms() -> str:
    """The rooms as rows, the outermost first; a room may import rooms of lower rows, as the table below says."""
    found = [room for room in MAY_IMPORT if room not in HIDDEN]
    rows = []
    for level in range(max(map(height, found)), -1, -1):
        names = [room for room in found if height(room) == level]
        rows.append("   ".join(f"[ {name} ]" for name in sorted(names)).center(WIDTH - 2).rstrip())
    rows.append("   ".join(LEAVES).center(WIDTH - 2).rstrip())
    return "```text\n" + "\n".join(rows) + "\n```\n"


def floors(room: str) -> str:
    """The floors of a room, the highest first, with the files beside them on top."""
    names = [*FLOORS[room]]
    widest = max(len(name) for name in (*names, "files"))
    beside = sorted(path.stem for path in (ENGINE / room).glob("*.py") if path.stem != "__init__")
    lines = [f"{'files'.ljust(widest)}  {' '.join(beside)}"] if beside else []
    for name in reversed(names):
        count = sum(1 for path in (ENGINE / room / name).iterdir() if path.suffix in (".py", ".pyx", ".pxd"))
        count -= sum(1 for path in (ENGINE / room / name).glob("*.pxd") if path.with_suffix(".pyx").exists()) + 1
        lines.append(f"{name.ljust(widest)}  {count:3}  {sentence(f'{room}.{name}')}")
    return "```text\n" + "\n".join(lines) + "\n```\n"


def drawings() -> dict[str, str]:
    """What stands between the markers, by their names."""
    return {"rooms": rooms(), **{f"floors of {room}": floors(room) for room in FLOORS}}


def drawn(page: str) -> str:
    """The page with all drawings as they are now. Raises ValueError when it has no marker of one."""
    for name, text in drawings().items():
        begin, end = BEGIN.format(name), END.format(name)
        if begin not in page or end not in page:
            raise ValueError(f"docs/map.md must have {begin} and {end}")
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{text}{end}{after}"
    return page


def main() -> int:
    """Exit code 1: the page was not current."""
    page = PAGE.read_text()
    now = drawn(page)
    if "--check" not in sys.argv and now != page:
        PAGE.write_text(now)
        print("docs/map.md was written")
    return int("--check" in sys.argv and now != page)


if __name__ == "__main__":
    sys.exit(main())
