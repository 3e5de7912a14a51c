"""Conformance: watches. They may collapse events, never lose the last state (semantics 37)."""

from __future__ import annotations

import asyncio

import pytest

from engine.metadata.store import EventKind
from tests.metadata.conftest import forget_history

PUT, DELETE, SNAPSHOT_END = EventKind.PUT, EventKind.DELETE, EventKind.SNAPSHOT_END


async def take(watch, count):
    events = aiter(watch)
    return [await asyncio.wait_for(anext(events), 10) for _ in range(count)]


def shown(events):
    return [(event.kind, event.key) for event in events]


async def test_m2_a_watch_starts_with_a_snapshot(store):
    await store.put("/w/1", b"a")
    await store.put("/w/2", b"b")
    await store.put("/x", b"")
    watch = store.watch("/w/")
    events = await take(watch, 3)
    assert shown(events) == [(PUT, "/w/1"), (PUT, "/w/2"), (SNAPSHOT_END, "")]
    assert events[0].record.value == b"a"
    assert events[2].version == store.version


async def test_m2_changes_follow_in_order(store):
    watch = store.watch("/w/")
    await take(watch, 1)
    await store.put("/w/1", b"a")
    await store.put("/other", b"")
    await store.put("/w/2", b"b")
    events = await take(watch, 2)
    assert shown(events) == [(PUT, "/w/1"), (PUT, "/w/2")]
    assert events[0].version < events[1].version
    await store.delete("/w/1")
    (event,) = await take(watch, 1)
    assert (event.kind, event.key, event.record) == (DELETE, "/w/1", None)
    assert event.version == store.version


async def test_a_watch_gets_what_begins_as_its_prefix_wherever_the_slashes_are(store):
    keys = ["/w", "/w/", "/w/1", "/w/1/a", "/w/12", "/w-x/1", "/x", "plain", "w/1", "//"]
    prefixes = ["", "/", "/w", "/w/", "/w/1", "/w/1/", "/w-x/", "p", "w/", "//"]
    watches = {prefix: store.watch(prefix) for prefix in prefixes}
    for watch in watches.values():
        await take(watch, 1)
    dropped = store.watch("/w/")
    dropped.close()
    for key in keys:
        await store.put(key, b"")
    for prefix, watch in watches.items():
        wanted = [key for key in keys if key.startswith(prefix)]
        assert shown(await take(watch, len(wanted))) == [(PUT, key) for key in wanted]


async def test_a_waiting_reader_is_woken(store):
    watch = store.watch("/w/")
    await take(watch, 1)
    reading = asyncio.ensure_future(take(watch, 1))
    await asyncio.sleep(0)
    await store.put("/w/1", b"")
    assert shown(await reading) == [(PUT, "/w/1")]


async def test_semantics_37_events_of_a_key_collapse_into_the_last(store):
    watch = store.watch("/w/")
    await take(watch, 1)
    for i in range(100):
        await store.put("/w/1", str(i).encode())
    await store.put("/w/2", b"")
    events = await take(watch, 2)
    assert shown(events) == [(PUT, "/w/1"), (PUT, "/w/2")]
    assert events[0].record.value == b"99"


async def test_m2_a_key_changed_during_the_snapshot_is_in_it_once_in_its_last_state(store):
    await store.put("/w/1", b"old")
    await store.put("/w/2", b"old")
    await store.put("/w/3", b"old")
    watch = store.watch("/w/")
    await store.put("/w/1", b"new")
    await store.delete("/w/2")
    await store.put("/w/4", b"new")
    events = await take(watch, 4)
    assert shown(events) == [(PUT, "/w/1"), (PUT, "/w/3"), (SNAPSHOT_END, ""), (PUT, "/w/4")]
    assert events[0].record.value == b"new"


async def test_m2_a_key_that_comes_and_goes_unseen_is_not_shown(store):
    watch = store.watch("/w/")
    await take(watch, 1)
    await store.put("/w/1", b"")
    await store.delete("/w/1")
    await store.put("/w/2", b"")
    assert shown(await take(watch, 1)) == [(PUT, "/w/2")]


