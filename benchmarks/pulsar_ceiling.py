"""The far end of P21's ceiling: a server that answers each SEND of Apache Pulsar's clients at once, and stores nothing.

What a client publishes to it in a second is the most that it publishes to any server.

    python benchmarks/pulsar_ceiling.py        says "listening on PORT", and goes on until it is ended
"""

from __future__ import annotations

import asyncio
from typing import Any

from engine.pulsar.messages import FIELDS, Command, MessageIdData, framed

HEAD = 8  # size of the frame, and of the command in it


class Answering(asyncio.Protocol):
    """One connection."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._left = b""
        self._sent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._left += data
        while len(self._left) >= HEAD and len(self._left) >= (size := 4 + int.from_bytes(self._left[:4], "big")):
            frame, self._left = self._left[:size], self._left[size:]
            command = Command.FromString(frame[HEAD : HEAD + int.from_bytes(frame[4:HEAD], "big")])
            name = FIELDS[command.type]
            self._transport.write(self._answer(name, getattr(command, name, None)))

    def _answer(self, name: str, asked: Any) -> bytes:
        if name == "send":
            self._sent += 1
            place = MessageIdData(ledger=0, entry=self._sent)
            facts = {"producer": asked.producer, "sequence": asked.sequence}
            return framed("send_receipt", **facts, message_id=place, highest_sequence=asked.highest_sequence)
        if name == "connect":
            return framed("connected", server_version="ceiling", protocol=asked.protocol, max_message_size=5 << 20)
        if name == "partitioned":
            return framed("partitioned_response", request=asked.request, response=0, partitions=0)
        if name == "lookup":
            return framed("lookup_response", request=asked.request, response=1, url=self._url, authoritative=True)
        if name == "producer":
            return framed("producer_success", request=asked.request, name="p", last_sequence=-1, ready=True)
        return framed("pong") if name == "ping" else framed("success", request=asked.request)


async def main() -> None:
    """Serve on a free port of 127.0.0.1."""
    url = ""
    server = await asyncio.get_running_loop().create_server(lambda: Answering(url), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"pulsar://127.0.0.1:{port}"
    print(f"listening on {port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
