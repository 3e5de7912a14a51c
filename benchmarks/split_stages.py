"""Where the time of a split under full load goes: P14's split, with a stamp at the end of each of its stages.

    python benchmarks/split_stages.py            # 40 splits; medians and 90th percentiles, in milliseconds

The stages of the broker and of the client follow each other on one clock (CLOCK_MONOTONIC is the machine's). The broker
is `engine serve` with stamps around the functions that bound a stage, pinned to one core; the client is on the other.
"""

from __future__ import annotations

import argparse
import functools
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench_reshape import splits_of
from processes import SERVING, Child, pin
from support import directory, percentile, sized

SPLITS = sized(40, 1)
OF_BROKER = {
    "begun": "the intent is recorded",
    "children": "the children are created",
    "point": "the point of no return is recorded",
    "sealed": "the parent is sealed: all that it took is durable",
    "inherited": "the children have inherited its producers",
    "committed": "the new layout is recorded",
}
OF_CLIENT = {
    "layout": "the client has it",
    "attached": "its producer is attached to the first child",
    "receipt": "and has the first receipt behind that",
}
_STAMP = re.compile(r"^stamp (\w+) (\d+\.\d+)$", re.MULTILINE)

Note = Callable[[str], None]
Stamps = list[tuple[str, float]]  # (stage, when)


def stamped(owner: Any, name: str, stage: str, note: Note, *, start: bool = False) -> None:
    """Have a method of a class note a stage when it ends, or when it starts."""
    inner = getattr(owner, name)

    @functools.wraps(inner)
    async def call(*args: Any, **named: Any) -> Any:
        if start:
            note(stage)
        found = await inner(*args, **named)
        if not start:
            note(stage)
        return found

    setattr(owner, name, call)


def serve(words: Sequence[str]) -> None:
    """Run `engine serve` whose stages are written to its log."""
    from engine.broker.segment.hosted import HostedSegment
    from engine.cli.main import main
    from engine.control.shape.reshaping import TopicReshaping

    def note(stage: str) -> None:
        print(f"stamp {stage} {time.monotonic():.6f}", flush=True)

    stamped(TopicReshaping, "begin", "asked", note, start=True)
    stamped(TopicReshaping, "begin", "begun", note)
    stamped(TopicReshaping, "_create_children", "children", note)
    stamped(TopicReshaping, "move_to", "point", note)
    stamped(HostedSegment, "_seal", "sealed", note)
    stamped(TopicReshaping, "_terminate", "inherited", note)
    stamped(TopicReshaping, "finish", "committed", note)
    main(["serve", *words])


def stamp_client(found: Stamps) -> None:
    """Have the client in this process note its own stages; of each, the first behind the one before counts."""
    from engine.client.produce.outbox import Outbox
    from engine.client.produce.sender import Sender
    from engine.client.topic.session import TopicSession

    def note(stage: str) -> None:
        found.append((stage, time.monotonic()))

    apply, came = TopicSession._apply, Outbox.receipts_came

    def applied(session: TopicSession, layout: Any, *rest: Any) -> None:
        if any(segment.parents for segment in layout.segments.values()):
            note("layout")
        apply(session, layout, *rest)

    def received(outbox: Outbox) -> None:
        came(outbox)
        note("receipt")

    TopicSession._apply, Outbox.receipts_came = applied, received  # type: ignore[method-assign]
    stamped(Sender, "_attach", "attached", note)


def stages_of(broker: Stamps, client: Stamps) -> list[dict[str, float]]:
    """Of each split, the seconds that each stage took. What came between two splits is passed over."""
    found = []
    for last in [when for stage, when in broker if stage == "asked"]:
        took: dict[str, float] = {}
        for stamps, names in ((broker, OF_BROKER), (client, OF_CLIENT)):
            for name in names:
                ended = next((when for stage, when in stamps if stage == name and when >= last), math.nan)
                took[name], last = ended - last, ended
        if not math.isnan(last):
            found.append(took)
    return found


def main(splits: int) -> None:
    """Measure and print. Raises RuntimeError: stages are missing, since functions have other names."""
    client: Stamps = []
    stamp_client(client)
    pin(1)
    with directory() as data:
        command = [sys.executable, __file__, "--serve", "--data", data, "--log-level", "warning"]
        with Child([*command, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"], SERVING, cpu=0) as broker:
            splits_of(broker.said, splits)
            told = [(stage, float(when)) for stage, when in _STAMP.findall(broker.log.read_text(errors="replace"))]
    found = stages_of(told, client)
    if len(found) < splits:
        raise RuntimeError(f"{splits} splits must have all stages, got {len(found)} of them")
    print(f"{len(found)} splits, milliseconds: median, 90th percentile")
    for name, what in (OF_BROKER | OF_CLIENT).items():
        took = [1e3 * one[name] for one in found]
        print(f"{statistics.median(took):8.1f} {percentile(took, 0.9):8.1f}  {what}")
    whole = [1e3 * sum(one.values()) for one in found]
    print(f"{statistics.median(whole):8.1f} {percentile(whole, 0.9):8.1f}  from the request to that receipt")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2:])
    else:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        parser.add_argument("--splits", type=int, default=SPLITS)
        main(parser.parse_args().splits)
