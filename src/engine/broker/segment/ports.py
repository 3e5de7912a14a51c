"""What an open segment sees of its surroundings: the connection of a client, a subscription, readers' limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from engine.broker.pools.ports import Held
from engine.errors import EngineError
from engine.wire.commands import SendReceipt
from engine.wire.stream import Payload, Sent

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from engine._native.serve.blocks import Block
    from engine.broker.transactions.sends import ConnectionSends
    from engine.storage.cursor.cursor import Cursor


class Attachment(Protocol):
    """A producer or a consumer on a connection."""

    ident: int


class Peer(Protocol):
    """The connection of a producer or a consumer."""

    closed: bool
    whole_entries: bool  # its client reads no parts of entries

    @property
    def pressure(self) -> Held:
        """Its connection as the pools see it."""

    @property
    def role(self) -> str:
        """Of the principal behind it; empty where that may do everything."""

    @property
    def takes_credit(self) -> bool:
        """Whether its producers send no more than they are given credit for, where they are given any."""

    @property
    def sends(self) -> ConnectionSends:
        """The frames that it has sent in open transactions."""

    @property
    def writable(self) -> bool:
        """Whether a consumer may send another block."""

    @property
    def block_size(self) -> int:
        """The most bytes of a block for a consumer; one entry may be larger."""

    def has_room(self, unsent_max: int) -> bool:
        """Whether a block may be queued although it is not writable, with less than so many bytes unsent."""

    def send(self, header: Sent, payload: Payload = b"") -> None:
        """Queue one frame; nothing happens when the connection is closed."""

    def receipt(self, receipt: SendReceipt) -> None:
        """Queue a SEND_RECEIPT, perhaps in one frame with others."""

    def wants(self, ident: int) -> bool:
        """Whether the client still wants the attachment that is being opened under that id."""

    def forget(self, attachment: Attachment, *, refused: bool = False) -> None:
        """It has ended. `refused`: by an error; frames on their way to it are dropped without an answer."""

    async def prove_alive(self) -> bool:
        """Ping the client; without an answer in time the connection is dropped, and False returned."""


class SubscribedConsumer(Protocol):
    """One consumer of a subscription."""

    name: str

    @property
    def peer(self) -> Peer:
        """Its connection."""

    @property
    def pending(self) -> int:
        """Messages that it was sent and has not acknowledged."""


class Subscriber(Protocol):
    """A subscription, as its segment sees it."""

    name: str
    cursor: Cursor

    @property
    def consumers(self) -> Iterable[SubscribedConsumer]:
        """Those attached now."""

    @property
    def in_use(self) -> bool:
        """Whether consumers are attached or wait, or memory holds what no file does."""

    def check_drained(self) -> None:
        """Report the end of the segment if it is reached and all is acknowledged."""

    def sample(self) -> None:
        """Bring its rates up to date."""

    def close(self, error: EngineError) -> None:
        """Close its consumers with an error."""


class Gate(Protocol):
    """What open and aborted transactions keep from the readers of a segment."""

    @property
    def limit(self) -> int | None:
        """The last stable offset: readers get nothing from here on. None: no transaction is open."""

    def cut(self, block: Block) -> Block:
        """The entries of a block that lie below the limit; the block begins below it."""

    def hidden(self, start: int, stop: int) -> BitMap64 | None:
        """Offsets in [start, stop) that no reader gets; None for none."""