async def test_m2_delete_and_put_again_of_a_seen_key_is_a_put(store):
    await store.put("/w/1", b"a")
    watch = store.watch("/w/")
    await take(watch, 2)
    await store.delete("/w/1")
    await store.put("/w/1", b"b")
    events = await take(watch, 1)
    assert shown(events) == [(PUT, "/w/1")]
    assert events[0].record.value == b"b"
    await store.put("/w/1", b"c")
    await store.delete("/w/1")
    assert shown(await take(watch, 1)) == [(DELETE, "/w/1")]


async def test_l2_a_stuck_reader_is_owed_a_bounded_number_of_events(store):
    watch = store.watch("/w/")
    for i in range(500):
        await store.put(f"/w/{i}", b"")
        await store.delete(f"/w/{i}")
    assert watch.owed == 1


async def test_m2_a_watch_resumes_after_a_version(store):
    await store.put("/w/1", b"")
    seen = await store.put("/w/2", b"")
    await store.delete("/w/1")
    await store.put("/w/3", b"")
    await store.put("/x", b"")
    watch = store.watch("/w/", from_version=seen.version)
    assert shown(await take(watch, 2)) == [(DELETE, "/w/1"), (PUT, "/w/3")]
    await store.put("/w/4", b"")
    assert shown(await take(watch, 1)) == [(PUT, "/w/4")]


async def test_m2_a_watch_resumed_at_the_present_starts_with_nothing(store):
    await store.put("/w/1", b"")
    watch = store.watch("/w/", from_version=store.version)
    await store.put("/w/2", b"")
    assert shown(await take(watch, 1)) == [(PUT, "/w/2")]


async def test_m2_every_event_is_good_to_resume_from(store):
    for i in range(6):
        await store.put(f"/w/{(i * 5) % 6}", str(i).encode())
    await store.delete("/w/3")
    await store.put("/w/1", b"again")
    count = 6
    whole = await take(store.watch("/w/"), count)
    for at in range(count):
        state = {e.key: e.record.value for e in whole[: at + 1] if e.kind is PUT}
        watch = store.watch("/w/", from_version=whole[at].version)
        await store.put("/w/last", str(at).encode())
        while state.get("/w/last") != str(at).encode():
            (event,) = await take(watch, 1)
            if event.kind is PUT:
                state[event.key] = event.record.value
            elif event.kind is DELETE:
                state.pop(event.key, None)
        watch.close()
        assert state == {r.key: r.value for r in await store.list("/w/", "/w0")}


async def test_m2_a_forgotten_version_starts_over_with_a_snapshot(store):
    await store.put("/w/1", b"")
    old = store.version
    await forget_history(store)
    watch = store.watch("/w/", from_version=old)
    assert shown(await take(watch, 2)) == [(PUT, "/w/1"), (SNAPSHOT_END, "")]


async def test_m2_a_version_of_the_future_starts_over_with_a_snapshot(store):
    watch = store.watch("/w/", from_version=store.version + 10)
    assert shown(await take(watch, 1)) == [(SNAPSHOT_END, "")]


async def test_m3_the_end_of_a_session_is_an_event(store):
    session = await store.session()
    await store.put("/w/e", b"", session=session)
    watch = store.watch("/w/")
    await take(watch, 2)
    await session.close()
    assert shown(await take(watch, 1)) == [(DELETE, "/w/e")]


async def test_watches_of_different_prefixes_see_their_own(store):
    watches = [store.watch(prefix) for prefix in ("", "/", "/a", "/a/b", "/b")]
    for watch in watches:
        await take(watch, 1)
    await store.put("/a/b", b"")
    assert [watch.owed for watch in watches] == [1, 1, 1, 1, 0]
    watches[2].close()
    await store.put("/a/c", b"")
    assert [watch.owed for watch in watches] == [2, 2, 0, 1, 0]


async def test_a_prefix_at_the_end_of_unicode(store):
    key = "/a\U0010ffff"
    await store.put(key, b"")
    assert shown(await take(store.watch(key), 2)) == [(PUT, key), (SNAPSHOT_END, "")]


@pytest.mark.parametrize("closer", ["watch", "store"])
async def test_closing_ends_the_iteration(store, closer):
    await store.put("/w/1", b"")
    watch = store.watch("/w/")
    await take(watch, 2)

    async def read():
        return [event async for event in watch]

    reading = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    if closer == "watch":
        watch.close()
        watch.close()
    else:
        await store.close()
    assert await asyncio.wait_for(reading, 10) == []


