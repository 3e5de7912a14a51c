"""Topics that change their own shape through the real control plane: when it looks, what it does, on which broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.control.service import ScalableTopicService
from engine.control.shape.topic_scaling import Peak
from engine.errors import TimeoutError
from engine.limits import AUTO_SCALE_HISTORY_MAX
from engine.model.autoscale import AutoScalePolicy, AutoScalePolicyOverride
from engine.model.subscriptions import SubscriptionKind
from tests.control.scaling_bench import NEVER_S, calls, counts, report, shape
from tests.kit.control_fakes import TOPIC, Brokers, Channel, settle, subscribe, virtual


@virtual
async def test_semantics_31_five_consumers_on_a_cold_topic_end_with_one_segment_of_8_buckets() -> None:
    brokers = Brokers(auto_scale_interval=NEVER_S)
    service = await brokers.start("a")
    await service.create_topic(TOPIC)
    for name in "abcd":
        await subscribe(service, name)
    await asyncio.sleep(100)
    assert await shape(brokers) == [4]
    await subscribe(service, "e")
    await asyncio.sleep(2)
    assert await shape(brokers) == [8]
    assert counts(service) == (0, 0, 1)
    status = await service.scaling.status(TOPIC)
    assert status.last_change is not None
    assert (status.last_change["action"], status.last_change["reason"]) == ("rebucket", "buckets")
    assert status.decision is not None
    assert (status.decision["action"], status.decision["reason"]) == ("nothing", "settled")
    history = await service.scaling.history(TOPIC)
    assert history["leading"] is True
    newest, before, *_ = history["decisions"]
    assert (newest["action"], newest["reason"], newest["changed"]) == ("nothing", "settled", False)
    assert (before["action"], before["changed"], before["failure"]) == ("rebucket", True, None)
    assert before["atMs"] <= newest["atMs"] <= newest["lastMs"]
    await service.close()


@virtual
async def test_what_is_decided_again_and_again_is_remembered_once_and_the_rest_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers = Brokers(auto_scale_interval=10.0)
    service = await brokers.start("a")
    await service.create_topic(TOPIC)
    controller = await service.controllers.lead(TOPIC)
    controller.scaling.evaluate()
    await asyncio.sleep(1)
    (first,) = (await service.scaling.history(TOPIC))["decisions"]
    for _ in range(9):
        controller.scaling.evaluate()
        await asyncio.sleep(1)
    (repeated,) = (await service.scaling.history(TOPIC))["decisions"]
    assert repeated["times"] == first["times"] + 9
    assert (repeated["atMs"], repeated["lastMs"] > first["lastMs"]) == (first["atMs"], True)
    for number in range(2 * AUTO_SCALE_HISTORY_MAX):  # two reasons in turn
        await service.scaling.set_policy(TOPIC, AutoScalePolicyOverride.of({"enabled": bool(number % 2)}))
        controller.scaling.evaluate()
        await asyncio.sleep(1)
    decisions = (await service.scaling.history(TOPIC))["decisions"]
    assert len(decisions) == AUTO_SCALE_HISTORY_MAX
    assert [one["atMs"] for one in decisions] == sorted((one["atMs"] for one in decisions), reverse=True)
    await service.close()


@virtual
async def test_semantics_35_consumers_that_come_together_are_answered_with_one_change() -> None:
    brokers = Brokers(auto_scale_interval=NEVER_S)
    service = await brokers.start("a")
    await service.create_topic(TOPIC)
    for number in range(40):
        await subscribe(service, f"c{number}")
    await asyncio.sleep(2)
    assert await shape(brokers) == [64]
    assert counts(service) == (0, 0, 1)
    await service.close()


@virtual
async def test_semantics_35_a_burst_on_a_warm_topic_converges_without_ticks() -> None:
    brokers = Brokers(auto_scale_interval=NEVER_S)
    service = await brokers.start("a")
    await service.create_topic(TOPIC)
    await report(brokers, 8_000)
    for name in "abcd":
        await subscribe(service, name)
    await asyncio.sleep(2)
    assert await shape(brokers) == [2, 2]  # at once; then one more with each end of the cooldown
    await report(brokers, 4_000, 4_000)
    await asyncio.sleep(60)
    assert len(await shape(brokers)) == 3
    await report(brokers, 2_000, 2_000, 4_000)
    await asyncio.sleep(60)
    assert len(await shape(brokers)) == 4
    await asyncio.sleep(600)
    assert counts(service) == (3, 0, 0)
    await service.close()


@virtual
async def test_without_a_cooldown_a_burst_converges_at_once() -> None:
    policy = AutoScalePolicy(split_cooldown=0, split_floor_msg_rate_in=0)
    brokers = Brokers(auto_scale_interval=NEVER_S, auto_scale=policy)
    service = await brokers.start("a")
    await service.create_topic(TOPIC)
    for number in range(9):
        await subscribe(service, f"c{number}")
    await asyncio.sleep(2)
    assert len(await shape(brokers)) == 9
    assert counts(service) == (8, 0, 0)
    await service.close()


@virtual
async def test_members_of_checkpoint_groups_count() -> None:
    brokers = Brokers(auto_scale_interval=NEVER_S)
    service = await brokers.start("a")
    await service.create_topic(TOPIC)
    await report(brokers, 8_000)
    for name in "ab":
        kind = SubscriptionKind.CHECKPOINT
        await service.register_consumer(TOPIC, "g", name, instance=name, channel=Channel(), kind=kind)
    await asyncio.sleep(2)
    assert len(await shape(brokers)) == 2
    await service.close()


@virtual
async def test_load_is_judged_on_the_tick_and_a_topic_with_only_producers_finds_a_leader(brokers: Brokers) -> None:
    services = [await brokers.start(name) for name in "ab"]
    await services[0].create_topic(TOPIC)
    await report(brokers, 25_000)
    for service in services:
        service.scaling.loaded(TOPIC)
    assert [service.statistics().led for service in services] == [[], []]
    await asyncio.sleep(61)
    assert len(await shape(brokers)) == 2
    assert sorted(len(service.statistics().led) for service in services) == [0, 1]  # one leads it
    await report(brokers, 12_500, 12_500)
    await asyncio.sleep(121)
    assert len(await shape(brokers)) == 4
    for service in services:
        await service.close()


@virtual
async def test_a_topic_that_grew_cold_is_merged_and_then_left_alone(
    brokers: Brokers, service: ScalableTopicService
) -> None:
    await service.create_topic(TOPIC, segments=3)
    await report(brokers, 0, 0, 0)
    service.scaling.loaded(TOPIC)
    await asyncio.sleep(290)
    assert len(await shape(brokers)) == 3
    assert service.statistics().led  # it waits for the window, so it does not resign
    await asyncio.sleep(20)
    assert len(await shape(brokers)) == 2
    await report(brokers, 0, 0)
    await asyncio.sleep(370)
    assert len(await shape(brokers)) == 1
    await report(brokers, 0)
    await asyncio.sleep(300)
    assert service.statistics().led == []
    assert calls(brokers, "terminate_segment") == 4
    await service.close()


@virtual
async def test_idle_topics_cost_nothing(service: ScalableTopicService) -> None:
    for number in range(300):
        await service.create_topic(f"idle-{number}")
    await asyncio.sleep(1_000)
    assert not service.controllers.keys()
    await service.close()


@virtual
async def test_a_loaded_topic_that_is_not_to_scale_is_not_led_for_it() -> None:
    brokers = Brokers(auto_scale=AutoScalePolicy(enabled=False))
    service = await brokers.start("a")
    await service.create_topic(TOPIC)
    await report(brokers, 99_000)
    for _ in range(5):
        service.scaling.loaded(TOPIC)
        await asyncio.sleep(60)
    assert not service.controllers.keys()
    await service.scaling.set_policy(TOPIC, AutoScalePolicyOverride.of({"enabled": True}))
    await settle()
    assert len(await shape(brokers)) == 2  # a policy counts at once
    await service.close()


@virtual
async def test_semantics_33_a_failed_change_starts_no_cooldown_and_is_tried_again_on_the_tick(
    brokers: Brokers, service: ScalableTopicService
) -> None:
    await service.create_topic(TOPIC)
    await report(brokers, 25_000)
    brokers.host.failures["create_segment"] = TimeoutError("no disk today")
    service.scaling.loaded(TOPIC)
    await asyncio.sleep(200)  # three ticks, and one try each
    assert 3 <= calls(brokers, "create_segment") <= 6
    assert service.statistics().scaling[str(TOPIC)].counts.failures == 3
    assert await shape(brokers) == [4]
    for name in "abc":
        await subscribe(service, name)
    await asyncio.sleep(5)
    assert service.statistics().scaling[str(TOPIC)].counts.failures == 3  # new consumers do not make it hot
    failed = (await service.scaling.history(TOPIC))["decisions"][0]
    assert (failed["action"], failed["changed"], failed["times"]) == ("split", False, 3)
    assert "no disk today" in failed["failure"]
    brokers.host.failures.clear()
    await asyncio.sleep(60)
    assert await shape(brokers) == [2, 2]
    assert counts(service) == (1, 0, 0)
    await service.close()


@virtual
async def test_one_change_at_a_time_and_one_by_hand_comes_first() -> None:
    """While an operator splits, consumers come: what was decided is decided anew for the layout that there is then."""
    brokers = Brokers(auto_scale_interval=NEVER_S)
    service = await brokers.start("a")
    await service.create_topic(TOPIC)
    await report(brokers, 8_000)
    gate = asyncio.Event()
    brokers.host.before["terminate_segment"] = gate.wait
    by_hand = asyncio.ensure_future(service.split_segment(TOPIC, 0))
    await settle()
    for name in "ab":
        await service.ensure_topic(TOPIC)
        await asyncio.wait_for(controller_register(service, name), 10)
    await asyncio.sleep(5)
    gate.set()
    await by_hand
    await asyncio.sleep(5)
    assert await shape(brokers) == [2, 2]  # the manual split served both: a second one has no reason
    assert counts(service) == (0, 0, 0)
    await service.close()


@virtual
async def test_what_changes_while_it_reads_is_what_it_decides_on(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(auto_scale_interval=NEVER_S)
    service = await brokers.start("a")
    await service.create_topic(TOPIC)
    await report(brokers, 8_000)
    gate, reading, store = asyncio.Event(), asyncio.Event(), service._resources.metadata
    listed = store.list

    async def slow(*args: Any) -> Any:
        found = await listed(*args)
        reading.set()
        await gate.wait()
        return found

    monkeypatch.setattr(store, "list", slow)
    for name in "ab":
        await subscribe(service, name)
    await asyncio.wait_for(reading.wait(), 10)
    await service.split_segment(TOPIC, 0)
    gate.set()
    await asyncio.sleep(5)
    assert await shape(brokers) == [2, 2]
    assert counts(service) == (0, 0, 0)
    await service.close()


async def controller_register(service: ScalableTopicService, name: str) -> None:
    """As register_consumer; the subscription would wait for the operator's change."""
    controller = await service.controllers.lead(TOPIC)
    await controller.register_consumer("sub", SubscriptionKind.STREAM, name, name, Channel())


