"""Base class of members of a group: producers, push consumers, pull consumers, POP consumers."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from rmq_core.client.cluster import Cluster
from rmq_core.client.options import ClientOptions, MessageModel, StartPosition
from rmq_core.client.producer.packet import MAX_GROUP_CHARACTERS, check_name
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Handler
from rmq_core.remoting.loop import Service
from rmq_core.remoting.requests import UnregisterClient
from rmq_formats.errors import OptionError

# Role, client id and group of all members in this process. A broker identifies the members of a group by client id: two
# consumers with one id would consume the same queues, and a transaction check would go to either of two producers.
_MEMBERS: Final[set[tuple[str, str, str]]] = set()


class GroupClient(Service):
    """Client that is registered at brokers as a member of a group.

    Source: ``MQClientInstance#registerConsumer``, ``#registerProducer``.
    """

    def __init__(
        self,
        role: Literal["consumer", "producer"],
        namesrv: str,
        group: str,
        options: ClientOptions,
        credentials: Credentials | None,
        *,
        handlers: Mapping[int, Handler] | None = None,
        has_fixed_instance_name: bool = False,
    ) -> None:
        """Create a client without connections; see ``Cluster``. Raises OptionError, MessageError."""
        check_name("group", group, MAX_GROUP_CHARACTERS)
        self.group = group
        self._cluster = Cluster(
            namesrv,
            options,
            credentials=credentials,
            handlers=handlers,
            heartbeat=self._heartbeat,
            has_fixed_instance_name=has_fixed_instance_name,
        )
        self._membership = role, self.client_id, group
        self._has_joined = False
        self._groups = {f"{role}_group": group}
        self._started_ms = 0
        self._clock_ms = options.clock_ms
        self._version = 0

    @property
    def client_id(self) -> str:
        """The client's id at brokers."""
        return self._cluster.client_id

    def _next_version(self) -> int:
        """Return a version for a subscription: the time, ms since 1970, but later than all versions before it.

        Brokers ignore a subscription without a higher version, such as one of the same millisecond.
        """
        self._version = max(self._clock_ms(), self._version + 1)
        return self._version

    async def _join(self, topics: Iterable[str] = ()) -> None:
        """Lock the membership, start the client, and register at the brokers of topics; undo all if one step fails.

        Raises OptionError, TransportError, BrokerError (code 16).
        """
        if self._membership in _MEMBERS:
            role, client_id, group = self._membership
            raise OptionError(
                f"group {group} has a {role} with client id {client_id} in this process already: "
                "give each client its own instance_name"
            )
        _MEMBERS.add(self._membership)
        self._has_joined = True
        try:
            await self._cluster.start()
            self._started_ms = self._clock_ms()
            refusal = await self._cluster.register_at_brokers(topics) if topics else None
            if refusal is not None:
                raise refusal
        except BaseException:
            await self._close_cluster()
            raise

    async def _leave(self) -> None:
        fields = UnregisterClient(client_id=self.client_id, **self._groups)
        await self._cluster.to_masters(RequestCode.UNREGISTER_CLIENT, fields)
        await self._close_cluster()

    async def _close_cluster(self) -> None:
        await self._cluster.close()
        if self._has_joined:  # else another client of this process may be the member
            _MEMBERS.discard(self._membership)
            self._has_joined = False

    def _consumer_heartbeat(
        self,
        start: StartPosition,
        subscriptions: Iterable[SubscriptionData],
        *,
        consume_type: str = "CONSUME_PASSIVELY",
        message_model: str = MessageModel.CLUSTERING.value,
    ) -> HeartbeatData | None:
        """Build the heartbeat of a consumer; None before its start."""
        if not self._started_ms:
            return None
        data = ConsumerData(
            group_name=self.group,
            consume_type=consume_type,
            consume_from_where=start.value,
            message_model=message_model,
            subscription_data_set=list(subscriptions),
        )
        return HeartbeatData(client_id=self.client_id, consumer_data_set=[data])

    @abstractmethod
    def _heartbeat(self) -> HeartbeatData | None:
        """Return the heartbeat for brokers; None without one so far."""