async def test_a_cancelled_read_consumes_nothing(store):
    watch = store.watch("/w/")
    await take(watch, 1)
    reading = asyncio.ensure_future(take(watch, 1))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await store.put("/w/1", b"")
    assert shown(await take(watch, 1)) == [(PUT, "/w/1")]


async def waiting(watch):
    """A read that waits for what comes after the snapshot."""
    await take(watch, 1)
    reading = asyncio.ensure_future(anext(aiter(watch)))
    await asyncio.sleep(0)
    return reading


async def test_who_wrote_goes_on_before_who_watches(store):
    watch, order = store.watch("/w/"), []
    reading = await waiting(watch)
    reading.add_done_callback(lambda _: order.append("watched"))

    async def answer():
        await asyncio.ensure_future(store.put("/w/1", b""))
        order.append("answered")

    await answer()
    assert shown([await reading]) == [(PUT, "/w/1")]
    await asyncio.sleep(0)
    assert order == ["answered", "watched"]


@pytest.mark.parametrize("closed", [True, False])
async def test_a_read_that_is_woken_and_ended_in_that_moment_consumes_nothing(store, closed):
    watch = store.watch("/w/")
    reading = await waiting(watch)
    await store.put("/w/1", b"")
    await asyncio.sleep(0)  # it is woken, and gives way
    assert not reading.done()
    if closed:
        watch.close()
        with pytest.raises(StopAsyncIteration):
            await reading
    else:
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert shown(await take(watch, 1)) == [(PUT, "/w/1")]


async def test_a_read_that_is_woken_and_finds_nothing_waits_on(store):
    watch = store.watch("/w/")
    reading = await waiting(watch)
    await asyncio.gather(store.put("/w/1", b""), store.delete("/w/1"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not reading.done()
    await store.put("/w/2", b"")
    assert shown([await reading]) == [(PUT, "/w/2")]


async def test_index_watch_follows_records_in_and_out_of_its_range(store):
    await store.put("/r/1", b"", indexes={"due": "05"})
    await store.put("/r/2", b"", indexes={"due": "20"})
    watch = store.watch_index("due", "00", "10")
    assert shown(await take(watch, 2)) == [(PUT, "/r/1"), (SNAPSHOT_END, "")]
    await store.put("/r/2", b"", indexes={"due": "07"})
    await store.put("/r/3", b"", indexes={"due": "30"})
    assert shown(await take(watch, 1)) == [(PUT, "/r/2")]
    await store.put("/r/1", b"", indexes={"due": "11"})
    await store.delete("/r/2")
    await store.put("/r/3", b"")
    assert shown(await take(watch, 2)) == [(DELETE, "/r/1"), (DELETE, "/r/2")]
    assert watch.owed == 0
    watch.close()
    await store.put("/r/3", b"", indexes={"due": "01"})
    assert watch.owed == 0


async def test_a_watch_of_one_key_hears_of_no_other(store):
    names = ["/limits/a", "/limits/a%2Fb", "/limits/a-b", "/limits/ab", "/limits/a%20b"]
    for name in names:
        await store.put(name, b"1")
    watch, all_of_them = store.watch_key("/limits/a"), store.watch("/limits/a")
    assert shown(await take(watch, 2)) == [(PUT, "/limits/a"), (SNAPSHOT_END, "")]
    await take(all_of_them, len(names) + 1)
    for name in reversed(names):
        await store.put(name, b"2")
    (event,) = await take(watch, 1)
    assert (event.key, event.record.value) == ("/limits/a", b"2")
    await store.delete("/limits/ab")
    await store.delete("/limits/a")
    assert shown(await take(watch, 1)) == [(DELETE, "/limits/a")]
    await store.put("/limits/a", b"3")
    assert shown(await take(watch, 1)) == [(PUT, "/limits/a")]
    assert watch.owed == 0
    watch.close()
    absent = store.watch_key("/limits/z")
    assert shown(await take(absent, 1)) == [(SNAPSHOT_END, "")]
    await store.put("/limits/z", b"")
    assert shown(await take(absent, 1)) == [(PUT, "/limits/z")]
