"""What handlers ask for by type: `message: EngineMessage`, `broker: EngineBroker`, `client: Client`."""

from typing import Annotated

from faststream import Context

import engine
from faststream_engine.broker import EngineBroker as _Broker
from faststream_engine.message import EngineMessage as _Message

__all__ = ("Client", "EngineBroker", "EngineMessage")

Client = Annotated[engine.AsyncClient, Context("broker._connection")]
EngineBroker = Annotated[_Broker, Context("broker")]
EngineMessage = Annotated[_Message, Context("message")]