@virtual
async def test_semantics_33_cooldowns_survive_a_failover() -> None:
    brokers = Brokers(auto_scale_interval=NEVER_S)
    first, second = await brokers.start("a"), await brokers.start("b")
    await first.create_topic(TOPIC)
    await report(brokers, 8_000)
    for name in "abc":
        await subscribe(first, name)
    await asyncio.sleep(2)
    assert await shape(brokers) == [2, 2]
    await report(brokers, 4_000, 4_000)
    await first.close()
    await second.controllers.lead(TOPIC)
    await asyncio.sleep(10)
    assert len(await shape(brokers)) == 2
    status = second.statistics().scaling[str(TOPIC)]
    assert status.decision is not None
    assert status.decision["reason"] == "split_cooldown"
    remembered = (await second.scaling.history(TOPIC))["decisions"]
    assert {one["action"] for one in remembered} == {"nothing"}  # its own alone
    await asyncio.sleep(55)
    assert len(await shape(brokers)) == 3  # restored sessions count, and the new leader looked by itself
    await second.close()


@virtual
async def test_who_lost_the_lead_does_nothing_more() -> None:
    brokers = Brokers(auto_scale_interval=NEVER_S)
    service = await brokers.start("a")
    await service.create_topic(TOPIC)
    await report(brokers, 8_000)
    await subscribe(service, "a")
    controller = service.controllers.get(TOPIC)
    assert controller is not None
    await subscribe(service, "b")
    controller.lost()
    await asyncio.sleep(100)
    assert await shape(brokers) == [4]
    assert controller.scaling.idle
    await service.close()


