"""The live screen of `engine top`, driven by Textual's pilot against a broker's admin API, both in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

import engine
from engine.cli.looks import Looks
from engine.cli.screen.app import Page, TopApp
from engine.cli.screen.columns import CLIENTS, SEGMENTS, TOPICS, short
from engine.cli.screen.levels import topics_level
from engine.cli.top_view import SORTS, TopicRow
from engine.sync import Client

SIZES = [(80, 24), (200, 60)]
WAIT_S = 60.0
HOUR_S = 3600.0  # between looks: a test has the one that it asks for, and no other


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[engine.Engine]:
    """A broker that a test changes."""
    with engine.open(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0") as made:
        yield made


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine.Engine]:
    """One with three topics, which tests look at."""
    with engine.open(tmp_path_factory.mktemp("top"), listen="127.0.0.1:0", admin="127.0.0.1:0") as made:
        fill(made)
        yield made


class Screen:
    """The app under its pilot."""

    def __init__(self, app: TopApp, pilot: Pilot[int]) -> None:
        self.app, self._pilot = app, pilot

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until what the app has been told is on the screen."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await self._pilot.pause()

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def sort_by(self, name: str, key: str = "s") -> None:
        for _ in self.app.level.columns:
            if self.app.level.sort != name:
                await self.press(key)
        assert self.app.level.sort == name

    async def look(self) -> None:
        """Have the broker looked at, and the answer shown."""
        before = self.app.looks.view
        self.app.looks.ask(self.app.level.asked)
        await self.until(lambda: self.app.looks.view is not before)
        await self._pilot.pause()

    @property
    def names(self) -> list[str]:
        """The first word of each row on the screen."""
        return [line.split()[0] for line in self.app.grid.text()[1:] if line]

    @property
    def crumb(self) -> str:
        return str(self.app.query_one("#crumb").render())

    @property
    def head(self) -> list[str]:
        widget = self.app.query_one("#head")
        return [widget.render_line(y).text.rstrip() for y in range(widget.size.height)]


@asynccontextmanager
async def screen(
    broker: engine.Engine, size: tuple[int, int] = SIZES[0], interval: float = HOUR_S
) -> AsyncIterator[Screen]:
    looks = Looks(lambda: Client(broker.service_url), interval)
    app = TopApp(looks)
    async with app.run_test(size=size) as pilot:
        with looks:
            shown = Screen(app, pilot)
            await shown.until(lambda: app._view is not None)
            yield shown


def fill(broker: engine.Engine) -> None:
    """Three topics, of which `orders` has two segments, a backlog and a subscription that no consumer reads."""
    for name in ("bills", "archive"):
        broker.admin.create_topic(name)
    broker.admin.create_topic("orders", segments=2)
    broker.admin.create_subscription("orders", "audit", initial_position="earliest")
    with broker.producer("orders") as producer:
        for number in range(50):
            producer.send(b"x", key=str(number))
    with broker.producer("bills") as producer:
        producer.send(b"x")


@pytest.mark.parametrize("size", SIZES)
async def test_from_topics_to_segments_to_consumers_and_back(filled: engine.Engine, size: tuple[int, int]):
    with filled.queue_consumer("orders", "workers"), filled.producer("orders", name="shop") as shop:
        shop.send(b"x", key="1")
        async with screen(filled, size) as top:
            assert set(top.names) == {"orders", "bills", "archive"}
            assert "ready" in top.head[0]
            assert filled.service_url in top.head[0]
            await top.sort_by("backlog", "S")
            assert top.names[0] == "orders"
            await top.press("home", "enter")
            await top.until(lambda: len(top.names) == 2)
            assert top.crumb.startswith("topics > orders  2,")
            assert sorted(top.names) == ["0", "1"]
            assert ("owner" in top.app.grid.text()[0]) is (size == SIZES[1])
            await top.press("enter")
            await top.until(lambda: len(top.names) >= 2)
            lines = "\n".join(top.app.grid.text())
            assert "(no consumer)" in lines
            assert "audit" in lines
            assert "workers" in lines
            assert "queue" in lines
            await top.press("escape", "left")
            assert top.crumb.startswith("topics  3,")
            assert top.app.grid.selected.topic.endswith("/orders"), "the cursor is where it was"


@pytest.mark.parametrize("size", SIZES)
async def test_each_key_is_shown_and_nothing_is_cut(filled: engine.Engine, size: tuple[int, int]):
    async with screen(filled, size) as top:
        footer = top.app.query_one(Footer)
        keys = [key.render().plain.strip() for key in footer.query(FooterKey)]
        assert keys == [
            "enter Open", "q Quit", "esc Back", "s Sort", "r Reverse", "/ Filter", "p Pause", "m Memory", "? Keys",
        ]  # fmt: skip
        shown = lambda key: 0 < key.region.right <= size[0] and key.region.height == 1  # noqa: E731
        await top.until(lambda: all(map(shown, footer.query(FooterKey))))  # once they are laid out
        texts = [*top.app.grid.text(), *top.head, top.crumb]
        assert [text for text in texts if "…" in text or len(text) > size[0]] == []
        assert top.app.grid.size.height >= size[1] - 5


@pytest.mark.parametrize("size", SIZES)
async def test_sort_and_reverse(filled: engine.Engine, size: tuple[int, int]):
    async with screen(filled, size) as top:
        seen = []
        for _ in range(len(TOPICS)):
            await top.press("s")
            seen.append(top.app.level.sort)
            heading = top.app.grid.text()[0]
            assert heading.count("▼") + heading.count("▲") == 1
        wide = size == SIZES[1]
        assert len(set(seen)) == len([column for column in TOPICS if wide or not column.only_wide])
        await top.sort_by("name")
        assert top.names == ["archive", "bills", "orders"]
        await top.press("r")
        assert top.names == ["orders", "bills", "archive"]


@pytest.mark.parametrize("size", SIZES)
async def test_filter(filled: engine.Engine, size: tuple[int, int]):
    async with screen(filled, size) as top:
        await top.press("slash", *"OrD")
        assert top.names == ["orders"]
        assert 'filter "OrD"' in top.crumb
        assert "1 of 3" in top.crumb
        await top.press("enter", "enter")
        await top.until(lambda: top.crumb.startswith("topics > orders  2,"))
        await top.press("escape")
        assert top.names == ["orders"], "each level has its own filter"
        await top.press("escape")
        assert len(top.names) == 3
        await top.press("slash", "q")
        assert top.app.is_running, "a letter in the filter is no key"
        assert top.names == []
        await top.press("escape", "q")
        await top.until(lambda: top.app.return_value is not None)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("key", "code"), [("q", 0), ("ctrl+c", 130)])
async def test_quit(filled: engine.Engine, key: str, code: int, size: tuple[int, int]):
    async with screen(filled, size) as top:
        await top.press(key)
        await top.until(lambda: not top.app.is_running)
        assert top.app.return_value == code


@pytest.mark.parametrize("size", SIZES)
async def test_memory_and_keys_are_pages_over_it(filled: engine.Engine, size: tuple[int, int]):
    async with screen(filled, size) as top:
        for key, shown in (("m", "topic_list_heap"), ("question_mark", "by the next column")):
            await top.press(key)
            assert isinstance(top.app.screen, Page)
            assert shown in top.app.export_screenshot().replace("&#160;", " ")
            await top.press("escape")
            assert not isinstance(top.app.screen, Page)


@pytest.mark.parametrize("size", SIZES)
async def test_it_goes_on_by_itself_and_is_held_by_space(broker: engine.Engine, size: tuple[int, int]):
    async with screen(broker, size, interval=0.05) as top:
        broker.admin.create_topic("first")
        await top.until(lambda: top.names == ["first"])
        await top.press("space")
        assert "PAUSED" in top.crumb
        broker.admin.create_topic("second")
        seen = top.app.looks.requests
        await top.until(lambda: len(top.app.looks.view.topics) == 2 and top.app.looks.requests > seen + 1)
        assert top.names == ["first"]
        await top.press("space")
        assert set(top.names) == {"first", "second"}


async def test_a_topic_that_is_deleted_meanwhile_is_said_to_be(broker: engine.Engine):
    fill(broker)
    async with screen(broker) as top:
        while top.app.grid.selected.topic != "topic://public/default/bills":
            await top.press("down")
        await top.press("enter")
        await top.until(lambda: top.names == ["0"])
        broker.admin.delete_topic("bills")
        await top.look()
        await top.until(lambda: "bills" in top.head[1])
        assert top.names == []
        await top.press("escape")
        await top.look()
        assert set(top.names) == {"orders", "archive"}


async def test_a_broker_that_has_gone_leaves_what_was_seen_last(tmp_path: Path):
    with engine.open(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0") as broker:
        fill(broker)
        looks = Looks(lambda: Client(broker.service_url, operation_timeout=0.2), 0.01)
        app = TopApp(looks)
        async with app.run_test(size=SIZES[0]) as pilot:
            with looks:
                top = Screen(app, pilot)
                await top.until(lambda: app.grid.rows)
                await asyncio.to_thread(broker.close)
                await top.until(lambda: "no answer for" in top.head[1])
                assert len(top.names) == 3
                await top.press("end", "s", "r")
                assert len(top.names) == 3


async def test_a_thousand_topics_take_two_requests_and_draw_what_is_on_the_screen(broker: engine.Engine):
    """The counts do not depend on how many topics there are; the times are those of the machine."""
    for number in range(1_000):
        broker.admin.create_topic(f"topic-{number:04}")
    async with screen(broker) as top:
        for _ in range(100):
            await top.look()
            if len(top.app.grid.rows) == 1_000:
                break
        assert len(top.app.grid.rows) == 1_000
        lines = top.app.grid.size.height
        await top.sort_by("name")
        before = top.app.looks.requests
        drawn = top.app.grid.drawn
        await top.press("end")
        assert top.names[-1] == "topic-0999"
        await top.press("pageup", "home", "pagedown", "pagedown")
        assert top.names[0] != "topic-0000"
        await top.press("slash", *"0777", "enter")
        assert top.names == ["topic-0777"]
        assert top.app.looks.requests == before, "keys ask the broker for nothing"
        await top.press("enter")
        await top.until(lambda: top.crumb.startswith("topics > topic-0777  1,"))
        assert top.app.looks.requests == before + 2
        assert top.app.grid.drawn - drawn < 40 * lines


# -- without a broker --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (0.0, "0"), (0.25, "0.2"), (999.94, "999.9"), (99_999, "99,999"), (123_456, "123.5k"),
     (999_990, "1.0M"), (12_345_678.0, "12.3M"), (5e9, "5.0G"), (7e12, "7.0T")],
)  # fmt: skip
def test_numbers_stay_short(count: float, text: str):
    assert short(count) == text


@pytest.mark.parametrize("columns", [TOPICS, SEGMENTS, CLIENTS])
def test_columns_leave_room_for_names(columns: Any):
    assert 80 - sum(column.width for column in columns if not column.only_wide) >= 20
    assert columns[0].width == 0


def test_each_order_of_the_command_is_a_column():
    assert set(SORTS) <= {column.name for column in TOPICS}
    assert {topics_level(sort).column.name for sort in SORTS} == set(SORTS)


def test_the_sum_of_other_topics_opens_nothing():
    row = TopicRow("others of public/default", 5, 0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, changing=False)
    assert topics_level("in").below(row) is None
