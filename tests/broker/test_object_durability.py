"""`durability="object"` is refused by what has no object store, with what it would take."""

from __future__ import annotations

import pytest

import engine
from engine.broker.settings.config import BrokerConfig
from engine.errors import InvalidConfigurationError, UnsupportedError

SENTENCE = r"durability must be fsync or interval or os on this broker, got 'object': it has no object store"


def test_a_broker_is_not_configured_so() -> None:
    with pytest.raises(InvalidConfigurationError, match=r"durability must be .* without `objects`, got 'object'"):
        BrokerConfig(durability="object")


async def test_no_topic_and_no_namespace_of_a_broker_without_a_store_has_it(tmp_path) -> None:
    async with engine.open_async(tmp_path) as client:
        with pytest.raises(UnsupportedError, match=SENTENCE):
            await client.admin.create_topic("orders", durability="object")
        with pytest.raises(UnsupportedError, match=SENTENCE):
            await client.admin.set_namespace_policies("public/default", {"durability": "object"})
        assert await client.admin.list_topics("public/default") == []
