"""The console in a Chromium, beside the admin API of the broker that it shows."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path
from urllib.parse import quote

import engine
from engine.cli.flights import load
from tests.brokers.test_identity import BROKERS, brokers
from tests.console.conftest import Opener, opened

WAIT_MS = 60_000
ROWS = 20_000  # flights of the demo's, sent again and again
TOKEN = "a-token-of-the-operators-42"
FLIGHTS = "topic://public/default/flights"
TOPIC = "/topic?name=topic%3A%2F%2Fpublic%2Fdefault%2Fflights"
LETTERS = "topic://public/default/flights-DLQ"
PAGES = (
    ("/", "overview"), ("/topics", "topics"), (TOPIC, "topic"), (TOPIC.replace("topic", "messages", 1), "messages"),
    ("/letters", "dead letters"), (f"/letters?name={quote(LETTERS, safe='')}", "letters"),
    ("/namespaces", "namespaces"), ("/namespace?name=public%2Fdefault", "namespace"),
    ("/brokers", "brokers"), ("/transactions", "transactions"),
)  # fmt: skip
SIZES = ((1280, 800), (800, 600))


async def test_the_picture_follows_a_split_and_a_merge_while_messages_stream(tmp_path: Path, window: Opener) -> None:
    async with opened(tmp_path) as broker:
        await broker.admin.create_topic(FLIGHTS, segments=1, properties={"owner": "flights-team@example.org"})
        await broker.admin.create_subscription(FLIGHTS, "bills", initial_position="earliest")
        shown = await window(broker.service_url)
        page = shown.page
        page.set_default_timeout(WAIT_MS)

        flights = load()
        rows = list(zip(flights.keys[:ROWS].to_pylist(), flights.values[:ROWS].to_pylist(), strict=True))

        async def stream() -> None:
            async with await broker.producer(FLIGHTS) as producer:
                for key, row in itertools.cycle(rows):
                    await producer.send(row, key=key)

        streaming = asyncio.create_task(stream())
        try:
            await shown.go(TOPIC)
            await page.locator("#dag [data-segment='0'].active").wait_for()
            assert "flights-team@example.org" in await page.locator("main").inner_text()
            await page.evaluate("document.querySelector('#dag').dataset.kept = 'yes'")
            await page.click("[data-act=split]")
            assert "Split segment 0" in await page.locator("#confirm").inner_text()
            await page.click("#confirm [value=yes]")
            await page.locator("#dag [data-segment='2'].active").wait_for()
            await page.click("[data-act=merge]")
            await page.click("#confirm [value=yes]")
            await page.locator("#dag [data-segment='3'].active").wait_for()
            # It is the same picture, whose parts have moved.
            assert await page.evaluate("document.querySelector('#dag path#e1-3') !== null")
            said = await broker.admin.get_metadata(FLIGHTS)
            assert await page.locator("#epoch").inner_text() == str(said["epoch"])
            assert await page.locator("#dag g").count() == len(said["segments"]) == 4
        finally:
            streaming.cancel()
            await asyncio.gather(streaming, return_exceptions=True)

        # A refusal does nothing; consent does.
        assert (await broker.admin.get_stats(FLIGHTS))["subscriptions"]["bills"]["backlog"] > 0
        await page.click("#sub-bills [data-act=skip-backlog]")
        await page.click("#confirm [value=no]")
        assert (await broker.admin.get_stats(FLIGHTS))["subscriptions"]["bills"]["backlog"] > 0
        await page.click("#sub-bills [data-act=skip-backlog]")
        await page.click("#confirm [value=yes]")
        await page.locator("#backlog", has_text=re.compile("^0$")).wait_for()
        await page.click("#sub-bills [data-act=rewind]")
        await page.click("#confirm [value=yes]")
        await page.locator("#backlog", has_text=re.compile("^0$")).wait_for(state="detached")
        await page.click("#sub-bills [data-act=delete-subscription]")
        await page.click("#confirm [value=yes]")
        await page.locator("#sub-bills").wait_for(state="detached")
        assert (await broker.admin.get_stats(FLIGHTS))["subscriptions"] == {}


async def test_each_page_has_its_picture_at_two_sizes_in_both_modes(tmp_path: Path, window: Opener) -> None:
    async with opened(tmp_path) as broker:
        await broker.admin.create_topic(FLIGHTS, segments=4)
        await broker.admin.create_subscription(FLIGHTS, "bills")
        async with await broker.producer(FLIGHTS) as producer:
            await asyncio.gather(*(producer.send(b"flight", key=str(n)) for n in range(100)))
        await broker.admin.create_topic(LETTERS)
        async with await broker.producer(LETTERS) as producer:
            said = {"origin-topic": FLIGHTS, "dead-letter-reason": "ValueError: late"}
            await producer.send(b"flight", properties=said)
        transaction = await broker.transaction().__aenter__()
        async with await broker.producer(FLIGHTS) as producer:
            await producer.send(b"flight", key="7", transaction=transaction)
        shown = await window(broker.service_url)
        page = shown.page
        page.set_default_timeout(WAIT_MS)
        for path, name in PAGES:
            await shown.go(path)
            pictures = set()
            for width, height in SIZES:
                await page.set_viewport_size({"width": width, "height": height})
                for mode in ("light", "dark"):
                    await page.emulate_media(color_scheme=mode)
                    picture = tmp_path / f"{name}-{width}-{mode}.png"
                    pictures.add(await page.screenshot(path=str(picture)))
            assert len(pictures) == 4
            if name == "overview":
                assert (await broker.admin.list_brokers())[0]["url"] in await page.locator("#brokers").inner_text()
                behind = await page.locator(f"[id='t-{FLIGHTS}']").inner_text()
                assert "flights" in behind
                assert "no consumer is connected" in behind
            if name == "transactions":
                [one] = await broker.admin.list_transactions()
                row = await page.locator(f"#x-{one['id']}").inner_text()
                assert re.search(r"public/default/flights segment \d: 1 message of its own, and what was sent", row)
                await page.click(f"#x-{one['id']} [data-act=abort]")
                await page.click("#confirm [value=yes]")
                await page.locator(f"#x-{one['id']}").wait_for(state="detached")
                assert await broker.admin.list_transactions() == []
            if name == "brokers":
                assert "read_cache" in await page.locator("#pools").inner_text()
                shown.faults_expected += 1
                await page.click("#brokers [data-act=drain]")
                await page.click("#confirm [value=yes]")
                await page.locator("#fault", has_text="must have others that take its segments").wait_for()
        await page.keyboard.press("?")
        await page.locator("#help[open]").wait_for()
        await page.keyboard.press("Escape")
        await page.keyboard.press("g")
        await page.keyboard.press("t")
        await page.wait_for_url("**/topics")
        await transaction.abort()


async def test_a_person_logs_in_with_a_token_and_out_again(tmp_path: Path, window: Opener) -> None:
    config = {"auth_token": TOKEN}
    doors = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"}
    async with engine.open_async(tmp_path / "data", config=config, shared=False, **doors) as broker:
        await broker.admin.create_topic(FLIGHTS)
        shown = await window(broker.service_url)
        page = shown.page
        page.set_default_timeout(WAIT_MS)
        await shown.go("/topics")
        assert page.url.endswith("/login")
        await page.fill("#token", TOKEN)
        await page.keyboard.press("Enter")
        await page.locator("#logout").wait_for()
        await shown.go("/topics")
        assert "flights" in await page.locator("#topics").inner_text()
        await page.click("#logout")
        await page.wait_for_url("**/login")
        await shown.go(TOPIC)
        assert page.url.endswith("/login")


async def test_a_broker_is_drained_and_takes_segments_again(tmp_path: Path, window: Opener) -> None:
    async with brokers(tmp_path / "data", 2, cluster_token=BROKERS) as found:
        one, other = found
        for broker in found:
            await broker.serve_admin("127.0.0.1", 0)
        await one.admin.create_topic(FLIGHTS, segments=4)
        shown = await window(one.service_url)
        page = shown.page
        page.set_default_timeout(WAIT_MS)
        await shown.go("/brokers")
        row = page.locator("#brokers tbody tr", has_text=other.service_url)
        await row.locator("[data-act=drain]").click()
        await page.click("#confirm [value=yes]")
        await row.get_by_text("draining").wait_for()
        said = {each["url"]: each["draining"] for each in await one.admin.list_brokers()}
        assert said == {one.service_url: False, other.service_url: True}
        await row.locator("[data-act=undrain]").click()
        await page.click("#confirm [value=yes]")
        await row.get_by_text("live").wait_for()
        assert not any(each["draining"] for each in await one.admin.list_brokers())
