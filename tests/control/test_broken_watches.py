"""A watch of the metadata store breaks off: what happened until it runs again is heard of then (semantics 37)."""

from __future__ import annotations

import asyncio

import pytest

from engine.control.service import ScalableTopicService
from engine.errors import NotOwnerError
from engine.model.names import TopicName
from tests.kit.control_fakes import Brokers, Channel, Listener, settle, subscribe, virtual

TOPIC = TopicName.parse("orders")


async def two() -> tuple[Brokers, ScalableTopicService, ScalableTopicService]:
    brokers = Brokers()
    brokers.scripted = True
    return brokers, await brokers.start("a"), await brokers.start("b")


@virtual
async def test_a_topic_that_was_deleted_meanwhile_is_known_to_be() -> None:
    brokers, a, b = await two()
    listener = Listener()
    await b.watch_topic("orders", listener, create=True)
    await settle()
    brokers.stores["b"].break_watches()
    await a.delete_topic("orders")
    await asyncio.sleep(5)
    assert listener.deleted == 1
    await a.close()
    await b.close()


@virtual
async def test_a_leader_that_has_gone_meanwhile_is_known_to_have() -> None:
    brokers, a, b = await two()
    listener = Listener()
    await a.create_topic("orders")
    await subscribe(a, "one", Channel())
    watch = await b.watch_topic("orders", listener)
    assert watch.view.controller_url == "engine://a"
    await settle()
    brokers.stores["b"].break_watches()
    await a.close()
    await asyncio.sleep(5)
    assert watch.view.controller_url == "engine://b"
    assert [view.controller_url for view in listener.views] == ["engine://b"]
    await b.close()


@virtual
async def test_who_follows_a_topic_stands_for_election_when_its_leader_has_gone_meanwhile() -> None:
    brokers, a, b = await two()
    await a.create_topic("orders")
    await subscribe(a, "one", Channel())
    with pytest.raises(NotOwnerError):
        await b.create_subscription("orders", "other")
    controller = b.controllers.get(TOPIC)
    await settle()
    brokers.stores["b"].break_watches()
    await a.close()
    await asyncio.sleep(5)
    assert controller.leadership.leading
    await b.close()


@virtual
async def test_what_did_not_change_is_not_told_again() -> None:
    brokers, a, b = await two()
    listener = Listener()
    watch = await b.watch_topic("orders", listener, create=True)
    await settle()
    for _ in range(3):
        brokers.stores["b"].break_watches()
        await asyncio.sleep(5)
    assert (listener.views, listener.deleted, watch.view.layout.epoch) == ([], 0, 0)
    await a.close()
    await b.close()
