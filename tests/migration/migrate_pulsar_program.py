"""A migration from Apache Pulsar's port that may be killed: URL of the source, URL of the destination, topic.

It prints a line for every few messages that it has sent, and "done" at the end.
"""

from __future__ import annotations

import sys

import engine
from engine.migration.pulsar import copying, reading

FEW = 60  # so that there are many moments to be killed at


def main(source: str, destination: str, topic: str) -> None:
    """Copy what is missing."""
    copying.TURN_MESSAGES = reading.PERMITS = FEW
    with engine.Client(destination) as there:
        engine.migrate_from_pulsar(
            source, there, topic, on_progress=lambda step, done, total: print(step, done, flush=True)
        )
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
