"""A migration that may be killed at any moment: directory of the source, URL of the destination, topic.

It prints a line for every few messages that it has sent, and "done" at the end.
"""

from __future__ import annotations

import sys

import engine
from engine.migration import copying

BATCH_MESSAGES = 150  # instead of thousands, so that there are many moments to be killed at


def main(source: str, destination: str, topic: str) -> None:
    """Copy what is missing."""
    copying.BATCH_MESSAGES = BATCH_MESSAGES
    with engine.open(source) as here, engine.Client(destination) as there:
        engine.migrate(here, there, topic, on_progress=lambda step, done, total: print(step, done, flush=True))
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
