"""A program that copies a numbered source into a topic and may be killed at any moment: url, topic, number of messages.

It keeps no state of its own: where it goes on is what the broker says. It prints the number of each message of which it
has sent everything before.
"""

from __future__ import annotations

import sys

import engine
from engine.client import Batching

STEP = 200


def key_of(number: int) -> bytes | None:
    """The same in every life."""
    return None if number % 5 == 0 else b"k%d" % (number * 7919 % 40)


def main(url: str, topic: str, count: int) -> None:
    """Send what is missing, and say so at the end."""
    with engine.Client(url) as client, client.producer(topic, name="loader", batching=Batching(max_messages=37)) as p:
        for number in range(p.acknowledged_sequence_id + 1, count):
            p.send_nowait(b"%d" % number, key=key_of(number), sequence_id=number)
            if number % STEP == 0:
                print(number, flush=True)
            if number % (10 * STEP) == 0:
                p.flush()
        p.flush()
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
