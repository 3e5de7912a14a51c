"""A network in memory: real frames, cut into real pieces, that arrive late, are held by a partition, or are lost with
their connection. `wire.stream.Connector` and `FrameStream` for simulations.

Hosts are names. A stream keeps order, as TCP does. All randomness comes from one generator, all time from the loop.
Each end's owner is called in the context in which it connected or listened, so that its tasks are its own (process.py).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from engine.errors import ConnectError, ProtocolError
from engine.limits import CONNECTION_WRITE_HIGH, CONNECTION_WRITE_LOW
from engine.wire.chunks import ChunkPool
from engine.wire.commands import Header
from engine.wire.framing import FrameReader, encode_bytes
from engine.wire.stream import FrameHandler, FrameStream, Payload, Sent
from engine.wire.taken import Taken

Accept = Callable[[FrameStream], FrameHandler]

_SPLIT_RATE = 0.1  # of the pieces that arrive in two
_GATHER_RATE = 0.75  # of the turns in which frames sent together are to arrive together


class SimNetwork:
    """All hosts and the connections between them."""

    def __init__(self, rng: random.Random, *, delay_s: tuple[float, float] = (0.0001, 0.002)) -> None:
        """`delay_s`: the shortest and the longest way of a piece."""
        self.rng = rng
        self.delay_s = delay_s
        self.slow_s: dict[str, float] = {}  # by host: the longer way of each piece to and from it
        self.pool = ChunkPool()
        self._listeners: dict[str, tuple[str, Accept, Context]] = {}
        self._aliases: dict[str, list[str]] = {}
        self._streams: list[SimStream] = []
        self._partitions: set[frozenset[str]] = set()
        self._healed: list[Callable[[], None]] = []

    def listen(self, host: str, url: str, accept: Accept) -> None:
        """Serve connections to `url` on `host`, until kill(host) or close(url)."""
        self._listeners[url] = (host, accept, copy_context())

    def close(self, url: str) -> None:
        """Refuse connections to `url` from now on."""
        self._listeners.pop(url, None)

    def alias(self, url: str, target: str) -> None:
        """Connections to `url` go to any of its targets that listens and can be reached, as through a balancer."""
        self._aliases.setdefault(url, []).append(target)

    def _resolve(self, host: str, url: str) -> str:
        targets = [t for t in self._aliases.get(url, ()) if t in self._listeners]
        near = [t for t in targets if not self.is_partitioned(host, self._listeners[t][0])]
        return self.rng.choice(near or targets) if targets else url

    def connector(self, host: str) -> SimConnector:
        """Opens connections from `host`."""
        return SimConnector(self, host)

    def partition(self, left: str, right: str) -> None:
        """Hold everything between two hosts, also resets and closes, until heal()."""
        self._partitions.add(frozenset((left, right)))

    def heal(self) -> None:
        """End all partitions; what was held goes on its way."""
        self._partitions.clear()
        healed, self._healed = self._healed, []
        for resume in healed:
            resume()

    def reset(self, left: str, right: str) -> int:
        """Break all connections between two hosts; how many there were. What was on its way is lost."""
        broken = [s for s in self._streams if {s.host, s.other.host} == {left, right}]
        for stream in broken:
            stream.break_off(ConnectError(f"the connection to {stream.other.host} was reset"))
        return len(broken) // 2

    def kill(self, host: str) -> None:
        """The process on `host` died: its handlers get no more calls, its peers a reset, unless it is held."""
        self._listeners = {url: entry for url, entry in self._listeners.items() if entry[0] != host}
        for stream in [s for s in self._streams if s.host == host]:
            stream.die()

    def is_partitioned(self, left: str, right: str) -> bool:
        """Whether nothing gets through between two hosts."""
        return frozenset((left, right)) in self._partitions

    def delay(self, *hosts: str) -> float:
        """The way of one piece between these hosts, in seconds."""
        return self.rng.uniform(*self.delay_s) + sum(self.slow_s.get(host, 0.0) for host in hosts)

    def when_healed(self, resume: Callable[[], None]) -> None:
        """Call back at the next heal()."""
        self._healed.append(resume)

    async def connect(self, host: str, url: str, handler: Accept) -> SimStream:
        """A new connection from `host`."""
        await asyncio.sleep(self.delay(host))
        found = self._listeners.get(self._resolve(host, url))
        if found is None:
            raise ConnectError(f"cannot connect to {url}: connection refused; is a broker listening there?")
        server, accept, context = found
        if self.is_partitioned(host, server):
            await asyncio.sleep(10)
            raise ConnectError(f"no connection to {url} within 10 s")
        near, far = SimStream(self, host, copy_context()), SimStream(self, server, context.copy())
        near.other, far.other = far, near
        self._streams += (near, far)
        far.context.run(far.start, accept)
        near.start(handler)
        return near

    def forget(self, stream: SimStream) -> None:
        if stream in self._streams:
            self._streams.remove(stream)


class SimConnector:
    """A `Connector` for one host."""

    def __init__(self, network: SimNetwork, host: str) -> None:
        self._network = network
        self._host = host

    async def connect(self, url: str, handler: Accept) -> FrameStream:
        """A connected stream. Raises ConnectError."""
        return await self._network.connect(self._host, url, handler)


class SimStream:
    """One end of a connection. `_inbox` holds what the other end sent, with the time it arrives."""

    local_url = None
    is_near = False
    certificate = None
    peer_user = None

    def __init__(self, network: SimNetwork, host: str, context: Context) -> None:
        self.host = host
        self.context = context
        self.peer = "not connected"
        self.other: SimStream = self
        self._network = network
        self._loop = asyncio.get_running_loop()
        self._handler: FrameHandler | None = None
        self._reader = FrameReader(network.pool, self._deliver)
        # Pieces on their way to this end; None is the other end's orderly close, an error its reset.
        self._inbox: deque[tuple[float, bytes | ConnectError | None]] = deque()
        self._inbox_bytes = 0
        self._pumping = self._gathering = False
        self._writing_paused = False
        self._closing = False
        self._lost = False
        self.bytes_sent = 0
        self._taken = Taken(lambda: self.bytes_sent - self.unsent_bytes)

    def start(self, make_handler: Accept) -> None:
        self.peer = f"sim://{self.other.host}"
        self._handler = make_handler(self)

    # -- FrameStream -------------------------------------------------------------------------------------------------

    def send(self, header: Sent, payload: Payload = b"") -> None:
        if self._closing:
            return
        data = encode_bytes(header, payload)
        self.bytes_sent += len(data)
        rng = self._network.rng
        cut = rng.randrange(1, len(data)) if rng.random() < _SPLIT_RATE else len(data)
        for piece in (data[:cut], data[cut:]):
            if piece:
                self.other._arrive(piece)
        if not self._writing_paused and self.other._inbox_bytes > CONNECTION_WRITE_HIGH:
            self._writing_paused = True
            self._soon(self._notify_paused)

    def _notify_paused(self) -> None:
        if self._handler is not None and self._writing_paused:
            self._handler.pause_writing()

    def gather(self) -> None:
        """See FrameStream: what is sent in this turn arrives together, more often than not."""
        if not self._gathering and self._network.rng.random() < _GATHER_RATE:
            self._gathering = True
            self._soon(self._gathered)

    def flush(self) -> None:
        """See FrameStream: it is on its way."""

    def _gathered(self) -> None:
        self._gathering = False

    @property
    def unsent_bytes(self) -> int:
        """Bytes on their way."""
        return self.other._inbox_bytes

    def when_taken(self, callback: Callable[[], object]) -> None:
        """Call it once all that is queued now has arrived, or the connection has ended."""
        self._taken.add(self.bytes_sent, callback)
        if self._lost:
            self._taken.end()

    @property
    def bytes_received(self) -> int:
        """Bytes received since the connection was made."""
        return self._reader.bytes_received

    @property
    def header_size(self) -> int:
        """Bytes of the header of the frame that is being delivered."""
        return self._reader.header_size

    @property
    def pending_bytes(self) -> int:
        """Bytes received of a frame that is not whole, or that is not wanted yet."""
        return self._reader.pending_bytes

    def trim(self) -> None:
        """Hold little more memory than what is received and not delivered needs."""
        self._reader.trim()

    def compact(self) -> None:
        """Hold no more memory than half a received frame needs."""
        self._reader.compact()

    def pause_reading(self) -> None:
        self._reader.paused = True

    def resume_reading(self) -> None:
        if self._reader.paused and not self._lost:
            self._reader.paused = False
            self._soon(self._pump)

    def close(self) -> None:
        """Let the other end have what is queued, then end."""
        if not self._closing:
            self._closing = self._reader.paused = True
            self.other._arrive(None)
            self._soon(self._end, None)

    def abort(self) -> None:
        """End at once; what was on its way may be lost."""
        if self._lost or self._loop.is_closed():  # closed: the simulation is over, and what it has left is collected
            return
        self._closing = self._reader.paused = True
        self.other._arrive(ConnectError(f"the connection was reset by {self.host}"), losing=True)
        self._soon(self._end, None)

    def _soon(self, function: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon(function, *arguments, context=self.context)

    # -- the network's side ------------------------------------------------------------------------------------------

    def break_off(self, error: ConnectError) -> None:
        """The connection is lost, and its owner is called."""
        self._closing = self._reader.paused = True
        self._soon(self._end, error)

    def die(self) -> None:
        """The owner is dead: it gets no more calls."""
        self._handler = None
        self._closing = self._reader.paused = True
        self.other._arrive(ConnectError(f"the connection was reset by {self.host}"), losing=True)
        self._end(None)

    def _arrive(self, piece: bytes | ConnectError | None, losing: bool = False) -> None:
        if self._lost:
            return
        if losing:
            for _ in range(self._network.rng.randint(0, len(self._inbox))):
                _, lost = self._inbox.pop()
                self._inbox_bytes -= len(lost) if isinstance(lost, bytes) else 0
        at = self._loop.time() + self._network.delay(self.host, self.other.host)
        if self._inbox:
            at = self._inbox[-1][0] if self.other._gathering else max(at, self._inbox[-1][0])
        self._inbox.append((at, piece))
        self._inbox_bytes += len(piece) if isinstance(piece, bytes) else 0
        if not self._pumping:
            self._pumping = True
            self._loop.call_at(at, self._pump_due, context=self.context)

    def _pump_due(self) -> None:
        self._pumping = False
        self._pump()

    def _pump(self) -> None:
        """Hand over what has arrived, as far as reading and partitions allow."""
        if self._lost:
            return
        if self._network.is_partitioned(self.host, self.other.host):
            self._network.when_healed(lambda: self._soon(self._pump))
            return
        if not self._read(b""):
            return
        while self._inbox and self._inbox[0][0] <= self._loop.time() and not self._lost and not self._blocked():
            _, piece = self._inbox.popleft()
            if not isinstance(piece, bytes):
                self._end(piece)
                return
            self._inbox_bytes -= len(piece)
            self._read(piece)
            if self.other._writing_paused:
                self.other._soon(self.other._room)
        if self._inbox and not self._lost and not self._pumping and not self._blocked():
            self._pumping = True
            self._loop.call_at(self._inbox[0][0], self._pump_due, context=self.context)

    def _blocked(self) -> bool:
        """Whether the owner wants nothing more for now. One that has closed lets the rest fall to the floor."""
        return self._reader.paused and not self._closing

    def _read(self, piece: bytes) -> bool:
        if self._closing:
            return True
        try:
            self._reader.deliver()
            while piece and not self._closing:
                buffer = self._reader.get_buffer()
                size = min(len(buffer), len(piece))
                buffer[:size] = piece[:size]
                piece = piece[size:]
                self._reader.received(size)
        except ProtocolError as e:
            self.other.break_off(ConnectError(f"the connection was reset by {self.host}"))
            self._end(e)
            return False
        return True

    def _deliver(self, header: Header, payload: memoryview) -> None:
        if self._handler is not None and not self._closing:
            self._handler.frame_received(header, payload)

    def _room(self) -> None:
        if self._writing_paused and self.other._inbox_bytes < CONNECTION_WRITE_LOW:
            self._writing_paused = False
            if self._handler is not None:
                self._handler.resume_writing()

    def _end(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = self._reader.paused = True
        self._inbox.clear()
        self._inbox_bytes = 0
        self._reader.release()
        self._network.forget(self)
        self._taken.end()
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.connection_lost(error)
