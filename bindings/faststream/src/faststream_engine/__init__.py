"""FastStream on Engine: `EngineBroker`, its routers, publishers and test broker."""

from faststream_engine.annotations import EngineMessage
from faststream_engine.broker import EngineBroker
from faststream_engine.response import EngineResponse
from faststream_engine.router import EnginePublisher, EngineRoute, EngineRouter
from faststream_engine.testing import TestEngineBroker

__all__ = (
    "EngineBroker",
    "EngineMessage",
    "EnginePublisher",
    "EngineResponse",
    "EngineRoute",
    "EngineRouter",
    "TestEngineBroker",
)
