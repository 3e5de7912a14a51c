"""Auto-scale policies of topics, namespaces and brokers, through the control plane (semantics 34)."""

from __future__ import annotations

import asyncio

import pytest

from engine.control.auto_scaler import AutoScaling
from engine.control.service import ScalableTopicService
from engine.errors import NotOwnerError
from engine.metadata import keys
from engine.model.autoscale import AutoScalePolicy, AutoScalePolicyOverride
from engine.model.names import TopicName
from engine.model.policies import NamespacePolicies
from tests.control.scaling_bench import report, shape
from tests.kit.control_fakes import TOPIC, Brokers, virtual


@virtual
async def test_semantics_34_policies_resolve_and_a_contradiction_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    brokers = Brokers(auto_scale=AutoScalePolicy(max_segments=8))
    service, of = await brokers.start("a"), AutoScalePolicyOverride.of
    scaling: AutoScaling = service.scaling
    await service.create_topic(TOPIC)
    await scaling.set_namespace_policy("public/default", of({"min_segments": 3, "merge_window": 7}))
    await scaling.set_policy(TOPIC, of({"merge_window": 9}))
    policy = (await scaling.status(TOPIC)).policy
    assert (policy.max_segments, policy.min_segments, policy.merge_window) == (8, 3, 9)
    await scaling.set_policy(TOPIC, of({"max_segments": 2}))
    for _ in range(3):
        await asyncio.sleep(60)
    status = await scaling.status(TOPIC)
    assert not status.policy.enabled
    assert status.decision is not None
    assert status.decision["reason"] == "invalid_policy"
    warnings = [r.getMessage() for r in caplog.records if "contradictory" in r.getMessage()]
    assert len(warnings) == 1
    assert "min_segments is 3, above max_segments, 2" in warnings[0]
    await scaling.set_policy(TOPIC, None)
    assert await scaling.get_policy(TOPIC) is None
    await scaling.set_namespace_policy("public/default", None)
    assert await scaling.get_namespace_policy("public/default") is None
    assert (await scaling.status(TOPIC)).policy == AutoScalePolicy(max_segments=8)
    await service.close()


@virtual
async def test_a_namespace_s_other_policies_and_this_one_leave_each_other_alone(brokers: Brokers) -> None:
    service, override = await brokers.start("a"), AutoScalePolicyOverride.of({"enabled": False})
    await service.scaling.set_namespace_policy("t/n", override)
    assert await service.find_namespace_policies("t/n") is None
    policies = NamespacePolicies(retention_time_s=5)
    await service.set_namespace_policies("t/n", policies)
    assert await service.scaling.get_namespace_policy("t/n") == override
    await service.set_namespace_policies("t/n", None)
    assert await service.scaling.get_namespace_policy("t/n") == override
    await service.set_namespace_policies("t/n", policies)
    await service.scaling.set_namespace_policy("t/n", None)
    assert await service.find_namespace_policies("t/n") == policies
    await service.close()


@virtual
async def test_only_the_leader_sets_a_topic_s_policy(brokers: Brokers) -> None:
    first, second = await brokers.start("a"), await brokers.start("b")
    await first.create_topic(TOPIC)
    await first.controllers.lead(TOPIC)
    with pytest.raises(NotOwnerError):
        await second.scaling.set_policy(TOPIC, AutoScalePolicyOverride.of({"enabled": False}))
    status = await second.scaling.status(TOPIC)
    assert (status.leading, status.decision) == (False, None)
    for service in (first, second):
        await service.close()


@virtual
async def test_one_topic_that_cannot_be_looked_at_does_not_end_the_tick(
    caplog: pytest.LogCaptureFixture, brokers: Brokers, service: ScalableTopicService
) -> None:
    broken = TopicName.parse("broken")
    for topic in (broken, TOPIC):
        await service.create_topic(topic)
    await report(brokers, 25_000)
    await brokers.store.put(keys.controller(broken), b"\xff")
    for _ in range(2):
        service.scaling.loaded(broken)
        await asyncio.sleep(61)
    service.scaling.loaded(TOPIC)
    await asyncio.sleep(61)
    assert len(await shape(brokers)) == 2
    assert len([record for record in caplog.records if "the search for its leader failed" in record.message]) == 2
    caplog.clear()
    await service.close()
