"""Draws `engine top` for the documentation: its live screen over an embedded engine, as SVG.

python tools/draw_top.py docs/images/top.svg
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import tempfile
from pathlib import Path

import engine
from engine.cli.looks import Looks
from engine.cli.screen.app import TopApp
from engine.sync import Client

SIZE = (80, 24)
SIZE_MAX = 60_000  # bytes
TOPICS = {"orders": 4, "payments": 2, "clicks": 8, "shipments": 1, "stock": 2, "returns": 1, "audit": 1}
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.S)  # they would be fetched from the network


def fill(made: engine.Engine, opened: contextlib.ExitStack) -> None:
    """Topics of several segments with messages, which one subscription reads and another one does not."""
    for number, (name, segments) in enumerate(TOPICS.items(), 1):
        made.admin.create_topic(name, segments=segments)
        made.admin.create_subscription(name, "billing", initial_position="earliest")
        producer = opened.enter_context(made.producer(name))
        opened.enter_context(made.queue_consumer(name, "shipping"))
        for key in range(997 * number):
            producer.send_nowait(b"x" * 200, key=str(key))


async def drawn(made: engine.Engine) -> str:
    """The screen after the first look that has rates."""
    looks = Looks(lambda: Client(made.service_url), 0.5)
    app = TopApp(looks)
    async with app.run_test(size=SIZE) as pilot:
        with looks:
            while not app.grid.rows or not app.grid.rows[0].msg_rate_in:
                await pilot.pause(0.05)
            await pilot.press("home")
            return FONTS.sub("", app.export_screenshot(title="engine top"))


def main() -> None:
    """Write the file. Exits with a sentence where it would be too large for a page."""
    with (
        tempfile.TemporaryDirectory() as directory,
        engine.open(Path(directory, "data"), listen="127.0.0.1:0", admin="127.0.0.1:0") as made,
        contextlib.ExitStack() as opened,
    ):
        fill(made, opened)
        text = asyncio.run(drawn(made))
    if len(text) > SIZE_MAX:
        sys.exit(f"the picture must have at most {SIZE_MAX:,} bytes, got {len(text):,}")
    Path(sys.argv[1]).write_text(text)


if __name__ == "__main__":
    main()
