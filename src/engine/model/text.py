"""External text as a terminal or log may show it: characters that move the cursor or are invisible are escaped."""

from __future__ import annotations

import unicodedata

# Control and format characters, halves of surrogate pairs, private use, separators of lines and paragraphs.
HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))


def plain(text: object, keep: str = "") -> str:
    r"""`text` with invisible and control characters escaped, such as \x1b or \u202e; those in `keep` stay."""
    found = str(text)
    return found if found.isprintable() else "".join(_plain(one, keep) for one in found)


def _plain(one: str, keep: str) -> str:
    if one.isprintable() or one in keep or unicodedata.category(one) == "Zs":
        return one
    return one.encode("unicode_escape").decode()
