"""`durability="object"` is refused at every door until segments can be on objects (docs/design/objects.md)."""

from __future__ import annotations

import pytest

import engine
from engine.broker.settings.config import BrokerConfig
from engine.errors import InvalidArgumentError, InvalidConfigurationError
from engine.model.policies import NamespacePolicies
from engine.storage.disk.config import check_mode

SENTENCE = r"durability must be .*fsync.*interval.*os, got 'object'"


@pytest.mark.parametrize("refused", [
    lambda: BrokerConfig(durability="object"),
    lambda: NamespacePolicies(durability="object"),
    lambda: check_mode("object"),
], ids=["a broker", "a namespace", "a segment"])  # fmt: skip
def test_object_is_refused_with_a_sentence(refused):
    with pytest.raises((InvalidArgumentError, InvalidConfigurationError), match=SENTENCE):
        refused()


async def test_a_topic_of_objects_is_refused_with_a_sentence(tmp_path):
    async with engine.open_async(tmp_path) as client:
        with pytest.raises(InvalidArgumentError, match=SENTENCE):
            await client.admin.create_topic("orders", durability="object")
