"""Text from outside as a terminal or a log may show it: what would move a cursor or hide a letter is spelled out."""

from __future__ import annotations

import unicodedata

# Control and format characters, halves of surrogate pairs, private use, separators of lines and paragraphs.
HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))


def plain(text: object, keep: str = "") -> str:
    r"""`text` with each character that shows nothing, or does something, as \x1b or \u202e; those in `keep` stay."""
    found = str(text)
    return found if found.isprintable() else "".join(_plain(one, keep) for one in found)


def _plain(one: str, keep: str) -> str:
    if one.isprintable() or one in keep or unicodedata.category(one) == "Zs":
        return one
    return one.encode("unicode_escape").decode()
