"""The numbers of a topic when not all of them can be had."""

from __future__ import annotations

from engine.control.base.ports import HostedSegmentStatistics, SegmentSpec
from engine.control.service import ScalableTopicService
from engine.errors import TimeoutError
from tests.kit.control_fakes import Brokers, virtual


@virtual
async def test_a_segment_whose_owner_does_not_answer_is_marked_and_the_others_have_their_numbers(
    monkeypatch, brokers: Brokers, service: ScalableTopicService
) -> None:
    await service.create_topic("orders", segments=2)
    await service.create_subscription("orders", "sub")
    real = brokers.host.statistics

    async def statistics(spec: SegmentSpec) -> HostedSegmentStatistics:
        if spec.name.segment_id == 1:
            raise TimeoutError("no owner answered")
        return await real(spec)

    monkeypatch.setattr(brokers.host, "statistics", statistics)
    stats = await service.get_stats("orders")
    assert [s["unavailable"] for s in stats["segments"].values()] == [None, "no owner answered"]
    assert stats["msgRateIn"] == 2.0
    assert stats["segments"]["1"]["nextOffset"] == 0
    assert stats["subscriptions"]["sub"]["segmentBacklog"] == {"0": 0}
    await service.close()
