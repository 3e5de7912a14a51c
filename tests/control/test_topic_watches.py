"""A watch of a topic reports newer layouts and of its end (semantics 37)."""

from __future__ import annotations

import asyncio

import pytest

from engine.control.service import ScalableTopicService
from engine.errors import (
    NotFoundError,
)
from engine.model.reshape import split_segment
from tests.kit.control_fakes import Brokers, Channel, Listener, ids, reshape, settle, subscribe, virtual


@virtual
async def test_deleting_tells_consumers_and_watchers() -> None:
    service = await Brokers().start("a")
    await service.create_topic("orders")
    listener, channels = Listener(), [Channel(), Channel()]
    watch = await service.watch_topic("orders", listener)
    await subscribe(service, "one", channels[0])
    await service.delete_subscription("orders", "sub")
    assert isinstance(channels[0].closed[0], NotFoundError)
    await subscribe(service, "two", channels[1])
    await service.delete_topic("orders")
    assert isinstance(channels[1].closed[0], NotFoundError)
    await settle()
    assert listener.deleted == 1
    assert watch.view.layout.epoch == 0
    with pytest.raises(NotFoundError):
        await service.watch_topic("orders", listener)
    await service.close()


@virtual
async def test_semantics_37_a_watch_hears_of_newer_layouts_only_and_of_each_state_once(
    brokers: Brokers, service: ScalableTopicService
) -> None:
    listener = Listener()
    watch = await service.watch_topic("orders", listener, create=True)
    assert watch.view.layout.epoch == 0
    layout = watch.view.layout
    for now in range(3):  # written in one go: events collapse
        layout = split_segment(layout, layout.active[0].segment_id, now)
        await reshape(brokers, layout)
    await settle()
    assert listener.views[-1].layout == layout == watch.view.layout
    assert [v.layout.epoch for v in listener.views] == sorted({v.layout.epoch for v in listener.views})
    await reshape(brokers, layout)
    await settle()
    assert len([v for v in listener.views if v.layout.epoch == 3]) == 1
    watch.close()
    watch.close()
    await reshape(brokers, split_segment(layout, layout.active[0].segment_id, 9))
    await settle()
    assert listener.views[-1].layout.epoch == 3
    await service.close()


@virtual
async def test_a_topic_deleted_and_created_anew_is_not_taken_for_the_old_one(service: ScalableTopicService) -> None:
    old, new = Listener(), Listener()
    await service.watch_topic("orders", old, create=True)
    await asyncio.sleep(1)
    await service.delete_topic("orders")
    await service.create_topic("orders", segments=3)
    watch = await service.watch_topic("orders", new)
    await settle()
    assert (old.deleted, old.views) == (1, [])
    assert (new.deleted, new.views) == (0, [])
    assert len(watch.view.layout.active) == 3
    await service.close()


@virtual
async def test_a_new_layout_reaches_the_consumers(brokers: Brokers, service: ScalableTopicService) -> None:
    layout = (await service.create_topic("orders")).layout
    channel = Channel()
    await subscribe(service, "one", channel)
    await reshape(brokers, split_segment(layout, 0, 1))
    await settle()
    assert (channel.pushed[-1].layout_epoch, ids(channel.pushed[-1])) == (1, [1, 2])
    await service.close()


@virtual
async def test_segment_spec_follows_the_layout(brokers: Brokers, service: ScalableTopicService) -> None:
    layout = (await service.create_topic("orders", entry_buckets=2)).layout
    await service.watch_topic("orders", Listener())
    spec = await service.segment_spec("orders", 0)
    assert (spec.name.descriptor, spec.durability, spec.bucket_ends) == ("0000-ffff-0", "fsync", (32767, 65535))
    await reshape(brokers, split_segment(layout, 0, 1))
    assert (await service.segment_spec("orders", 2)).name.descriptor == "8000-ffff-2"
    with pytest.raises(NotFoundError):
        await service.segment_spec("orders", 3)
    await service.close()