@virtual
async def test_the_guards_are_counted() -> None:
    brokers = Brokers(auto_scale=AutoScalePolicy(max_segments=2, max_dag_depth=0))
    service = await brokers.start("a")
    await service.create_topic(TOPIC, segments=2)
    await report(brokers, 25_000, 5_000)
    service.scaling.loaded(TOPIC)
    await asyncio.sleep(121)
    found = service.statistics().scaling[str(TOPIC)].counts
    assert (found.suppressed_max_segments, found.suppressed_max_depth) == (2, 0)
    await report(brokers, 0, 0)
    await asyncio.sleep(421)
    assert service.statistics().led == []  # nothing will come of it, so it resigned; what it counted stays
    assert service.statistics().scaling[str(TOPIC)].counts.suppressed_max_depth == 1
    assert len(await shape(brokers)) == 2
    await service.close()


@virtual
async def test_pip_486_buckets_are_lowered_when_the_consumers_have_long_been_gone(
    brokers: Brokers, service: ScalableTopicService
) -> None:
    await service.create_topic(TOPIC)
    for number in range(20):
        await subscribe(service, f"c{number}")
    await asyncio.sleep(2)
    assert await shape(brokers) == [32]
    await report(brokers, 10)
    for number in range(19):
        await service.unregister_consumer(TOPIC, "sub", f"c{number}", instance=f"c{number}")
    await asyncio.sleep(280)
    assert await shape(brokers) == [32]
    await asyncio.sleep(200)
    assert await shape(brokers) == [8]
    await service.close()


