"""Messages and dead letters in a Chromium: what is shown of them, whatever they hold, and the way back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest

import engine
from engine.console import messages
from engine.console.messages import ROWS, Wanted, browse
from engine.errors import InvalidArgumentError, NotFoundError
from tests.console.conftest import Opener, opened

WAIT_MS = 60_000
JOBS = "topic://public/default/jobs"
LETTERS = f"{JOBS}-DLQ"
MESSAGES = f"/messages?name={quote(JOBS, safe='')}"
HOSTILE = b"</pre><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">\xe2\x80\xae"


@dataclass
class Flight:
    number: int
    origin: str


async def test_messages_are_found_by_place_key_and_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as broker, engine.AsyncClient(broker.service_url) as client:
        await broker.admin.create_topic(JOBS, segments=3)
        with pytest.raises(NotFoundError):
            await browse(client, f"{JOBS}x", Wanted())
        assert (await browse(client, JOBS, Wanted())).rows == ()
        async with await broker.producer(JOBS, schema=engine.Schema.avro(Flight)) as producer:
            for n in range(200):
                await producer.send(Flight(n, "EWR"), key=f"UA{n % 10}", properties={"n": str(n)})
            later = datetime.now(UTC)
            await asyncio.sleep(0.01)
            for n in range(200, 220):
                await producer.send(Flight(n, "JFK"), key=f"UA{n % 10}")
        newest = await browse(client, JOBS, Wanted())
        assert (newest.schema, len(newest.rows), newest.more) == ("avro", ROWS, "")
        assert newest.rows[0].value.text == '{"number": 219, "origin": "JFK"}'

        async def pages(**asked: str) -> list[messages.MessageLine]:
            found: list[messages.MessageLine] = []
            start = asked.pop("start")
            while start:
                page = await browse(client, JOBS, Wanted.of({**asked, "from": start}))
                assert len(page.rows) <= ROWS
                found += page.rows
                start = page.more
            return found

        all_of_them = await pages(start="earliest")
        assert len({one.place for one in all_of_them}) == len(all_of_them) == 220
        one_key = await pages(start="earliest", key="UA7")
        assert [one.key for one in one_key] == ["UA7"] * 22
        assert [one.place for one in one_key] == [one.place for one in all_of_them if one.key == "UA7"]
        assert {one.place for one in (await browse(client, JOBS, Wanted(key="UA7"))).rows} == {
            one.place for one in one_key
        }
        after = await pages(start=later.isoformat())
        assert len(after) == 20
        assert all("JFK" in one.value.text for one in after)
        segment = await pages(start="earliest", segment="1")
        assert segment == [one for one in all_of_them if one.place.startswith("1:")]
        from_there = await pages(start="1:5")
        assert from_there[0].place == "1:5"
        for wrong in ({"from": "soon"}, {"segment": "x"}):
            with pytest.raises(InvalidArgumentError):
                Wanted.of(wrong)
        stats = await broker.admin.get_stats(JOBS)
        assert (stats["subscriptions"], stats["checkpointGroups"]) == ({}, {})  # nothing is left behind


async def test_a_page_reads_no_more_than_its_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SEARCHED_MAX", 100)
    async with opened(tmp_path) as broker, engine.AsyncClient(broker.service_url) as client:
        await broker.admin.create_topic(JOBS)
        async with await broker.producer(JOBS) as producer:
            await asyncio.gather(*(producer.send(bytes(1_000), key=f"k{n}") for n in range(300)))
        monkeypatch.setattr(messages, "ROWS", 1_000)
        page = await browse(client, JOBS, Wanted(start="earliest"))
        assert (len(page.rows), page.read, page.more) == (100, 100, "0:100")
        assert "ended after 100 messages" in page.note
        monkeypatch.setattr(messages, "BYTES_MAX", 10_000)
        page = await browse(client, JOBS, Wanted(start="earliest"))
        assert 9 <= page.read <= 10
        assert page.more == f"0:{page.read}"


async def test_hostile_and_huge_messages_are_text_that_is_cut(tmp_path: Path, window: Opener) -> None:
    async with opened(tmp_path) as broker:
        await broker.admin.create_topic(JOBS)
        async with await broker.producer(JOBS) as producer:
            await producer.send(HOSTILE, key=HOSTILE, properties={HOSTILE.decode()[:60]: HOSTILE.decode()})
            await producer.send(b"x" * (2 << 20), key="huge")
            await producer.send(bytes(range(256)), key=b"\xff")
        shown = await window(broker.service_url)
        page = shown.page
        page.set_default_timeout(WAIT_MS)
        await shown.go(MESSAGES)
        assert await page.locator("#messages tbody tr").count() == 3
        hostile = await page.locator("[id='m-0:0']").inner_text()
        assert "<script>" in hostile
        assert "\\u202e" in hostile
        assert "taken" not in await page.title()
        assert "of 2,097,152 bytes" in await page.locator("[id='v-0:1']").inner_text()
        assert "0000  00 01 02" in await page.locator("[id='v-0:2']").inner_text()
        assert len(await page.content()) < 60_000
        await page.keyboard.press("/")
        await page.keyboard.type("huge")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**key=huge**")
        assert await page.locator("#messages tbody tr").count() == 1
        await shown.go(MESSAGES + "&from=soon")
        assert "from must be" in await page.locator("#refused").inner_text()


async def test_dead_letters_go_back_chosen_or_all_of_them_once(tmp_path: Path, window: Opener) -> None:
    async with opened(tmp_path) as broker:
        await broker.admin.create_topic(JOBS)
        await broker.admin.create_topic(LETTERS)
        await broker.admin.create_subscription(JOBS, "workers", initial_position="earliest")
        async with await broker.producer(LETTERS) as producer:
            for n in range(5):
                said = {"origin-topic": JOBS, "dead-letter-reason": f"ValueError: job {n}", "n": str(n)}
                await producer.send(b"job %d" % n, key=f"k{n}", properties=said)
        shown = await window(broker.service_url)
        page = shown.page
        page.set_default_timeout(WAIT_MS)
        await shown.go("/letters")
        await page.click("#letter-topics a")
        await page.locator("#letters").wait_for()
        assert "ValueError: job 3" in await page.locator("[id='l-0:3']").inner_text()
        await page.click("#redrive-chosen")
        assert "Choose some first" in await page.locator("#fault").inner_text()
        await page.check("[id='l-0:1'] .chosen")
        await page.check("[id='l-0:3'] .chosen")
        await page.click("#redrive-chosen")
        await page.click("#confirm [value=no]")
        assert await page.locator("#letters tbody tr").count() == 5
        await page.click("#redrive-chosen")
        await page.click("#confirm [value=yes]")
        await page.locator("#said", has_text="2 letters sent back").wait_for()
        await page.locator("[id='l-0:3']").wait_for(state="detached")
        assert await page.locator("#letters tbody tr").count() == 3
        await page.click("[data-act=redrive]:not(#redrive-chosen)")
        await page.click("#confirm [value=yes]")
        await page.locator("#said", has_text="3 letters sent back").wait_for()
        await page.locator("#letters").wait_for(state="detached")
        async with await broker.queue_consumer(JOBS, "workers") as workers:
            back = [await workers.receive(60) for _ in range(5)]
            assert await workers.receive(0.05) is None
        assert sorted(one.value for one in back) == [b"job %d" % n for n in range(5)]
        assert {tuple(one.properties) for one in back} == {("n",)}
