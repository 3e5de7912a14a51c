"""What a topic is made of when its maker does not say: the namespace's policies, then the broker's configuration."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.client.admin.admin import AsyncAdmin
from engine.sync.admin import Admin

CONFIG = {"segments": 3, "entry_buckets": 6, "durability": "interval", "key_hash": "murmur3"}
OUT_OF_THE_BOX = {"segments": 1, "entry_buckets": 4, "durability": "fsync", "key_hash": "xxh64"}


def made(metadata: dict[str, Any]) -> dict[str, Any]:
    """The four facts of a topic's metadata."""
    return {
        "segments": len(metadata["segments"]),
        "entry_buckets": sum(len(s["bucketBoundaries"]) for s in metadata["segments"].values()),
        "durability": metadata["durability"],
        "key_hash": metadata["keyHash"],
    }


@pytest.mark.parametrize("config", [CONFIG, {}], ids=["configured", "out-of-the-box"])
@pytest.mark.parametrize("way", ["in-process", "over-http"])
async def test_a_topic_is_as_the_broker_says(tmp_path: Path, config: dict[str, Any], way: str):
    async with (
        engine.open_async(tmp_path, listen="127.0.0.1:0", admin="127.0.0.1:0", config=config) as broker,
        engine.AsyncClient(broker.service_url) as client,
    ):
        admin = client.admin if way == "over-http" else broker.admin
        await admin.create_topic("plain")
        assert made(await admin.get_metadata("plain")) == {**OUT_OF_THE_BOX, **config}
        await admin.create_topic("two", segments=2, durability="os")
        said = {"segments": 2, "durability": "os"}
        assert made(await admin.get_metadata("two")) == {**OUT_OF_THE_BOX, **config, **said}


async def test_a_topics_durability_is_as_its_namespace_says(tmp_path: Path):
    async with engine.open_async(tmp_path, config=CONFIG) as broker:
        await broker.admin.set_namespace_policies("public/fast", {"durability": "os"})
        await broker.admin.create_topic("topic://public/fast/t")
        assert made(await broker.admin.get_metadata("topic://public/fast/t")) == {**CONFIG, "durability": "os"}
        await broker.admin.create_topic("topic://public/fast/sure", durability="fsync")
        assert (await broker.admin.get_metadata("topic://public/fast/sure"))["durability"] == "fsync"


async def test_where_topics_are_disabled_none_is_made_in_any_way_and_old_ones_are_served(tmp_path: Path):
    async with engine.open_async(tmp_path) as broker:
        await broker.admin.create_topic("old")
    async with engine.open_async(tmp_path, config={"scalable_topic_enabled": False}) as broker:
        await broker.admin.set_namespace_policies("public/default", {"auto_create_topics": True})
        for make in (broker.admin.create_topic, broker.producer, broker.checkpoint_consumer):
            with pytest.raises(engine.UnsupportedError, match=r"new is not created: .* \(scalable_topic_enabled\)"):
                await make("new")
        async with await broker.producer("old") as producer:
            await producer.send(b"x")


async def test_a_topic_is_made_with_its_auto_scale_policy(tmp_path: Path):
    async with engine.open_async(tmp_path) as broker:
        await broker.admin.create_topic("t", auto_scale={"max_segments": 4, "merge_window": "5m"})
        assert await broker.admin.get_auto_scale_policy("t") == {"max_segments": 4, "merge_window": 300.0}


def test_a_blocking_admin_is_no_other(tmp_path: Path):
    with engine.open(tmp_path, config=CONFIG) as broker:
        broker.admin.create_topic("t")
        assert made(broker.admin.get_metadata("t")) == CONFIG
    for kind in (Admin, AsyncAdmin):
        parameters = list(inspect.signature(kind.create_topic).parameters.values())[2:]
        assert {p.default for p in parameters} == {None}
