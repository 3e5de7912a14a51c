"""Examples at the end of every command's help."""

from __future__ import annotations


def examples(*commands: str) -> str:
    """The epilog of a command: its examples, one a line, as typed into a shell."""
    title = "Example" if len(commands) == 1 else "Examples"
    return "\n".join(["\b", f"{title}:", *(f"  {line}" for line in commands)])
