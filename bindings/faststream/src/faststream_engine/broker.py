"""`EngineBroker`: a FastStream broker on a served or an embedded Engine."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Unpack

from fast_depends import Provider, dependency_provider
from fast_depends.dependencies import Dependant
from faststream import AckPolicy, ContextRepo
from faststream._internal.basic_types import LoggerProto
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.di import FastDependsConfig
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.response.publish_type import PublishType
from faststream.security import BaseSecurity
from faststream.specification.schema import BrokerSpec
from faststream.specification.schema.extra import Tag, TagDict

import engine
from faststream_engine.config import EngineBrokerConfig
from faststream_engine.logging import make_engine_logger_state
from faststream_engine.producer import EngineProducer
from faststream_engine.registrator import EngineRegistrator
from faststream_engine.response import BatchOptions, EnginePublishCommand, PublishOptions, RequestOptions

EMBEDDED_URL = "engine://embedded"


class EngineBroker(EngineRegistrator, BrokerUsecase[Any, engine.AsyncClient, EngineBrokerConfig]):
    """A broker by its `url`, `engine://host:port`, or embedded, in the directory `data` (":memory:" keeps nothing).

    Without both, the environment's ENGINE_URL counts. `token`, `tls`: as of engine.AsyncClient. `listen`, `admin`,
    `config`: as of engine.open_async, for an embedded engine that other programs are clients of. `graceful_timeout`:
    seconds that handlers have to end when the broker stops. The rest is FastStream's. Raises SetupError.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        data: str | PathLike[str] | None = None,
        token: str | Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
        listen: str | None = None,
        admin: str | None = None,
        config: Any = None,
        graceful_timeout: float | None = 15.0,
        decoder: CustomCallable | None = None,
        parser: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[EngineRegistrator] = (),
        ack_policy: AckPolicy = EMPTY,
        id_generator: IdGenerator = gen_cor_id,
        specification_url: str | None = None,
        protocol: str = "engine",
        protocol_version: str = "1",
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        security: BaseSecurity | None = None,
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: Any = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
    ) -> None:
        if url is not None and data is not None:
            raise SetupError("url must be left out where data names the directory of an embedded engine, got both")
        served = {"token": token, "tls": tls}
        embedded = {"listen": listen, "admin": admin, "config": config}
        _check_left_out(
            *((served, "an engine that is served") if data is not None else (embedded, "an embedded engine"))
        )
        super().__init__(
            routers=routers,
            config=EngineBrokerConfig(
                producer=EngineProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=make_engine_logger_state(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                url=[specification_url or _without_secrets(url, data is not None)],
                protocol=protocol,
                protocol_version=protocol_version,
                description=description,
                tags=tags,
                security=security,
            ),
            open_with={"data": data, **embedded} if data is not None else {"url": url, **served},
        )

    @property
    def client(self) -> engine.AsyncClient:
        """The client that it publishes and subscribes with. Raises IncorrectState before it is connected."""
        return self.config.broker_config.client

    # -- life ------------------------------------------------------------------------------------------------

    async def _connect(self) -> engine.AsyncClient:
        options = dict(self._connection_kwargs["open_with"])
        if "data" in options:
            client: engine.AsyncClient = await engine.open_async(options.pop("data"), **options)
        else:
            client = engine.AsyncClient(options.pop("url"), **options)
            try:
                await client.connect()
            except BaseException:
                await client.close()
                raise
        self.config.broker_config.connect(client)
        return client

    async def start(self) -> None:
        """Connect, and start every subscriber. Raises EngineError where there is no broker."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the subscribers, flush what is being published, and close the client."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            client, self._connection = self._connection, None
            if client is not None:
                try:
                    await self.config.broker_config.disconnect()
                finally:
                    await client.close()

    async def ping(self, timeout: float | None = None) -> bool:
        """Whether the broker answers within `timeout` seconds (5 by default)."""
        if self._connection is None:
            return False
        try:
            async with asyncio.timeout(5.0 if timeout is None else timeout):
                await self._connection.connect()
        except (engine.EngineError, TimeoutError):
            return False
        return True

    # -- publishing ------------------------------------------------------------------------------------------

    async def publish(
        self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]
    ) -> engine.MessageId | None:
        """Publish a message, and return its id: when it is durable, or in a `transaction`, with whose commit it is.

        `message`: bytes, text, what is JSON, a Pydantic model or a dataclass, or an EngineResponse. Raises EngineError.
        """
        cmd = self._command(message, topic=topic, _publish_type=PublishType.PUBLISH, **options)
        return await self._basic_publish(cmd, producer=self.config.producer)  # type: ignore[no-any-return]

    async def publish_batch(  # type: ignore[override]
        self, *messages: Any, topic: str = "", **options: Unpack[BatchOptions]
    ) -> None:
        """Publish several messages, each as publish() does; durable when this returns.

        An EngineResponse among them has a key, headers and a delay of its own. They are no transaction: without one, a
        failure may leave some of them published. Raises EngineError.
        """
        cmd = self._command(*(messages or (None,)), topic=topic, _publish_type=PublishType.PUBLISH, **options)
        await self._basic_publish_batch(cmd, producer=self.config.producer)

    async def request(  # type: ignore[override]
        self, message: Any = None, topic: str = "", **options: Unpack[RequestOptions]
    ) -> Any:
        """Publish a message, and return what its handler answers, as an EngineMessage.

        It is a request of `engine`'s own, `producer.request()`. Raises TimeoutError when no answer came within
        `timeout` seconds; EngineError.
        """
        cmd = self._command(message, topic=topic, _publish_type=PublishType.REQUEST, **options)
        return await self._basic_request(cmd, producer=self.config.producer)

    def _command(self, *messages: Any, correlation_id: str | None = None, **options: Any) -> EnginePublishCommand:
        return EnginePublishCommand(*messages, correlation_id=correlation_id or self.config.id_generator(), **options)


def _check_left_out(options: dict[str, Any], kind: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise SetupError(f"{name} must be left out: it is for {kind}")


def _without_secrets(url: str | None, is_embedded: bool) -> str:
    """What a document may say of where the broker is: a URL may have a token in it."""
    if is_embedded:
        return EMBEDDED_URL
    if url is None:
        return "engine://localhost"
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"
