"""Splits, merges and rebuckets cut short at every point: the old layout and no orphans, or the new (semantics 42)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from engine.control.base.topic_records import INDEX_CHANGES, INDEX_TOPICS, ScalableTopicResources, index_key
from engine.errors import EngineError, NotOwnerError, StorageError, UnknownOutcomeError
from engine.metadata import keys
from tests.kit.control_fakes import TOPIC, Channel, deafen, subscribe, virtual
from tests.kit.reshape_bench import COMMITTED, KINDS, POINTS, Bench, once

every_point = pytest.mark.parametrize("point", POINTS)
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@every_point
@virtual
async def test_one_error_undoes_it_or_does_not_matter(kind: str, point: str) -> None:
    bench = Bench(kind)
    service = await bench.start()

    async def fail() -> None:
        raise StorageError("the disk is on fire")

    bench.at(point, once(fail))
    if point == "after commit":
        await bench.change(service)  # it is done, whatever the store says
    else:
        with pytest.raises(StorageError):
            await bench.change(service)
    if point not in COMMITTED:
        assert (await bench.check()).epoch == 0  # at once: nothing is left to be done later
        assert (await bench.change(service)).layout.epoch == 1
    assert (await bench.settled()).epoch == 1
    await service.close()


@every_kind
@every_point
@virtual
async def test_a_host_or_store_that_is_down_for_long_is_waited_for(kind: str, point: str) -> None:
    bench = Bench(kind)
    service = await bench.start()
    up = asyncio.Event()

    async def fail() -> None:
        if not up.is_set():
            raise StorageError("not today")

    bench.at(point, fail)
    with suppress(StorageError):
        await bench.change(service)
    await asyncio.sleep(60)
    served = [s.segment_id for s in (await bench.layout()).active]
    assert served == [0, 1] or point in ("after terminate", "after commit")
    assert await subscribe(service, "one", Channel()) == served  # consumers do not wait for it
    up.set()
    expected = 1 if point in COMMITTED else 0
    assert (await bench.settled()).epoch == expected
    if not expected:
        await bench.change(service)
    await bench.check()
    await service.close()


@every_kind
@every_point
@virtual
async def test_a_broker_that_dies_leaves_it_to_the_next(kind: str, point: str) -> None:
    bench = Bench(kind)
    service = await bench.start()
    second = await bench.brokers.start("b")

    async def die() -> None:
        await asyncio.Event().wait()

    bench.at(point, die)
    doomed = asyncio.ensure_future(bench.change(service))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    bench.heal()
    await bench.brokers.kill("a")
    layout = await bench.settled()
    assert layout.epoch == (1 if point in COMMITTED else 0)
    assert await subscribe(second, "one", Channel()) == [s.segment_id for s in layout.active]
    if layout.epoch == 0:
        await bench.change(second)
        await bench.check()
    doomed.cancel()
    await second.close()


@every_kind
@every_point
@virtual
async def test_l1_a_zombie_leaders_late_calls_are_refused(kind: str, point: str) -> None:
    bench = Bench(kind)
    service = await bench.start()
    deafen(service)
    second = await bench.brokers.start("b")
    awake = asyncio.Event()

    async def stop() -> None:
        bench.heal()
        await awake.wait()

    bench.at(point, once(stop))
    zombie = asyncio.ensure_future(bench.change(service))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    await bench.brokers.store.delete(keys.controller(TOPIC))
    await second.list_topics("public/default")
    before = await bench.settled()
    await second.create_subscription("orders", "later", initial_position="earliest")  # the leader, and what it has seen
    awake.set()
    await asyncio.wait([zombie])
    if before.epoch == 0:
        with pytest.raises(NotOwnerError):
            zombie.result()
    else:
        assert zombie.result().layout.epoch == before.epoch  # the other has finished it
    await second.delete_subscription("orders", "later")
    after = await bench.settled()
    assert after.epoch == before.epoch
    assert sorted(after.segments) == sorted(before.segments)
    await service.close()
    await second.close()


@every_kind
@virtual
async def test_who_lost_the_lead_in_the_middle_of_a_change_does_not_say_that_nothing_was_done(kind: str) -> None:
    """Else it would be asked for once more of the next leader, which finishes it as well."""
    bench = Bench(kind)
    service = await bench.start()
    brokers = bench.brokers
    await brokers.start("b")
    handle = brokers.handles["b"]

    async def replaced() -> None:
        bench.heal()
        await bench.brokers.store.delete(keys.controller(TOPIC))
        await ScalableTopicResources(handle).elect(TOPIC, "engine://c", await handle.session())

    bench.at("before terminate_segment", once(replaced))
    with pytest.raises(UnknownOutcomeError, match=f"the {kind} of .* was begun"):
        await bench.change(service)
    await service.close()


@every_kind
@every_point
@virtual
async def test_a_record_that_somebody_else_wrote_is_read_again(kind: str, point: str) -> None:
    bench = Bench(kind)
    service = await bench.start()

    async def write() -> None:
        record = await bench.brokers.store.get(keys.topic(TOPIC))
        assert record is not None
        indexes = {INDEX_TOPICS: index_key(TOPIC)}
        if b'"change"' in record.value:
            indexes[INDEX_CHANGES] = index_key(TOPIC)
        await bench.brokers.store.put(record.key, record.value, record.stat.version, indexes=indexes)

    bench.at(point, once(write))
    try:
        await bench.change(service)
    except NotOwnerError:
        assert (await bench.settled()).epoch == (1 if point in COMMITTED else 0)
    if (await bench.settled()).epoch == 0:
        await bench.change(service)
    assert (await bench.check()).epoch == 1
    await service.close()


@every_kind
@every_point
@virtual
async def test_a_leader_cut_off_from_the_store_says_so_and_goes_on_when_it_is_back(kind: str, point: str) -> None:
    bench = Bench(kind)
    service = await bench.start()
    store = bench.brokers.stores["a"]

    async def cut() -> None:
        store.partition()

    bench.at(point, once(cut))
    with suppress(EngineError):
        await bench.change(service)
    await asyncio.sleep(25)
    store.heal()
    epoch = (await bench.settled()).epoch
    assert epoch == 1 or point not in COMMITTED
    if epoch == 0:
        await bench.change(service)
    assert (await bench.check()).epoch == 1
    await service.close()


@every_kind
@every_point
@virtual
async def test_a_caller_that_gives_up_leaves_nothing_half_done(kind: str, point: str) -> None:
    bench = Bench(kind)
    service = await bench.start()
    caller: list[asyncio.Future[Any]] = []

    async def give_up() -> None:
        caller[0].cancel()
        await asyncio.sleep(0)

    bench.at(point, once(give_up))
    caller.append(asyncio.ensure_future(bench.change(service)))  # type: ignore[arg-type]
    await asyncio.wait(caller)
    epoch = (await bench.settled()).epoch
    if epoch == 0:
        await bench.change(service)
    assert (await bench.check()).epoch == 1
    await service.close()


@every_kind
@virtual
async def test_a_store_that_is_never_sure_loses_nothing(kind: str) -> None:
    for seed in range(30):
        bench = Bench(kind)
        service = await bench.start()
        store = bench.brokers.stores["a"]
        store._rng.seed(seed)
        store.unknown_rate, store.delay_s_max = 0.4, 0.5
        for _ in range(50):
            try:
                await bench.change(service)
                break
            except EngineError:
                if (await bench.settled()).epoch == 1:
                    break
        store.unknown_rate = 0.0
        assert (await bench.settled()).epoch == 1, seed
        await service.close()


@every_kind
@virtual
async def test_l1_a_zombie_cannot_go_forward_while_the_next_leader_undoes(kind: str) -> None:
    bench = Bench(kind)
    service = await bench.start()
    deafen(service)
    second = await bench.brokers.start("b")
    awake, undoing, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stop() -> None:
        await awake.wait()

    async def deleting() -> None:
        undoing.set()
        await go_on.wait()

    bench.at("before terminate", once(stop))
    zombie = asyncio.ensure_future(bench.change(service))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    bench.host.after["delete_segment"] = deleting
    await bench.brokers.store.delete(keys.controller(TOPIC))
    await undoing.wait()
    awake.set()
    with pytest.raises(NotOwnerError):
        await zombie
    go_on.set()
    assert (await bench.settled()).epoch == 0
    await bench.change(second)
    await bench.check()
    await service.close()
    await second.close()


@virtual
async def test_l1_a_zombie_whose_intent_comes_late_asks_nothing_of_hosts() -> None:
    bench = Bench("split")
    service = await bench.start()
    deafen(service)
    second = await bench.brokers.start("b")
    awake = asyncio.Event()

    async def stop() -> None:
        await awake.wait()

    bench.at("before begin", once(stop))
    zombie = asyncio.ensure_future(bench.change(service))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    await bench.brokers.store.delete(keys.controller(TOPIC))
    await second.create_subscription("orders", "later")  # it leads, and found nothing pending
    bench.host.calls.clear()
    awake.set()
    with pytest.raises(NotOwnerError):
        await zombie
    assert (await bench.settled()).epoch == 0  # the leader saw it, and undid it
    assert {call[0] for call in bench.host.calls} == {"delete_segment"}
    await service.close()
    await second.close()


@virtual
async def test_a_child_that_is_created_late_is_waited_for_before_it_is_undone() -> None:
    bench = Bench("split")
    service = await bench.start()
    calls = 0

    async def one_fails_one_is_slow() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StorageError("no")
        await asyncio.sleep(5)

    bench.host.before["create_segment"] = one_fails_one_is_slow
    with pytest.raises(StorageError):
        await bench.change(service)
    assert (await bench.check()).epoch == 0
    await asyncio.sleep(10)
    await bench.check()
    await service.close()


@pytest.mark.parametrize("point", ["before create_segment", "before inherit"])
@virtual
async def test_a_leader_that_hears_nothing_of_the_store_finishes_what_it_began(point: str) -> None:
    bench = Bench("split")
    service = await bench.start()
    deafen(service)
    bench.host.failures["delete_segment"] = StorageError("no")

    async def fail() -> None:
        raise StorageError("no")

    bench.at(point, once(fail))
    with pytest.raises(StorageError):
        await bench.change(service)
    bench.host.failures.clear()
    assert (await bench.settled()).epoch == (0 if point == "before create_segment" else 1)
    await service.close()


@virtual
async def test_a_leader_that_took_over_by_chance_finishes_what_the_last_one_began() -> None:
    bench = Bench("split")
    service = await bench.start()
    second = await bench.brokers.start("b")
    deafen(second)
    bench.host.failures["inherit"] = StorageError("no")
    with pytest.raises(StorageError):
        await bench.change(service)
    await bench.brokers.kill("a")
    bench.host.failures.clear()
    assert (await bench.layout()).change is not None
    await subscribe(second, "one", Channel())
    assert (await bench.settled()).epoch == 1
    await second.close()
