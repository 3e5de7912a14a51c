"""P21 in one run: Apache Pulsar's client of Python on a broker of ours and on Apache Pulsar standalone, in turns.

    python benchmarks/beside_pulsar.py [--turns 5] [--messages 200000]

It needs what `make interop` brings (a JDK and the jars of Apache Pulsar), and 1 GiB for that server. Messages have 100
bytes and one of 10,000 keys, as in W1 and W3 of the comparison with other brokers. It prints, for rates and for the
processor time that a message costs the server, the medians of both sides, and the median of the ratios of each turn
with its least and greatest. On a busy machine rates say little, processor time more. The ceiling is what the same
client publishes to a server that answers at once and stores nothing (`pulsar_ceiling.py`): more it publishes nowhere.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench_pulsar import connect, publish, published_and_consumed, timed
from processes import LISTENING, Child, Server, processor_s, server
from support import Rows, rows

from tests.interop.scenes.servers import JARS, Standalone

NAMES = ("pulsar publish", "pulsar consume", "pulsar publish us", "pulsar consume us")


class Peer:
    """Apache Pulsar's server, as the benchmark sees one of ours."""

    def __init__(self, side: Standalone) -> None:
        assert side._process is not None
        self.url = side.url
        self._pid = side._process.pid

    def processor_s(self) -> float:
        """Of all its threads, since it was started."""
        return processor_s(self._pid)


def main() -> None:
    """Measure in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--messages", type=int, default=200_000)
    chosen = parser.parse_args()
    if not JARS.exists():
        parser.exit(1, f"the jars of Apache Pulsar must be in {JARS}: make interop brings them\n")
    sample = rows(chosen.messages, 100)
    command = [sys.executable, str(Path(__file__).with_name("pulsar_ceiling.py"))]
    with tempfile.TemporaryDirectory() as folder, server() as ours, Child(command, LISTENING) as ceiling:
        theirs = Standalone(Path(folder) / "pulsar")
        try:
            theirs.start()
            found = measured(ours, Peer(theirs), Ceiling(ceiling), sample, chosen.turns)
        finally:
            theirs.close()
    report(found)


class Ceiling:
    """The server that stores nothing."""

    def __init__(self, child: Child) -> None:
        self.url = f"engine://127.0.0.1:{child.said}"
        self._pid = child.pid

    def processor_s(self) -> float:
        """As of the others."""
        return processor_s(self._pid)

    def published(self, sample: Rows) -> float:
        """Messages per second."""
        client = connect(self.url)
        try:
            publish(client, "persistent://public/default/warm", sample[: len(sample) // 10])
            work = partial(publish, client, "persistent://public/default/ceiling", sample)
            return timed(self, "publish", len(sample), work)["pulsar publish"]  # type: ignore[arg-type]
        finally:
            client.close()


def measured(
    ours: Server, theirs: Peer, ceiling: Ceiling, sample: Rows, turns: int
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """(ours, theirs) of each turn, behind one that warms both up; ours has the ceiling as well."""
    found = []
    for turn in range(turns + 1):
        sides = (ours, theirs) if turn % 2 else (theirs, ours)
        done = {id(side): published_and_consumed(side, sample) for side in sides}  # type: ignore[arg-type]
        done[id(ours)]["ceiling"] = ceiling.published(sample)
        found.append((done[id(ours)], done[id(theirs)]))
        print("warm" if turn == 0 else f"turn {turn}", *found[-1], flush=True)
    return found[1:]


def report(found: list[tuple[dict[str, float], dict[str, float]]]) -> None:
    """A line for each figure."""
    for name in NAMES:
        one, other = ([pair[side][name] for pair in found] for side in (0, 1))
        ratios = [a / b for a, b in zip(one, other, strict=True)]
        middle = statistics.median(ratios)
        print(
            f"{name:20} ours {statistics.median(one):>10,.2f}  Apache Pulsar {statistics.median(other):>10,.2f}  "
            f"ratio {middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    for side, name in enumerate(("ours", "Apache Pulsar")):
        shares = [pair[side]["pulsar publish"] / pair[0]["ceiling"] for pair in found]
        print(
            f"{name} publishes {statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f}) of the ceiling"
        )


if __name__ == "__main__":
    main()
