"""A FastStream application for `faststream run`: it notes what it was called with in a file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from faststream import FastStream
from faststream.specification.asyncapi import AsyncAPI
from faststream_engine import EngineBroker, EngineMessage
from pydantic import BaseModel

NOTES = Path(os.environ["BAR_NOTES"])


class Order(BaseModel):
    table: int


broker = EngineBroker()  # ENGINE_URL
app = FastStream(broker, specification=AsyncAPI(title="Bar"))


def note(text: str) -> None:
    with NOTES.open("a") as file:
        file.write(text + "\n")


@broker.subscriber("orders", subscription="kitchen", initial_position="earliest")
@broker.publisher("served")
async def cook(order: Order, message: EngineMessage) -> int:
    note(f"begun {order.table}")
    if message.headers.get("slow"):
        await asyncio.sleep(0.5)
    note(f"done {order.table}")
    return order.table


@app.after_startup
async def started() -> None:
    note("started")


@app.after_shutdown
async def ended() -> None:
    note("ended")
