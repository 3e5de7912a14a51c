"""Files of lines, for commands to read."""

from __future__ import annotations

from pathlib import Path


def write_lines(path: Path, lines: list[str]) -> Path:
    """The path, with a line for each text."""
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
