"""`EngineRouter`: handlers that a broker includes, declared before there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fast_depends.dependencies import Dependant
from faststream import AckPolicy
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream._internal.types import BrokerMiddleware, CustomCallable

from faststream_engine.config import EngineBrokerConfig
from faststream_engine.registrator import EngineRegistrator


class EnginePublisher(ArgsContainer):
    """The arguments of `publisher`, for a route."""

    def __init__(self, topic: str, **options: Any) -> None:
        super().__init__(topic, **options)


class EngineRoute(SubscriberRoute):
    """A handler with the arguments of `subscriber`, and its publishers, for a router's `handlers`."""

    def __init__(
        self, call: Callable[..., Any], topic: str, *, publishers: Iterable[EnginePublisher] = (), **options: Any
    ) -> None:
        super().__init__(call, topic, publishers=publishers, **options)


class EngineRouter(EngineRegistrator, BrokerRouter[Any, EngineBrokerConfig]):
    """Handlers whose topics begin with `prefix`."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[EngineRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[EngineRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        config = EngineBrokerConfig(
            prefix=prefix,
            ack_policy=ack_policy,
            broker_dependencies=dependencies,
            broker_middlewares=middlewares,
            broker_parser=parser,
            broker_decoder=decoder,
            include_in_schema=include_in_schema,
        )
        super().__init__(handlers=handlers, config=config, routers=routers)
