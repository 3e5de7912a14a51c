"""What a connection and its requests use of the broker that accepted it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.aio.tasks import Supervisor
    from engine.broker.cluster.broker_calls import BrokerCalls
    from engine.broker.cluster.joinable import Joinable
    from engine.broker.cluster.membership import Membership
    from engine.broker.hosting.open_segments import OpenSegments
    from engine.broker.hosting.open_subscriptions import OpenSubscriptions
    from engine.broker.hosting.segment_host import SegmentHosting
    from engine.broker.pools.pools import BrokerMemory
    from engine.broker.rights.identities import Identities
    from engine.broker.rights.rights import Rights
    from engine.broker.session.connection import Connection
    from engine.broker.settings.config import BrokerConfig
    from engine.broker.upkeep.transaction_sweep import TransactionSweep
    from engine.clock import Clock
    from engine.control.service import ScalableTopicService
    from engine.errors import EngineError
    from engine.metadata.store import MetadataStore
    from engine.wire.commands import Header
    from engine.wire.stream import FrameStream

    # Runs one request: the connection, the header, the payload.
    Handler = Callable[[Connection, Any, memoryview], None]  # of one type of header
    Handlers = dict[type[Header], Handler]


class Dialled(Protocol):
    """The addresses of brokers."""

    def url_for(self, stream: FrameStream) -> str:
        """The address of this broker for the peer of a stream."""

    def admin_url_for(self, stream: FrameStream) -> str | None:
        """The address of its admin API for the peer of a stream; None: it has none."""

    def dial(self, url: str, stream: FrameStream) -> str:
        """The address of any broker for the peer of a stream."""


class Host(Protocol):
    """The broker, as its connections see it."""

    @property
    def config(self) -> BrokerConfig:
        """In effect now."""

    @property
    def clock(self) -> Clock:
        """The time."""

    @property
    def addresses(self) -> Dialled:
        """The addresses of brokers for the client."""

    @property
    def memory(self) -> BrokerMemory:
        """The pools."""

    @property
    def identities(self) -> Identities:
        """Makes the principals of connections."""

    @property
    def rights(self) -> Rights:
        """What principals may do."""

    @property
    def tasks(self) -> Supervisor:
        """Runs requests in the background until the broker closes."""

    @property
    def metadata(self) -> MetadataStore:
        """The records of topics, and of what belongs to them."""

    @property
    def service(self) -> ScalableTopicService:
        """Topics and subscriptions."""

    @property
    def segments(self) -> OpenSegments:
        """The open segments."""

    @property
    def subscriptions(self) -> OpenSubscriptions:
        """The subscriptions of open segments."""

    @property
    def hosting(self) -> SegmentHosting:
        """The segments of all brokers, by their owners."""

    @property
    def members(self) -> Membership:
        """The other brokers."""

    @property
    def calls(self) -> BrokerCalls:
        """Calls to and from other brokers."""

    @property
    def joinable(self) -> Joinable | None:
        """What processes that join the data directory ask for; None: they cannot."""

    @property
    def transactions(self) -> TransactionSweep:
        """The transaction coordinator."""

    def refusal(self, connection: Connection) -> EngineError | None:
        """Why a new connection is refused; None: it is accepted."""

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
