"""The children of `engine serve --processes N`."""

from __future__ import annotations

from pathlib import Path


def children_of(parent: int) -> dict[int, int]:
    """The process ids of a server's children, by index; those that have ended are left out."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            after_name = (path / "stat").read_text().rpartition(")")[2].split()
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(after_name[1]) == parent and after_name[0] != "Z" and b"engine.cli.serve_processes" in words:
            found[int(words[-3])] = int(path.name)
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs. One that has ended and is not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
