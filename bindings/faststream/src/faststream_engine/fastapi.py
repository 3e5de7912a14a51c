"""A FastAPI router that is a broker's, too: handlers beside routes, with FastAPI's own Depends."""

from __future__ import annotations

from typing import Any, cast

from fastapi.datastructures import Default
from faststream import ContextRepo
from faststream._internal.fastapi.router import StreamRouter

from faststream_engine.broker import EngineBroker
from faststream_engine.publisher import EnginePublisher
from faststream_engine.subscriber import EngineSubscriber

__all__ = ("EngineRouter",)


_MODEL: dict[str, Any] = {
    "dependencies": (),
    "response_model": Default(None),
    "response_model_include": None,
    "response_model_exclude": None,
    "response_model_by_alias": True,
    "response_model_exclude_unset": False,
    "response_model_exclude_defaults": False,
    "response_model_exclude_none": False,
}  # FastAPI's defaults


class EngineRouter(StreamRouter[Any]):
    """`app.include_router(router)`: the broker starts and stops with the application.

    The arguments are those of EngineBroker and of fastapi.APIRouter; `schema_url`: where AsyncAPI is served.
    """

    broker_class = EngineBroker
    broker: EngineBroker

    def __init__(
        self,
        url: str | None = None,
        *,
        schema_url: str | None = "/asyncapi",
        context: ContextRepo | None = None,
        **options: Any,
    ) -> None:
        super().__init__(url=url, schema_url=schema_url, context=context, **options)

    def subscriber(self, topic: str, **options: Any) -> EngineSubscriber:  # type: ignore[override]
        """As EngineBroker.subscriber, with FastAPI's `dependencies` and `response_model` options."""
        return cast("EngineSubscriber", super().subscriber(topic, **(_MODEL | options)))

    def publisher(self, topic: str, **options: Any) -> EnginePublisher:  # type: ignore[override]
        """As EngineBroker.publisher."""
        return self.broker.publisher(topic, **options)
