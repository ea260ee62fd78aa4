"""Requests of the proxy to name servers and brokers, on behalf of its clients.

Source: ``TopicRouteService``, ``MessageService``, ``MetadataService``.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar

from rmq_core.client.cluster import Cluster
from rmq_core.client.errors import BrokerError, NoRouteError
from rmq_core.client.options import ClientOptions
from rmq_core.proxy.messages import decode_records
from rmq_core.proxy.wire import v2
from rmq_core.remoting import clock
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies.clients import HeartbeatData, ProducerData
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_core.remoting.bodies.routes import ClusterInfo
from rmq_core.remoting.codes import MASTER_ID, RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import TransportError
from rmq_core.remoting.fields import Fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.loop import Service
from rmq_core.remoting.requests import Group, Topic, UnregisterClient, ViewMessage
from rmq_formats.codecs.record import StoredMessage

log = logging.getLogger("rmq.proxy")
_CACHED_S: Final = 20.0  # settings of topics and groups
_OFFLINE_S: Final = 30.0  # Java's ``transactionGroupOfflineTimeoutMillis``
_MAX_CACHED: Final = 10_000
_MIN_STEP_MS: Final = 1000  # difference that means a change of a broker's clock, not a slow response
_MAX_HANDLE_AGE_MS: Final = 12 * 3_600_000  # maximum validity of a receipt handle
_MAX_LEADS: Final = 16
_MESSAGE_TYPES: Final = {
    "UNSPECIFIED": (v2.NORMAL,), "NORMAL": (v2.NORMAL,), "FIFO": (v2.FIFO,), "DELAY": (v2.DELAY,),
    "TRANSACTION": (v2.TRANSACTION,), "PRIORITY": (v2.PRIORITY,), "LITE": (v2.LITE,),
    "MIXED": (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION),
}  # fmt: skip
_T = TypeVar("_T")


class Brokers(Service):
    """Name servers and brokers of the proxy; use it with ``async with``.

    Attributes:
        handlers: handlers of brokers' requests, by code.
        producers: topics with transactions, which are the producer groups of gRPC clients, with the time of their last
            registration by the monotonic clock.
    """

    def __init__(
        self, namesrv: str, options: ClientOptions, credentials: Credentials | None, auth_brokers: Iterable[str] = ()
    ) -> None:
        """Create the client; ``async with`` starts it.

        ``auth_brokers`` are the addresses of brokers to query for users; if empty, the masters that are found first.
        Raises OptionError.
        """
        self.producers: dict[str, float] = {}
        codes = (
            RequestCode.CHECK_TRANSACTION_STATE, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
        )  # fmt: skip
        self.handlers: dict[int, Handler] = dict.fromkeys(codes, _ignore_request)
        self.cluster = Cluster(
            namesrv, options, credentials=credentials, handlers=self.handlers, heartbeat=self._heartbeat
        )
        self.request = self.cluster.request
        self.route = self.cluster.route
        self._auth_brokers = tuple(auth_brokers)
        self._cache: dict[tuple[str, str], tuple[float, Any]] = {}
        # By broker: leads of its clock over the local steady clock, with their last times; the newest is last.
        self._leads_ms: dict[str, dict[int, int]] = {}

    async def start(self) -> None:
        """Start the client."""
        await self.cluster.start()

    async def close(self) -> None:
        """Close all connections."""
        await self.cluster.close()

    def _heartbeat(self) -> HeartbeatData | None:
        if not self.producers:
            return None
        groups = [ProducerData(group_name=topic) for topic in sorted(self.producers)]
        return HeartbeatData(client_id=self.cluster.client_id, producer_data_set=groups)

    async def register_producer(self, topics: Iterable[str]) -> None:
        """Register as producer of topics with transactions, so that brokers send transaction checks here."""
        topics = set(topics)
        new_topics = topics - self.producers.keys()
        self.producers |= dict.fromkeys(topics, time.monotonic())
        if new_topics:
            await self.cluster.register_at_brokers(new_topics)
            await self.cluster.send_heartbeats()

    async def unregister_idle_producers(self, is_needed: Callable[[str], bool]) -> None:
        """Unregister as producer of topics that no client sends to: their transaction checks would reach no client.

        Source: ``ClusterTransactionService#scanProducerHeartBeat``.
        """
        before_s = time.monotonic() - _OFFLINE_S
        for topic, since_s in list(self.producers.items()):
            if since_s < before_s and not is_needed(topic):
                del self.producers[topic]
                fields = UnregisterClient(client_id=self.cluster.client_id, producer_group=topic)
                await self.cluster.to_masters(RequestCode.UNREGISTER_CLIENT, fields)

    async def message_types(self, topic: str) -> tuple[int, ...]:
        """Return the message types that a topic accepts. Raises RemotingError."""
        fields = Topic(topic=topic)
        query = partial(self._request_any, topic, RequestCode.GET_TOPIC_CONFIG, fields, TopicConfig)
        config = await self._cached(("topic", topic), query)
        return _MESSAGE_TYPES.get(config.attributes.get("message.type", "NORMAL").upper(), (v2.NORMAL,))

    async def group(self, group: str, topic: str) -> SubscriptionGroupConfig:
        """Fetch the settings of a group from a broker of a topic, or the defaults. Raises RemotingError."""
        return await self._cached(("group", group), lambda: self._query_group(group, topic))

    async def view_record(self, address: str, topic: str, physical_offset: int) -> StoredMessage | None:
        """Return the record at a physical offset of a broker; None if there is no such record."""
        fields = ViewMessage(topic=topic, offset=physical_offset)
        also = (ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION)
        response = await self.request(address, RequestCode.VIEW_MESSAGE_BY_ID, fields, also=also)
        records = decode_records(bytes(response.body)) if response.code == ResponseCode.SUCCESS else []
        return records[0] if len(records) == 1 else None

    async def _query_group(self, group: str, topic: str) -> SubscriptionGroupConfig:
        code, fields = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, Group(group=group)
        try:
            return await self._request_any(topic, code, fields, SubscriptionGroupConfig)
        except BrokerError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise  # with the defaults, an ordered group would not be read in order
            return SubscriptionGroupConfig(group_name=group)  # the broker creates the group at its first use

    async def _request_any(self, topic: str, code: RequestCode, fields: Fields, kind: type[_T]) -> _T:
        """Send a request to the first master of a topic, or to the next one if it does not respond; return the body.

        Raises NoRouteError, BrokerError, TransportError.
        """
        route = await self.route(topic)
        queues = route.write_queues or route.read_queues
        *names, last = dict.fromkeys(queue.broker_name for queue in queues) or route.brokers or ("",)
        for name in names:
            try:
                return await self.cluster.request_body(self.cluster.address(name), code, kind, fields)
            except (TransportError, NoRouteError) as error:
                log.warning("%(broker)s: %(why)s", {"broker": name, "why": str(error)})
        return await self.cluster.request_body(self.cluster.address(last), code, kind, fields)

    async def auth_brokers(self) -> tuple[str, ...]:
        """Return the addresses of brokers that are queried for users: configured ones, or the masters found first.

        Brokers that register later are not queried: whoever reaches a name server can register a broker.
        Raises NoRouteError, TransportError.
        """
        if not self._auth_brokers:
            info = await self.cluster.request_name_servers_body(RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo)
            groups = info.broker_addr_table.values()
            masters = tuple(group.broker_addrs[MASTER_ID] for group in groups if MASTER_ID in group.broker_addrs)
            if not masters:
                raise NoRouteError("brokers", "no name server knows a master")
            if not self._auth_brokers:  # unless another call has found some meanwhile
                self._auth_brokers = masters
                log.info(
                    "queries %(brokers)s for users, the first masters found; --auth-broker names other brokers",
                    {"brokers": ";".join(masters)},
                )
        return self._auth_brokers

    async def _cached(self, key: tuple[str, str], query: Callable[[], Awaitable[_T]]) -> _T:
        until, value = self._cache.get(key, (0.0, None))
        now = time.monotonic()
        if value is not None and now < until:
            return value  # type: ignore[no-any-return]
        value = await query()
        if len(self._cache) >= _MAX_CACHED:
            self._cache.clear()
        self._cache[key] = now + _CACHED_S, value
        return value

    async def address(self, topic: str, broker: str) -> str:
        """Return the address of a master; an unknown one refreshes the route. Raises NoRouteError, TransportError."""
        try:
            return self.cluster.address(broker)
        except NoRouteError:
            await self.cluster.refresh_route(topic)
            return self.cluster.address(broker)

    def record_clock(self, broker: str, now_ms: int) -> None:
        """Record a broker's time from a response; after a change of its clock, older handles use the old time."""
        steady_ms = clock.steady_ms()
        lead_ms = now_ms - steady_ms
        leads = self._leads_ms.setdefault(broker, {})
        latest_ms = next(reversed(leads), None)
        if latest_ms is not None and abs(lead_ms - latest_ms) < _MIN_STEP_MS:
            lead_ms = latest_ms
        leads.pop(lead_ms, None)
        leads[lead_ms] = steady_ms
        for old_ms in [old_ms for old_ms, since_ms in leads.items() if steady_ms - since_ms > _MAX_HANDLE_AGE_MS]:
            del leads[old_ms]
        if len(leads) > _MAX_LEADS:
            del leads[next(iter(leads))]

    def now_ms(self, broker: str) -> int:
        """Return the time by a broker's clock, ms since 1970; before its first response, by this machine's clock.

        After a change of that clock, it is the earliest time that may apply to a receipt handle.
        """
        leads = self._leads_ms.get(broker)
        return min(leads) + clock.steady_ms() if leads else clock.now_ms()


def _ignore_request(_: RemotingCommand, __: Connection) -> None:
    return None
