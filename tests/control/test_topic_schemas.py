"""A topic's schemas are recorded once, checked against each other whichever is faster, and go with the topic."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from engine.control.base.topic_records import ScalableTopicResources
from engine.control.schemas import TopicSchemas
from engine.control.shape.erasure import erase_children
from engine.errors import InvalidArgumentError, NotFoundError, SchemaError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import ABSENT
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName
from engine.model.schema import SchemaHistory, SchemaType, TopicSchema, canonical
from engine.testing.clock import FakeClock
from engine.testing.metadata import FaultyMetadataStore

TOPIC = TopicName.parse("orders")


def record(*names: str) -> TopicSchema:
    fields = [{"name": name, "type": "long", "default": 0} for name in names]
    return TopicSchema(SchemaType.JSON, canonical({"type": "record", "name": "value", "fields": fields}))


@pytest.fixture
async def resources() -> AsyncIterator[ScalableTopicResources]:
    store = MemoryMetadataStore(FakeClock())
    resources = ScalableTopicResources(store)
    await create(resources, 1)
    yield resources
    await store.close()


async def create(resources: ScalableTopicResources, now_ms: int) -> int:
    layout = SegmentLayout.create(1, now_ms=now_ms, buckets_total=4)
    return (await resources.save_topic(TOPIC, layout, ABSENT)).version


async def test_what_one_broker_records_another_checks(resources: ScalableTopicResources) -> None:
    await TopicSchemas(resources).declare(TOPIC, record("a"), producer=True)
    history = await TopicSchemas(resources).history(TOPIC)
    assert history.versions == (record("a"),)
    with pytest.raises(SchemaError):
        await TopicSchemas(resources).declare(TOPIC, TopicSchema(SchemaType.STRING), producer=False)


async def test_of_two_who_declare_at_once_each_is_checked(resources: ScalableTopicResources) -> None:
    schemas = TopicSchemas(resources)
    wanted = [record("a"), TopicSchema(SchemaType.STRING)]
    outcomes = await asyncio.gather(
        *(schemas.declare(TOPIC, schema, producer=True) for schema in wanted), return_exceptions=True
    )
    assert sum(isinstance(outcome, SchemaError) for outcome in outcomes) == 1
    assert len((await schemas.history(TOPIC)).versions) == 1


async def test_all_of_many_versions_declared_at_once_are_there(resources: ScalableTopicResources) -> None:
    schemas = TopicSchemas(resources)
    wanted = [record("a", f"b{i}") for i in range(5)]
    await asyncio.gather(*(schemas.declare(TOPIC, schema, producer=True) for schema in wanted))
    assert set((await schemas.history(TOPIC)).versions) == set(wanted)


async def test_an_unknown_outcome_is_looked_at_again() -> None:
    store = FaultyMetadataStore(MemoryMetadataStore(FakeClock()), random.Random(1))
    resources = ScalableTopicResources(store)
    await create(resources, 1)
    store.unknown_rate = 0.5
    for i in range(8):
        await TopicSchemas(resources).declare(TOPIC, record("a", f"b{i}"), producer=True)
    store.unknown_rate = 0.0
    assert len((await TopicSchemas(resources).history(TOPIC)).versions) == 8
    await store.close()


async def test_there_is_no_schema_without_its_topic(resources: ScalableTopicResources) -> None:
    with pytest.raises(NotFoundError):
        await TopicSchemas(resources).declare(TopicName.parse("nothing"), record("a"), producer=True)


async def test_it_goes_with_the_topic(resources: ScalableTopicResources) -> None:
    await TopicSchemas(resources).declare(TOPIC, record("a"), producer=True)
    term = await resources.elect(TOPIC, "engine://leader", await resources.metadata.session())
    await erase_children(resources, TOPIC, term)
    assert await resources.metadata.get(keys.schema(TOPIC)) is None


async def test_what_an_earlier_topic_of_the_name_left_means_nothing(resources: ScalableTopicResources) -> None:
    """A declaration may be written just behind the deletion of what it was meant for."""
    await TopicSchemas(resources).declare(TOPIC, record("a"), producer=True)
    found = await resources.load_topic(TOPIC)
    assert found is not None
    await resources.delete_topic(TOPIC, found.version)
    await create(resources, 2)
    string = TopicSchema(SchemaType.STRING)
    assert (await TopicSchemas(resources).declare(TOPIC, string, producer=True)).versions == (string,)
    assert (await TopicSchemas(resources).history(TOPIC)).versions == (string,)


async def test_others_have_their_turn_between_comparisons(resources: ScalableTopicResources) -> None:
    schemas = TopicSchemas(resources)
    for i in range(8):
        await schemas.declare(TOPIC, record("a", f"b{i}"), producer=True)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while not done.done():
            turns += 1
            await asyncio.sleep(0)

    done = asyncio.ensure_future(schemas.declare(TOPIC, record("a", "more"), producer=True))
    await others()
    assert len((await done).versions) == 9
    assert turns > 8


async def test_a_definition_is_checked_unless_it_is_recorded_already(resources: ScalableTopicResources) -> None:
    deep = TopicSchema(SchemaType.JSON, '{"type":"array","items":' * 100 + '"int"' + "}" * 100, checked=False)
    schemas = TopicSchemas(resources)
    with pytest.raises(InvalidArgumentError, match="inside each other"):
        await schemas.declare(TOPIC, deep, producer=True)
    found = await resources.load_topic(TOPIC)
    assert found is not None
    recorded = SchemaHistory(found.layout.created_at_ms, (deep,))
    await resources.metadata.put(keys.schema(TOPIC), recorded.to_json(), ABSENT)
    for producer in (True, False):
        assert (await schemas.declare(TOPIC, deep, producer=producer)).versions == (deep,)