def test_a_peak_is_known_when_all_of_the_window_is() -> None:
    peak = Peak()
    assert peak.within(0, 10) is None
    for now, value in ((0, 3), (2, 9), (4, 1)):
        peak.note(now, value)
    assert peak.within(9, 10) is None
    assert peak.within(10, 10) == 9
    assert peak.within(13.9, 10) == 9  # it held until 4
    assert peak.within(14, 10) == 1
    assert peak.within(100, 10) == 1


@virtual
async def test_a_rebucket_that_fails_halfway_goes_on_where_it_stopped(
    brokers: Brokers, service: ScalableTopicService
) -> None:
    await service.create_topic(TOPIC, segments=4)

    async def third() -> None:
        if calls(brokers, "inherit") == 2:
            raise TimeoutError("no answer")

    brokers.host.before["create_segment"] = third
    for number in range(14):
        await subscribe(service, f"c{number}")
    await asyncio.sleep(5)
    assert await shape(brokers) == [4, 4, 1, 1]
    brokers.host.before.clear()
    await asyncio.sleep(120)
    assert await shape(brokers) == [4, 4, 4, 4]
    assert counts(service) == (0, 0, 1)
    await service.close()


@virtual
async def test_when_its_leader_dies_a_loaded_topic_finds_another(brokers: Brokers) -> None:
    services = {name: await brokers.start(name) for name in "ab"}
    await services["a"].create_topic(TOPIC)
    await report(brokers, 25_000)
    services["a"].scaling.loaded(TOPIC)
    await asyncio.sleep(61)
    assert len(await shape(brokers)) == 2
    await brokers.kill("a")
    await report(brokers, 20_000, 5_000)
    services["b"].scaling.loaded(TOPIC)  # it serves the segments now
    await asyncio.sleep(90)
    assert len(await shape(brokers)) == 3
    assert counts(services["b"]) == (1, 0, 0)
    await services["b"].close()


def test_all_of_it_is_in_the_statistics_of_the_control_plane() -> None:
    """A topic that is led has its counters, from zero."""

    async def run(**config: Any) -> None:
        brokers = Brokers(**config)
        service = await brokers.start("a")
        await service.create_topic(TOPIC)
        await service.controllers.lead(TOPIC)
        assert counts(service) == (0, 0, 0)
        assert service.statistics().scaling[str(TOPIC)].policy == AutoScalePolicy()
        await service.close()

    asyncio.run(run())


@virtual
async def test_a_topic_is_judged_as_often_as_its_own_policy_says() -> None:
    brokers = Brokers(auto_scale_interval=NEVER_S)
    service = await brokers.start("a")
    await service.create_topic(TOPIC, auto_scale={"split_cooldown": 0.0})
    await report(brokers, 5_000)
    await service.scaling.set_policy(TOPIC, AutoScalePolicyOverride.of({"auto_scale_interval": "5s"}))
    await asyncio.sleep(1)
    assert await shape(brokers) == [4]
    await report(brokers, 20_000)
    await asyncio.sleep(6)
    assert len(await shape(brokers)) == 2
    await service.close()


@virtual
async def test_a_topic_is_judged_no_more_often_than_its_own_policy_says() -> None:
    brokers = Brokers(auto_scale_interval=10.0)
    service = await brokers.start("a")
    await service.create_topic(TOPIC)
    await report(brokers, 5_000)
    await service.scaling.set_policy(TOPIC, AutoScalePolicyOverride.of({"auto_scale_interval": 600}))
    await asyncio.sleep(1)
    await report(brokers, 20_000)
    await asyncio.sleep(500)
    assert await shape(brokers) == [4]
    await asyncio.sleep(130)
    assert len(await shape(brokers)) == 2
    await service.close()
