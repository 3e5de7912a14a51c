"""Takes the pictures of the console for its page: `python tools/draw_console.py docs/images`. Needs a Chromium.

A topic of generated flights is split twice and merged once while they stream; `kitchen` keeps up, and nothing reads
for `bills`.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import engine
from engine.client.client import AsyncClient
from engine.console.server import Console
from tests.kit.chromium import chromium

TOPIC = "topic://public/default/flights"
_NAME = "name=topic%3A%2F%2Fpublic%2Fdefault%2Fflights"
PAGES = {"console-topic": f"/topic?{_NAME}", "console-overview": "/", "console-messages": f"/messages?{_NAME}"}
SHOWN_S = 4.0  # a page that has followed the broker for so long is taken


@dataclass
class Flight:
    number: int
    origin: str
    destination: str
    delay_min: float


async def send(producer: engine.AsyncProducer[Flight]) -> None:
    places = itertools.cycle(["EWR", "JFK", "LGA", "BOS", "ORD"])
    for number in itertools.count():
        flight = Flight(number, next(places), "SFO", number % 7 / 2)
        producer.send_nowait(flight, key=f"UA{number % 997}", properties={"gate": f"B{number % 40}"})
        if number % 50 == 0:
            await asyncio.sleep(0.01)


async def receive(consumer: engine.AsyncStreamConsumer[bytes]) -> None:
    while True:
        await consumer.acknowledge_cumulative(await consumer.receive_batch())


async def shape(admin: engine.AsyncAdmin) -> None:
    for split in (0, 2):
        await admin.split_segment(TOPIC, split)
        await asyncio.sleep(1)
    await admin.merge_segments(TOPIC, 1, 3)


async def take(folder: Path, url: str, shown_s: float) -> None:
    names = itertools.count()

    async def client(token: str | None) -> AsyncClient:
        return AsyncClient(url, token=token)

    console = Console(client, lambda: f"session-{next(names)}", url)
    host, port = await console.listen("127.0.0.1", 0)
    async with chromium() as browser:
        page = await browser.new_page(viewport={"width": 1280, "height": 860})
        for name, path in PAGES.items():
            await page.goto(f"http://{host}:{port}{path}")
            await asyncio.sleep(shown_s)
            await page.screenshot(path=str(folder / f"{name}.png"))
    await console.close()


async def main(folder: Path, shown_s: float = SHOWN_S) -> None:
    with tempfile.TemporaryDirectory() as data:
        async with engine.open_async(data, listen="127.0.0.1:0", admin="127.0.0.1:0", shared=False) as e:
            await e.admin.create_topic(TOPIC, segments=1, properties={"owner": "flights-team@example.org"})
            await e.admin.create_subscription(TOPIC, "bills", initial_position="earliest")
            async with (
                e.producer(TOPIC, schema=engine.Schema.avro(Flight)) as producer,
                e.stream_consumer(TOPIC, "kitchen", initial_position="earliest", name="oven-1") as consumer,
            ):
                work = [asyncio.ensure_future(each) for each in (send(producer), receive(consumer))]
                await asyncio.sleep(1)
                await shape(e.admin)
                await take(folder, e.service_url, shown_s)
                for each in work:
                    each.cancel()
                await asyncio.gather(*work, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
