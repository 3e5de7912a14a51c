"""`TopicSchemas`: the schemas with which a topic's messages may have been written. Any broker may serve it."""

from __future__ import annotations

import asyncio

from engine.control.base.topic_records import ScalableTopicResources
from engine.errors import EngineError, NotFoundError
from engine.metadata import keys
from engine.metadata.store import ABSENT, ConflictError, Expected, OutcomeUnknownError
from engine.model.names import TopicName
from engine.model.schema import SchemaHistory, TopicSchema

_ATTEMPTS_MAX = 10  # several clients may declare new versions at the same time


class TopicSchemas:
    """A history changes by compare-and-set, so concurrent declarations are checked against each other."""

    def __init__(self, resources: ScalableTopicResources) -> None:
        self._resources = resources

    async def history(self, topic: TopicName) -> SchemaHistory:
        """The schemas declared so far. Raises NotFoundError when the topic does not exist."""
        return (await self._load(topic))[0]

    async def declare(self, topic: TopicName, schema: TopicSchema, *, producer: bool) -> SchemaHistory:
        """Check `schema` against the history, and add it durably if it is new and from a producer, or the first.

        Returns the history. Raises NotFoundError, InvalidArgumentError for a new one that is no schema or exceeds a
        limit, SchemaError when it is incompatible with the history.
        """
        for _ in range(_ATTEMPTS_MAX):
            known, version = await self._load(topic)
            if schema.definition and schema not in known.versions:
                schema.check()
            for _ in known.comparisons(schema, producer=producer):
                await asyncio.sleep(0)  # a check takes milliseconds at most; let the loop serve other work in between
            wanted = known.extended(schema, producer=producer)
            if wanted != known and (limits := await self._resources.limits_of(topic.tenant)) is not None:
                from engine.control.base.quotas import check_schemas

                check_schemas(limits, topic, len(wanted.versions))
            if wanted == known or await self._save(topic, wanted, version):
                return wanted
        raise EngineError(f"the schema of {topic} keeps changing; try again")

    async def _load(self, topic: TopicName) -> tuple[SchemaHistory, Expected | int]:
        found = await self._resources.load_topic(topic)
        if found is None or found.layout.deleting:
            raise NotFoundError(f"{topic} does not exist")
        born = found.layout.created_at_ms
        record = await self._resources.metadata.newest.get(keys.schema(topic))
        if record is None:
            return SchemaHistory(born), ABSENT
        history = SchemaHistory.from_json(record.value)
        # A history of another creation time belongs to an earlier topic of this name.
        return history if history.topic_created_ms == born else SchemaHistory(born), record.stat.version

    async def _save(self, topic: TopicName, history: SchemaHistory, version: Expected | int) -> bool:
        """Whether it was written; False when another writer was faster, or the outcome is unknown."""
        try:
            await self._resources.metadata.put(keys.schema(topic), history.to_json(), version)
        except (ConflictError, OutcomeUnknownError):
            return False  # the next reading tells
        return True
