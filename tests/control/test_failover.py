"""Several brokers on one metadata store: elections, failover, fencing, and a store that is not sure."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.control.base.leadership import Leadership
from engine.control.base.topic_records import ScalableTopicResources
from engine.control.service import ScalableTopicService
from engine.errors import AlreadyExistsError, EngineError, FencedError, NotFoundError, NotOwnerError, StorageError
from engine.metadata import keys
from engine.testing.metadata import FaultyMetadataStore
from tests.kit.control_fakes import TOPIC, Brokers, Channel, FakeHost, Listener, settle, subscribe, virtual


async def create(service: ScalableTopicService) -> None:
    """The topic with six segments, on a store that is not sure."""
    while True:
        try:
            await service.create_topic("orders", segments=6)
            return
        except AlreadyExistsError:
            return
        except EngineError:
            await asyncio.sleep(1)


@virtual
async def test_one_broker_leads_and_the_others_say_who(brokers: Brokers) -> None:
    first, second = await brokers.start("a"), await brokers.start("b")
    await second.create_topic("orders", segments=2)
    assert await subscribe(first, "one") == [0, 1]
    for refused in (
        subscribe(second, "two"),
        second.create_subscription("orders", "other"),
        second.delete_subscription("orders", "sub"),
        second.delete_topic("orders"),
    ):
        with pytest.raises(NotOwnerError, match="engine://a"):
            await refused
    # Reads go anywhere.
    assert (await second.ensure_topic("orders")).controller_url == "engine://a"
    assert (await second.ensure_subscription("orders", "sub")).name == "sub"
    assert [s.name for s in await second.list_subscriptions("orders")] == ["sub"]
    assert (await second.get_stats("orders"))["subscriptions"]["sub"]["consumers"] == {}
    await first.close()
    await second.close()


@virtual
async def test_elections_give_rising_terms_and_one_leader(brokers: Brokers) -> None:
    services = [await brokers.start(name) for name in "abc"]
    await services[0].create_topic("orders")
    terms = []
    for _ in range(3):
        results = await asyncio.gather(*(subscribe(s, "one") for s in services), return_exceptions=True)
        assert sorted(type(r).__name__ for r in results) == ["NotOwnerError"] * (len(services) - 1) + ["list"]
        record = await brokers.store.get(keys.controller(TOPIC))
        assert record is not None
        terms.append(record.stat.version)
        leader = next(s for s, r in zip(services, results, strict=True) if isinstance(r, list))
        await leader.close()
        services.remove(leader)
        await settle()
    assert terms == sorted(set(terms))


@virtual
async def test_semantics_14_a_dead_leaders_sessions_survive_with_a_full_grace_period(brokers: Brokers) -> None:
    first, second = await brokers.start("a"), await brokers.start("b")
    await first.create_topic("orders", segments=4)
    await subscribe(first, "one")
    await subscribe(first, "two")
    await settle()
    await brokers.kill("a")
    assert await subscribe(second, "one") == [0, 2]
    await asyncio.sleep(55)
    assert await subscribe(second, "two") == [1, 3]
    await asyncio.sleep(120)
    consumers = (await second.get_stats("orders"))["subscriptions"]["sub"]["consumers"]
    assert {name: c["segments"] for name, c in consumers.items()} == {"one": [0, 2], "two": [1, 3]}
    await second.close()


@virtual
async def test_a_broker_with_a_controller_takes_over_by_itself_and_ends_what_does_not_come_back() -> None:
    brokers = Brokers(controller_idle=1000.0)
    first, second = await brokers.start("a"), await brokers.start("b")
    await first.create_topic("orders", segments=2)
    await subscribe(first, "one")
    with pytest.raises(NotOwnerError):
        await subscribe(second, "two")
    await brokers.kill("a")
    assert (await second.ensure_topic("orders")).controller_url == "engine://b"
    await asyncio.sleep(61)
    resources = ScalableTopicResources(brokers.store)
    assert await resources.list_consumers(TOPIC) == []
    await second.close()


@virtual
async def test_watchers_learn_where_the_controller_is(brokers: Brokers) -> None:
    first, second = await brokers.start("a"), await brokers.start("b")
    listener = Listener()
    watch = await second.watch_topic("orders", listener, create=True)
    assert watch.view.controller_url == "engine://b"  # no broker leads: the one that is asked will
    await subscribe(first, "one")
    await settle()
    assert watch.view.controller_url == "engine://a"
    await brokers.kill("a")
    await settle()
    assert [v.controller_url for v in listener.views] == ["engine://a", "engine://b"]
    assert {v.layout.epoch for v in listener.views} == {0}
    await second.close()


@virtual
async def test_a_leader_that_lost_its_record_steps_down_and_tells_its_consumers(brokers: Brokers) -> None:
    first, second = await brokers.start("a"), await brokers.start("b")
    await first.create_topic("orders", segments=2)
    channel = Channel()
    await subscribe(first, "one", channel)
    other = await brokers.handles["b"].session()
    await brokers.store.delete(keys.controller(TOPIC))
    await ScalableTopicResources(brokers.handles["b"]).elect(TOPIC, "engine://b", other)
    await settle()
    assert isinstance(channel.closed[0], NotOwnerError)
    with pytest.raises(NotOwnerError, match="engine://b"):
        await subscribe(first, "two")
    await first.close()
    await second.close()


@virtual
async def test_a_leader_whose_session_expired_is_elected_anew_with_a_larger_term(
    brokers: Brokers, service: ScalableTopicService
) -> None:
    await service.create_topic("orders", segments=2)
    channel = Channel()
    await subscribe(service, "one", channel)
    before = await brokers.store.get(keys.controller(TOPIC))
    await service.controllers._session.close()  # type: ignore[union-attr]  # what the store does to a silent broker
    await settle()
    assert channel.closed
    assert await subscribe(service, "one") == [0, 1]
    after = await brokers.store.get(keys.controller(TOPIC))
    assert before is not None
    assert after is not None
    assert after.stat.version > before.stat.version
    await service.close()


@virtual
async def test_effects_of_an_older_term_are_refused(brokers: Brokers) -> None:
    first, second = await brokers.start("a"), await brokers.start("b")
    await first.create_topic("orders")
    controller = await first.controllers.lead(TOPIC)
    await brokers.store.delete(keys.controller(TOPIC))
    await second.create_subscription("orders", "new")
    controller.leadership.state = type(controller.leadership.state).LEADING  # it has not heard yet
    with pytest.raises((FencedError, NotOwnerError)):
        await first.create_subscription("orders", "old")
    assert brokers.host.cursors[0].keys() == {"new"}
    await first.close()
    await second.close()


@virtual
async def test_a_deletion_is_finished_by_another_broker_when_the_leader_dies(brokers: Brokers) -> None:
    first, second = await brokers.start("a"), await brokers.start("b")
    await first.create_topic("orders", segments=2)
    await first.create_subscription("orders", "sub")
    listener = Listener()
    await second.watch_topic("orders", listener)

    class Stuck(FakeHost):
        async def delete_segment(self, spec: object, *, term: int) -> None:
            await asyncio.sleep(1e9)

    first.controllers._host = Stuck()
    await first.controllers.release(TOPIC)
    deletion = asyncio.create_task(first.delete_topic("orders"))
    await asyncio.sleep(1)
    assert listener.deleted == 1
    await brokers.kill("a")
    await asyncio.sleep(1)
    assert len(brokers.host.deleted) == 2
    assert await brokers.store.list_keys("/", "0") == []
    deletion.cancel()
    await asyncio.gather(deletion, return_exceptions=True)
    await second.close()


@virtual
async def test_an_election_whose_outcome_is_unknown_is_resolved_by_reading_back() -> None:
    for seed in range(20):
        brokers = Brokers()
        store = FaultyMetadataStore(brokers.store, random.Random(seed))
        resources = ScalableTopicResources(store)
        store.unknown_rate = 0.5
        leadership = Leadership(TOPIC, "engine://a", resources, store.session)
        try:
            await leadership.acquire()
        except EngineError:
            continue
        store.unknown_rate = 0.0
        assert await leadership.confirm()
        await resources.resign(TOPIC, leadership.term)
        assert await brokers.store.get(keys.controller(TOPIC)) is None


@pytest.mark.parametrize("seed", range(10))
@virtual
async def test_unknown_outcomes_leave_a_consistent_topic(seed: int, brokers: Brokers) -> None:
    """Every step is tried until it is sure; what the store then holds is what was answered."""
    store = FaultyMetadataStore(brokers.store, random.Random(seed))
    store.unknown_rate = 0.2
    service = ScalableTopicService(store, brokers.host, clock=brokers.clock, broker_url="engine://a")
    await service.start()

    for _ in range(10):
        try:
            await service.ensure_topic("orders")
            await service.ensure_subscription("orders", "sub")
            assert await subscribe(service, "one") == [0]
            break
        except EngineError:
            await asyncio.sleep(1)
    assert [s.name for s in await service.list_subscriptions("orders")] == ["sub"]
    for _ in range(10):
        try:
            await service.delete_topic("orders")
        except NotFoundError:
            break
        except EngineError:
            await asyncio.sleep(1)
    store.unknown_rate = 0.0
    await asyncio.sleep(1)
    assert await brokers.store.list_keys(keys.TOPICS, keys.prefix_end(keys.TOPICS)) == []
    await service.close()


@virtual
async def test_a_failed_takeover_gives_the_leadership_back(brokers: Brokers, service: ScalableTopicService) -> None:
    await service.create_topic("orders")
    handle = brokers.handles["a"]
    list_keys = handle.list_keys

    async def broken(*args: object) -> list[str]:
        raise StorageError("no")

    handle.list_keys = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(StorageError):
        await subscribe(service, "one")
    handle.list_keys = list_keys  # type: ignore[method-assign]
    await settle()
    assert await subscribe(service, "one") == [0]
    await service.close()


@virtual
async def test_consumers_that_come_during_a_takeover_wait_for_what_it_restores(brokers: Brokers) -> None:
    first = await brokers.start("a")
    await first.create_topic("orders", segments=2)
    await subscribe(first, "one")
    await subscribe(first, "two")
    await settle()
    await first.close()
    brokers.delay_s_max = 0.5

    async def come(service: ScalableTopicService, name: str, after: float) -> list[int]:
        await asyncio.sleep(after)
        return await subscribe(service, name)

    for seed in range(20):
        brokers.rng.seed(seed)
        second = await brokers.start(f"b{seed}")
        arrivals = [("one", 0.0), ("two", brokers.rng.uniform(0, 3)), ("one", brokers.rng.uniform(0, 3))]
        shares = await asyncio.gather(*(come(second, name, after) for name, after in arrivals))
        assert shares == [[0], [1], [0]]
        await asyncio.sleep(200)
        stored = await ScalableTopicResources(brokers.store).list_consumers(TOPIC)
        assert {facts.consumer_name: facts.segment_ids for _, facts, _ in stored} == {"one": (0,), "two": (1,)}
        await second.close()


@pytest.mark.parametrize("seed", range(20))
@virtual
async def test_random_failovers_keep_every_segment_with_one_consumer(seed: int) -> None:
    """Brokers die and come, clients follow the leader; in the end the shares tile the topic and the store agrees."""
    rng = random.Random(seed)
    brokers = Brokers()
    brokers.rng, brokers.delay_s_max, brokers.unknown_rate = rng, 0.3 * (seed % 2), 0.1 * (seed % 3)
    alive = {name: await brokers.start(name) for name in "ab"}
    await create(alive["a"])
    clients = [f"c{i}" for i in range(4)]

    async def connect(client: str) -> None:
        for _ in range(200):
            service = rng.choice(list(alive.values()))
            try:
                await subscribe(service, client)
                return
            except EngineError:
                await asyncio.sleep(1)
        raise AssertionError(f"{client} found no leader")

    for round_number in range(6):
        await asyncio.gather(*(connect(c) for c in clients))
        victim = rng.choice(list(alive))
        service = alive.pop(victim)
        if rng.random() < 0.5:
            await brokers.kill(victim)
        await service.close()
        alive[f"n{round_number}"] = await brokers.start(f"n{round_number}")
        await asyncio.sleep(rng.choice([0.0, 5.0, 50.0]))
    await asyncio.gather(*(connect(c) for c in clients))
    await asyncio.sleep(200)
    await asyncio.gather(*(connect(c) for c in clients))
    stored = await ScalableTopicResources(brokers.store).list_consumers(TOPIC)
    assert sorted(facts.consumer_name for _, facts, _ in stored) == clients
    assert sorted(i for _, facts, _ in stored for i in facts.segment_ids) == list(range(6))
    for service in alive.values():
        await service.close()


@pytest.mark.parametrize("seed", range(10))
@virtual
async def test_racing_creations_deletions_and_registrations_end_well(seed: int) -> None:
    """Whichever call wins, each gets an answer, and afterwards the topic works or is gone without a trace."""
    rng = random.Random(seed)
    brokers = Brokers(controller_idle=5.0)
    brokers.rng, brokers.delay_s_max = rng, 0.3 * (seed % 2)
    services = [await brokers.start(name) for name in "ab"]

    async def act() -> None:
        service = rng.choice(services)
        action = rng.choice(["create", "delete", "subscribe", "unsubscribe", "wait"])
        try:
            if action == "create":
                await service.ensure_topic("orders")
            elif action == "delete":
                await service.delete_topic("orders")
            elif action == "subscribe":
                await subscribe(service, rng.choice("xyz"))
            elif action == "unsubscribe":
                await service.delete_subscription("orders", "sub")
            else:
                await asyncio.sleep(rng.choice([0.0, 6.0, 12.0]))
        except EngineError:
            pass

    for _ in range(30):
        await asyncio.gather(*(act() for _ in range(5)))
    await asyncio.sleep(300)
    await services[1].close()
    await services[0].ensure_topic("orders")
    assert await subscribe(services[0], "x") == [0]
    await services[0].delete_topic("orders")
    assert await brokers.store.list_keys("/", "0") == []
    await services[0].close()
