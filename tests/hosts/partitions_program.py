"""Three brokers on three hosts, etcd and SeaweedFS on a fourth, clients on a fifth, where this program runs: the mark
of the network, a directory, the number of messages. It prints the checker's verdict.

The faults come when so many messages are acknowledged, one after the other: the host with the most segments reaches
clients, and not the stores, so that its broker has to notice by itself that it is replaced; such a host that reaches
nothing; two brokers that do not reach each other. Each is healed when the messages after it are acknowledged. At last
the reverse of the first: a host that reaches the stores and other brokers, and not the clients. Its broker keeps its
segments, so that their messages wait until it is healed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from engine.cli.demo_servers import SESSION_TIMEOUT_S, running_cluster
from engine.client.client import AsyncClient
from engine.errors import EngineError
from engine.testing.checker import check, describe
from engine.testing.history import History, value_of
from tests.hosts.network import Network

NAMES = ["b1", "b2", "b3", "store", "clients"]
TOPIC = "topic://public/default/orders"
SEGMENTS = 6
KEYS = 24
AT_ONCE = 40
SEND_TIMEOUT_S = 120.0
UNREACHED_S = 2.0 * SESSION_TIMEOUT_S
Fault = Callable[[str], None]


async def send(client: AsyncClient, history: History, numbers: range) -> None:
    """So many at once; each is acknowledged, or its outcome is unknown."""

    async with await client.producer(TOPIC, send_timeout=SEND_TIMEOUT_S) as producer:

        async def one(number: int) -> None:
            key = f"k{number % KEYS}"
            value = value_of("writer", number, key)
            call = history.invoke("writer", "send", value=value.decode(), key=key, topic=TOPIC)
            try:
                place = await producer.send(value, key=key)
            except EngineError as e:
                call.info(e)
            else:
                call.ok(segment=place.segment_id, offset=place.offset)

        for first in range(numbers.start, numbers.stop, AT_ONCE):
            await asyncio.gather(*(one(n) for n in range(first, min(first + AT_ONCE, numbers.stop))))


async def read(client: AsyncClient, history: History, reading: int) -> None:
    """All that is there."""
    async with await client.topic_view(TOPIC) as view:
        segments = (await view.segments(exact=True)).segments
    history.record("reader", "reading", reading=reading)
    reader = await client.range_reader(TOPIC, {i: (s.first, s.end) for i, s in segments.items()})
    async for batch in reader.batches():
        for message in batch:
            fields = {"topic": TOPIC, "segment": message.segment_id, "offset": message.offset}
            key, value = message.key, message.value
            assert key is not None
            history.record("reader", "final", reading=reading, value=value.decode(), key=key.decode(), **fields)
    await reader.close()


async def owners(names: dict[str, str], without: str = "") -> list[str]:
    """The host of each segment's owner, as another broker than that of the host `without` says."""
    address = next(address for address, name in names.items() if name != without)
    async with AsyncClient(f"engine://{address}") as client:
        numbers = await client.admin.get_stats(TOPIC)
    return [names[segment["owner"].removeprefix("engine://")] for segment in numbers["segments"].values()]


async def unreached(
    client: AsyncClient, history: History, network: Network, names: dict[str, str], numbers: range
) -> None:
    """Messages while clients do not reach a host that reaches all others."""
    before = await owners(names)
    victim = max(set(before), key=before.count)
    network.cut(victim, "clients")
    sending = asyncio.create_task(send(client, history, numbers))
    await asyncio.sleep(UNREACHED_S)
    assert not sending.done(), f"nothing waited for {victim}"
    network.heal(victim, "clients")
    await sending
    assert (await owners(names)).count(victim) == before.count(victim), f"{victim} was replaced"


async def run(network: Network, url: str, names: dict[str, str], count: int) -> History:
    """`names`: the host of each broker's address."""
    history = History(asyncio.get_running_loop().time)
    faults: list[tuple[Fault, Fault, bool]] = [
        (lambda name: network.cut(name, "store"), lambda name: network.heal(name, "store"), True),
        (network.cut_off, network.heal_all, True),
        (lambda name: network.cut("b1", "b3"), lambda name: network.heal("b1", "b3"), False),
    ]
    step = count // (2 * len(faults) + 2)
    async with AsyncClient(url) as client:
        await client.admin.create_topic(TOPIC, segments=SEGMENTS)
        sent = 0
        for fault, heal, replaced in faults:
            await send(client, history, range(sent, sent + step))
            before = await owners(names)
            victim = max(set(before), key=before.count)
            fault(victim)
            await send(client, history, range(sent + step, sent + 2 * step))
            assert not replaced or victim not in await owners(names, victim), f"{victim} was not replaced"
            heal(victim)
            sent += 2 * step
        await unreached(client, history, network, names, range(sent, sent + step))
        await send(client, history, range(sent + step, count))
        for reading in (1, 2):
            await read(client, history, reading)
    return history


def main(mark: str, folder: str, count: int) -> int:
    """0 where the checker finds nothing."""
    network = Network.of(mark, NAMES)
    brokers = [network.host(name) for name in NAMES[:3]]
    with running_cluster(Path(folder), brokers, network.host("store")) as cluster:
        names = dict(zip(cluster.addresses, NAMES[:3], strict=True))
        history = asyncio.run(run(network, cluster.url, names, count))
    sends = [event for event in history.events if event["what"] == "send" and event["phase"] == "ok"]
    violations = check(history.events)
    print(f"{len(sends)} of {count} acknowledged; {describe(violations) or 'no violation'}", flush=True)
    return 1 if violations or len(sends) < count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
