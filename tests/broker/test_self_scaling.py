"""A topic that finds its own size, from the messages on the wire to the layout: owners report, its leader decides."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import engine
from engine.testing.cluster import DEFAULT_CONFIG, SimCluster, simulate

CONFIG = dataclasses.replace(DEFAULT_CONFIG, segments=1)
POLICY = {
    "split_msg_rate_in_threshold": 40,
    "merge_msg_rate_in_threshold": 10,
    "split_cooldown": 30,
    "merge_cooldown": 30,
    "merge_window": 60,
}
TICK_S = CONFIG.scalable_topic_auto_scale_interval
REPORT_S = 2 * CONFIG.scalable_topic_load_report_interval  # until what is new is reported


async def send(producer: engine.AsyncProducer, per_s: int) -> None:
    number = 0
    while True:
        producer.send_nowait(b"x", key=str(number := number + 1))
        await asyncio.sleep(1 / per_s)


def test_a_hot_topic_splits_within_a_tick_and_merges_when_it_is_idle():
    seen: dict[str, Any] = {}

    async def body(cluster: SimCluster) -> None:
        admin = (await cluster.start()).broker.admin
        await admin.create_topic("hot")
        await admin.set_auto_scale_policy("hot", POLICY)
        sending = asyncio.create_task(send(await cluster.client("c").producer("hot"), 60))
        await asyncio.sleep(REPORT_S + TICK_S + 1)
        seen["split"] = await admin.get_stats("hot")
        await asyncio.sleep(REPORT_S + 60)
        seen["later"] = await admin.get_stats("hot")
        sending.cancel()
        await asyncio.sleep(60 + POLICY["merge_window"] + 2 * TICK_S)
        seen["idle"] = await admin.get_stats("hot")

    simulate(7, body, config=CONFIG)
    split, later, idle = seen["split"], seen["later"], seen["idle"]
    assert split["activeSegmentCount"] == later["activeSegmentCount"] == 2
    change = split["autoScale"]["lastChange"]
    assert (change["action"], change["segments"], change["reason"]) == ("split", [0], "load")
    rates = [s["load"]["msgRateIn"] for s in later["segments"].values() if s["state"] == "ACTIVE"]
    assert all(0 < rate < POLICY["split_msg_rate_in_threshold"] for rate in rates), rates
    assert idle["activeSegmentCount"] == 1
    assert idle["autoScale"]["lastChange"]["reason"] == "cold"
    assert (idle["autoScale"]["counts"]["splits"], idle["autoScale"]["counts"]["merges"]) == (1, 1)


def test_a_topic_that_is_not_to_scale_does_not():
    seen: dict[str, Any] = {}

    async def body(cluster: SimCluster) -> None:
        admin = (await cluster.start()).broker.admin
        await admin.create_topic("hot")
        await admin.set_auto_scale_policy("hot", {**POLICY, "enabled": False})
        sending = asyncio.create_task(send(await cluster.client("c").producer("hot"), 60))
        await asyncio.sleep(200)
        seen.update(await admin.get_stats("hot"))
        sending.cancel()

    simulate(8, body, config=CONFIG)
    assert seen["epoch"] == 0
    assert seen["segments"]["0"]["load"]["msgRateIn"] > 40
    assert seen["autoScale"]["policy"]["enabled"] is False
