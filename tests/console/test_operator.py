"""An operator new to the product finds what lags, why, and which person to ask; among many topics."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import engine
from engine.broker.rights.token_file import line_of
from engine.console.server import TOPICS_ON_OVERVIEW
from engine.console.views import PAGE_ROWS
from engine.errors import AuthorizationError
from tests.console.conftest import Opener, opened

WAIT_MS = 60_000
SPLIT = """fetch('/acts/split', {
    method: 'POST', headers: {'Content-Type': 'application/json'},
    body: JSON.stringify({topic: 'topic://public/default/orders', segment: 0}),
}).then((answer) => answer.json())"""
NODES_MAX = 6_000  # elements of a page that a browser lays out without a pause
STUCK = "topic://public/default/t0500"
HELD = "topic://public/default/t0501"
ALONE = "topic://public/default/t0502"


async def filled(broker: engine.AsyncEngine, topic: str, count: int) -> None:
    async with await broker.producer(topic) as producer:
        await asyncio.gather(*(producer.send(b"order", key=str(n)) for n in range(count)))


async def test_among_a_thousand_topics_the_first_page_tells_which_lags_why_and_whom_to_ask(
    tmp_path: Path, window: Opener
) -> None:
    async with opened(tmp_path) as broker:
        names = [f"topic://public/default/t{n:04}" for n in range(1_000)]
        for at in range(0, len(names), 100):
            await asyncio.gather(*(broker.admin.create_topic(name) for name in names[at : at + 100]))
        await broker.admin.set_topic_properties(STUCK, {"owner": "billing@example.org"})
        for topic, count in ((STUCK, 300), (HELD, 100), (ALONE, 50)):
            await broker.admin.create_subscription(topic, "bills", initial_position="earliest")
            await filled(broker, topic, count)
        stuck = await broker.queue_consumer(STUCK, "bills", name="oven-1")
        for _ in range(300):
            assert await stuck.receive(60) is not None  # and is never acknowledged
        reader = await broker.stream_consumer(HELD, "bills", name="till-1")
        transaction = await broker.transaction().__aenter__()
        async with await broker.producer(HELD) as producer:
            await producer.send(b"held", transaction=transaction)
            await producer.send(b"behind it")

        shown = await window(broker.service_url)
        page, source = shown.page, shown.console._without
        page.set_default_timeout(WAIT_MS)
        assert source is not None
        now = asyncio.get_running_loop().time
        start = now()
        await shown.go("/")
        # Once a second: numbers, brokers, what this person may do; and two questions for each topic that is shown.
        assert source.asked <= (3 + 2 * TOPICS_ON_OVERVIEW) * (1 + now() - start)
        # The largest backlog is on top, with its reason and whom to ask. The link leads to the rest.
        row = page.locator("#behind tbody tr").first
        await row.get_by_text("do not acknowledge").wait_for()  # once what was just delivered is no rate any more
        said = await row.inner_text()
        assert "t0500" in said
        assert "oven-1" in said
        assert "do not acknowledge" in said
        assert "billing@example.org" in await row.locator(".owner").inner_text()
        waiting = await page.locator(f"[id='t-{HELD}']").inner_text()
        assert f"wait for transaction {transaction.id}" in waiting
        assert "no property owner" in waiting
        assert "no consumer is connected" in await page.locator(f"[id='t-{ALONE}']").inner_text()
        await row.locator("a").click()
        await page.locator("#causes").wait_for()
        assert "oven-1" in await page.locator("#causes").inner_text()
        assert await page.locator("#owner").inner_text() == "billing@example.org"

        # The list of all of them is one question, and one page of rows.
        await page.goto("about:blank")  # which asks nothing
        source._answers.clear()
        before, start = source.asked, now()
        await shown.go("/topics?sort=name")
        assert source.asked - before <= 2 * (1 + now() - start)  # the numbers, and what this person may do
        assert await page.locator("#topics tbody tr").count() == PAGE_ROWS
        assert "1,000 topics, page 1 of 20" in await page.locator("#pages").inner_text()
        assert await page.evaluate("document.querySelectorAll('*').length") < 1_500
        await page.keyboard.press("/")
        await page.keyboard.type("t0999")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**text=t0999**")
        assert await page.locator("#topics tbody tr").count() == 1
        await transaction.abort()
        await stuck.close()
        await reader.close()


async def test_two_hundred_segments_are_bounded_rows_and_one_question_a_second(tmp_path: Path, window: Opener) -> None:
    async with opened(tmp_path) as broker:
        await broker.admin.create_topic(STUCK, segments=200)
        shown = await window(broker.service_url)
        page, source = shown.page, shown.console._without
        page.set_default_timeout(WAIT_MS)
        assert source is not None
        answers: list[float] = []
        now = asyncio.get_running_loop().time
        page.on("response", lambda answer: answers.append(now()) if "/topic?" in answer.url else None)
        await shown.go(f"/topic?name={STUCK.replace(':', '%3A').replace('/', '%2F')}")
        assert await page.locator("#segments tbody tr").count() == PAGE_ROWS
        assert "150 more" in await page.locator("#left").inner_text()
        assert await page.locator("#dag g").count() == 200
        assert await page.evaluate("document.querySelectorAll('*').length") < NODES_MAX
        source._answers.clear()
        answers.clear()
        asked, start = source.asked, now()
        for _ in range(3):
            await page.wait_for_event("response", lambda answer: "/topic?" in answer.url)
        spent = now() - start
        assert len(answers) <= spent + 2  # answers to the browser
        assert source.asked - asked <= 5 * (spent + 2)  # questions to the broker, whatever the number of segments
        await page.click("#left a")
        await page.locator("#segments tbody tr").nth(199).wait_for()
        assert await page.evaluate("document.querySelectorAll('*').length") < NODES_MAX


async def test_a_person_sees_and_does_only_what_he_may(tmp_path: Path, window: Opener) -> None:
    roles = tmp_path / "roles"
    tokens = {name: f"token-of-{name}-0123456789" for name in ("root", "reader", "billing")}
    roles.write_text("".join(line_of(name, token) + "\n" for name, token in tokens.items()))
    config = {"roles_file": str(roles), "superusers": ["root"]}
    doors = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"}
    async with engine.open_async(tmp_path / "data", config=config, shared=False, **doors) as broker:
        orders, other = "topic://public/default/orders", "topic://other/default/secret"
        await broker.admin.create_topic(orders)
        await broker.admin.create_topic(other)
        await broker.admin.create_subscription(orders, "bills", initial_position="earliest")
        await filled(broker, orders, 10)
        await broker.admin.grant("public/default", "reader", ["lookup"])
        await broker.admin.grant("public/default/orders", "billing", ["consume"])
        shown = await window(broker.service_url)
        page = shown.page
        page.set_default_timeout(WAIT_MS)
        seen: dict[str, list[str]] = {}
        for name in tokens:
            await shown.go("/login")
            await page.fill("#token", tokens[name])
            await page.keyboard.press("Enter")
            await page.locator("#logout").wait_for()
            await shown.go("/topics?sort=name")
            listed = await page.locator("#topics").inner_text()
            assert ("secret" in listed) is (name == "root")
            assert await page.locator("nav a[href='/brokers']").count() == (name == "root")
            await shown.go("/topic?name=topic%3A%2F%2Fpublic%2Fdefault%2Forders")
            seen[name] = sorted(set(await page.locator(".act").evaluate_all("all => all.map(one => one.dataset.act)")))
            assert await page.locator("#to-messages").count() == (name != "reader")
            if name == "reader":
                # Called anyhow, the broker refuses it with a sentence.
                shown.faults_expected += 1
                refused = await page.evaluate(SPLIT)
                assert "the right admin is needed on" in refused["reason"]
            await page.click("#logout")
            await page.wait_for_url("**/login")
        assert seen["reader"] == []
        assert seen["billing"] == ["delete-subscription", "rewind", "skip-backlog"]
        assert set(seen["root"]) == {*seen["billing"], "split"}
        async with engine.AsyncClient(broker.service_url, token=tokens["reader"]) as client:
            told = await client.admin.get_permissions("public/default/orders")
            assert told["rights"] == ["lookup"]
            with pytest.raises(AuthorizationError, match="right admin is needed"):
                await client.admin.split_segment(orders, 0)
