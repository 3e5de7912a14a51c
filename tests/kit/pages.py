"""What a page shows: its programs, and what is typed at a prompt."""

from __future__ import annotations

import re
from pathlib import Path

_CODE = re.compile(r"^```python\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
_CONSOLE = re.compile(r"^```console\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"\s+#.*")


def programs(page: Path) -> list[str]:
    """Every Python example of a page, in order: each is a whole program."""
    return [match["code"] for match in _CODE.finditer(page.read_text())]


def commands(page: Path) -> list[list[str]]:
    """The commands of every console of a page, in order, without comments and answers."""
    texts = (match["text"].replace("\\\n", "") for match in _CONSOLE.finditer(page.read_text()))
    return [[_COMMENT.sub("", line[2:]) for line in text.splitlines() if line.startswith("$ ")] for text in texts]
