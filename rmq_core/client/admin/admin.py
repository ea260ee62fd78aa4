"""Cluster administration: topics, consumer groups, offsets and single messages of a running cluster.

::

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("Orders", queues=8)
        print(await admin.consume_stats("billing"))

Source: ``MQAdminImpl``, ``DefaultMQAdminExtImpl``.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Final, TypeVar

from rmq_core.client.access import Access
from rmq_core.client.admin.broker_queries import BrokerInquiries, UserRequests
from rmq_core.client.cluster import Cluster
from rmq_core.client.errors import BrokerError, NoRouteError
from rmq_core.client.message import ReceivedMessage
from rmq_core.client.options import ClientOptions, ConsumerOptions, check_time
from rmq_core.client.producer.packet import MAX_GROUP_CHARACTERS, MAX_TOPIC_CHARACTERS, check_name
from rmq_core.client.pull.record_decoder import decode_records
from rmq_core.client.pull.request import Puller, QueueOffsets, subscription
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.bodies.clients import ConsumerConnection
from rmq_core.remoting.bodies.codec import MessageQueue, decode_body, encode_body, parse_queue_key
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig
from rmq_core.remoting.bodies.routes import ClusterInfo, KVTable, TopicList, TopicRouteData
from rmq_core.remoting.bodies.stats import ConsumeStats, OffsetsBody, TopicStats
from rmq_core.remoting.codes import MASTER_ID, ORDER_TOPIC_CONFIG, UNIQUE_KEY_QUERY, RequestCode, ResponseCode
from rmq_core.remoting.fields import Fields, write_fields
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.loop import Service
from rmq_core.remoting.namesrv_requests import DeleteTopicInNamesrv, KVConfigKey, KVConfigValue
from rmq_core.remoting.requests import (
    ConsumerGroupName,
    CreateTopic,
    DeleteGroup,
    GetConsumeStats,
    QueryMessage,
    ResetOffset,
    Topic,
    ViewMessage,
)
from rmq_formats.codecs.layout import PROPERTY_UNIQ_KEY
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.codecs.topics import TEMPLATE_TOPIC

_T = TypeVar("_T")
DEFAULT_OPTIONS: Final = ClientOptions(request_timeout_s=5.0)
_GROUP: Final = "TOOLS_CONSUMER"  # Java's group for tools, which every broker has
_END_OF_TIME_MS: Final = (1 << 63) - 1


class Admin(Service):
    """Administration client of a cluster; use it with ``async with``, or start and close it.

    All methods raise BrokerError with code and remark if a server refuses, NoRouteError if a topic or broker is
    unknown, and TransportError if a server cannot be reached.

    Attributes:
        access: credentials and TLS of this client, for other clients of the same cluster.
        brokers: requests to a single broker.
        offsets: queries and commits of queue offsets.
        users: users and policies of a single broker.
    """

    def __init__(
        self, namesrv: str, options: ClientOptions = DEFAULT_OPTIONS, *, credentials: Credentials | None = None
    ) -> None:
        """Create a client without connections.

        Args:
            namesrv: ``host:port`` of the name servers, separated by semicolons.
            options: settings of the client.
            credentials: to sign requests with.

        Raises:
            OptionError: ``namesrv`` has no valid address, or a TLS file cannot be used.
        """
        self.access = Access(credentials, options.tls)
        self._cluster = Cluster(namesrv, options, credentials=credentials)
        self._puller = Puller(self._cluster, _GROUP, ConsumerOptions(), sends_subscription=True)
        self.brokers = BrokerInquiries(self._cluster)
        self.offsets = QueueOffsets(self._cluster)
        self.users = UserRequests(self._cluster)

    async def start(self) -> None:
        """Start refreshing routes periodically."""
        await self._cluster.start()

    async def close(self) -> None:
        """Close all connections."""
        await self._cluster.close()

    @property
    def namesrv(self) -> str:
        """The name servers' addresses, separated by semicolons."""
        return self._cluster.namesrv

    async def cluster(self) -> ClusterInfo:
        """Fetch all brokers and clusters from the name servers (code 106)."""
        return await self._cluster.request_name_servers_body(RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo)

    async def masters(self, cluster: str | None = None) -> list[str]:
        """Return the addresses of all masters, sorted by the brokers' names.

        Args:
            cluster: name of the cluster; by default all clusters.

        Raises:
            NoRouteError: no master is registered.
        """
        table = (await self.cluster()).broker_addr_table
        brokers = [table[name] for name in sorted(table) if cluster in (None, table[name].cluster)]
        addresses = [broker.broker_addrs[MASTER_ID] for broker in brokers if MASTER_ID in broker.broker_addrs]
        if not addresses:
            raise NoRouteError(cluster or "the cluster", "no master is registered")
        return addresses

    async def masters_of(self, topic: str) -> list[str]:
        """Return the addresses of a topic's masters; raises NoRouteError if the topic does not exist."""
        return [self._cluster.address(name) for name in (await self._cluster.route(topic)).brokers]

    async def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        return sorted((await self._cluster.request_name_servers_body(code, TopicList)).topic_list)

    async def route(self, topic: str) -> TopicRouteData:
        """Fetch the route of a topic from the name servers."""
        return await self._cluster.route_data(topic)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """List the readable queues of a topic."""
        return list((await self._cluster.refresh_route(topic)).read_queues)

    async def broker_info(self, address: str) -> dict[str, str]:
        """Fetch a broker's runtime statistics: rates, sizes, times.

        Args:
            address: its ``host:port``.
        """
        return (await self._cluster.request_body(address, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable)).table

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        write_queues: int | None = None,
        perm: int = 6,
        order: bool = False,
        attributes: str | None = None,
        sys_flag: int = 0,
        broker: str | None = None,
    ) -> None:
        """Create a topic, or change its settings.

        Args:
            topic: name of the topic.
            queues: number of readable queues on each broker.
            write_queues: number of writable queues; by default all.
            perm: 4 read, 2 write, together 6.
            order: create an ordered topic.
            attributes: changes of attributes: ``+message.type=FIFO,-reserve.time``.
            sys_flag: 1 for a unit topic, 2 if units subscribe to the topic.
            broker: address of the only broker that gets it; by default all masters.

        Raises:
            MessageError: the name is invalid.
        """
        check_name("topic", topic, MAX_TOPIC_CHARACTERS)
        fields = CreateTopic(
            topic=topic,
            default_topic=TEMPLATE_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues if write_queues is None else write_queues,
            perm=perm,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=sys_flag,
            order=order,
            attributes=attributes,
        )
        await self._at_masters(RequestCode.UPDATE_AND_CREATE_TOPIC, fields, broker=broker)

    async def keep_in_order(self, topic: str, queues: Mapping[str, int], *, whole: bool = True) -> str:
        """Register a topic's ordered queues with all name servers, and return all entries: ``broker-a:4;broker-b:4``.

        ``queues`` has numbers of queues by broker name. Entries of other brokers remain unless ``whole`` is true.
        """
        entries = {}
        if not whole:
            key, also = KVConfigKey(namespace=ORDER_TOPIC_CONFIG, key=topic), (ResponseCode.QUERY_NOT_FOUND,)
            response = await self._cluster.request_name_servers(RequestCode.GET_KV_CONFIG, key, also=also)
            text = response.ext_fields.get("value", "")
            entries = dict(entry.rsplit(":", 1) for entry in text.split(";") if ":" in entry)
        entries |= {name: str(count) for name, count in queues.items()}
        text = ";".join(f"{name}:{count}" for name, count in entries.items())
        fields = KVConfigValue(namespace=ORDER_TOPIC_CONFIG, key=topic, value=text)
        for address in self._cluster.namesrv.split(";"):
            await self._cluster.request(address, RequestCode.PUT_KV_CONFIG, fields)
        return text

    async def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic in all clusters, or in a single cluster."""
        for address in await self.masters(cluster):
            await self._cluster.request(address, RequestCode.DELETE_TOPIC_IN_BROKER, Topic(topic=topic))
        fields = DeleteTopicInNamesrv(topic=topic, cluster_name=cluster)
        await self._cluster.request_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)

    async def create_group(self, config: SubscriptionGroupConfig, *, broker: str | None = None) -> None:
        """Create a consumer group, or change its settings.

        Args:
            config: name and settings of the group.
            broker: address of the only broker that gets it; by default all masters.

        Raises:
            MessageError: the name is invalid.
        """
        check_name("group", config.group_name, MAX_GROUP_CHARACTERS)
        body = encode_body(config)
        await self._at_masters(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body, broker=broker)

    async def delete_group(self, group: str, *, clean_offsets: bool = False, broker: str | None = None) -> None:
        """Delete a consumer group.

        Args:
            group: name of the group.
            clean_offsets: delete the group's consumer offsets, too.
            broker: address of the only broker from which it is deleted; by default all masters.
        """
        fields = DeleteGroup(group_name=group, clean_offset=clean_offsets)
        await self._at_masters(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields, broker=broker)

    async def topic_stats(self, topic: str) -> dict[MessageQueue, tuple[int, int]]:
        """Fetch the min and the max offset of each queue of a topic."""
        masters = await self.masters_of(topic)
        responses = await self._at_all(masters, RequestCode.GET_TOPIC_STATS_INFO, Topic(topic=topic))
        stats = _merge_tables(decode_body(response.body, TopicStats).offset_table for response in responses)
        return {queue: (offsets.min_offset, offsets.max_offset) for queue, offsets in stats.items()}

    async def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, tuple[int, int]]:
        """Fetch a group's consumer offset and the max offset of each queue.

        Args:
            group: the consumer group.
            topic: only the queues of this topic.
        """
        fields = GetConsumeStats(consumer_group=group, topic=topic)
        responses = await self._at_masters(RequestCode.GET_CONSUME_STATS, fields)
        stats = _merge_tables(decode_body(response.body, ConsumeStats).offset_table for response in responses)
        return {queue: (offsets.consumer_offset, offsets.broker_offset) for queue, offsets in stats.items()}

    async def consumer_connections(self, group: str) -> ConsumerConnection:
        """List the clients of a consumer group, from the first broker that has any.

        Raises:
            BrokerError: code 206: the group has no clients.
        """
        fields, failed = ConsumerGroupName(consumer_group=group), None
        for address in await self.masters():
            response = await self._cluster.request(
                address, RequestCode.GET_CONSUMER_CONNECTION_LIST, fields, also=(ResponseCode.CONSUMER_NOT_ONLINE,)
            )
            if response.code == ResponseCode.SUCCESS:
                return decode_body(response.body, ConsumerConnection)
            failed = BrokerError(address, response.code, response.remark)
        raise failed or NoRouteError(group, "no broker is registered")

    async def reset_offsets(self, group: str, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        """Reset a group's consumer offsets of a topic to a store time; its running consumers continue from there.

        Args:
            group: the consumer group.
            topic: the topic.
            timestamp_ms: the store time; -1 for the end.

        Returns:
            The new offset of each queue.

        Raises:
            OptionError: the time is in seconds or microseconds.
        """
        timestamp = check_time("timestamp_ms", timestamp_ms)
        fields = ResetOffset(group=group, topic=topic, timestamp=timestamp, is_force=True)
        masters = await self.masters_of(topic)
        responses = await self._at_all(masters, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        return _merge_tables(decode_body(response.body, OffsetsBody).offset_table for response in responses)

    async def view_message(self, offset_msg_id: str) -> ReceivedMessage:
        """Fetch a message by its offset message id, from the broker whose address is in the id.

        Raises:
            DecodeError: the text is no offset message id.
        """
        host, physical_offset = decode_message_id(offset_msg_id)
        fields = ViewMessage(offset=physical_offset)
        response = await self._cluster.request(host.text, RequestCode.VIEW_MESSAGE_BY_ID, fields)
        messages = decode_records(response.body)
        if not messages:
            raise BrokerError(host.text, ResponseCode.SYSTEM_ERROR, "the response has no message")
        return messages[0]

    async def message_at(self, queue: MessageQueue, offset: int) -> ReceivedMessage | None:
        """Fetch the message at a queue offset, or None."""
        await self._cluster.broker_of(queue)
        pulled = await self._puller.pull(queue, offset, subscription(queue.topic), waits=False, max_messages=1)
        return next((message for message in pulled.messages if message.queue_offset == offset), None)

    async def read(
        self, queue: MessageQueue, begin: int, end: int, tags: str = "*", *, group: str = _GROUP
    ) -> AsyncIterator[list[ReceivedMessage]]:
        """Read messages of a queue in portions; no offset is committed.

        Args:
            queue: the queue.
            begin: the first queue offset.
            end: the queue offset after the last message.
            tags: only messages with these tags.
            group: the group to pull as; it must exist at the brokers.

        Raises:
            OptionError: ``tags`` has no tag.
        """
        await self._cluster.broker_of(queue)
        data = subscription(queue.topic, tags)
        puller = Puller(self._cluster, group, ConsumerOptions(), sends_subscription=True)
        while begin < end:
            pulled = await puller.pull(queue, begin, data, waits=False)
            messages = [message for message in pulled.messages if message.queue_offset < end]
            if messages:
                yield messages
            if pulled.next_offset <= begin:  # no message is left
                return
            begin = pulled.next_offset

    async def query_by_key(
        self,
        topic: str,
        key: str,
        max_messages: int = 32,
        *,
        begin_ms: int = 0,
        end_ms: int = _END_OF_TIME_MS,
        route: str | None = None,
    ) -> list[ReceivedMessage]:
        """Find messages of a topic by a key, in the order of their store times.

        Args:
            topic: the topic.
            key: one of the messages' keys.
            max_messages: maximal number of messages.
            begin_ms: earliest store time.
            end_ms: latest store time.
            route: topic whose brokers are queried, by default ``topic``; may be a cluster's name.

        Raises:
            OptionError: a time is in seconds or microseconds.
        """
        begin, end = check_time("begin_ms", begin_ms), check_time("end_ms", end_ms)
        query = QueryMessage(topic=topic, key=key, max_num=max_messages, begin_timestamp=begin, end_timestamp=end)
        messages = await self._query_messages(query, route)
        return [message for message in messages if key in message.keys][:max_messages]

    async def query_by_uniq_key(self, topic: str, uniq_key: str, *, route: str | None = None) -> list[ReceivedMessage]:
        """Find messages of a topic by a unique key; several if a producer retried its send.

        Args:
            topic: the topic.
            uniq_key: the unique key.
            route: as in ``query_by_key``.
        """
        query = QueryMessage(topic=topic, key=uniq_key, max_num=32, begin_timestamp=0, end_timestamp=_END_OF_TIME_MS)
        messages = await self._query_messages(query, route, by_uniq_key=True)
        return [message for message in messages if message.properties.get(PROPERTY_UNIQ_KEY) == uniq_key]

    async def _query_messages(
        self, query: QueryMessage, route: str | None, *, by_uniq_key: bool = False
    ) -> list[ReceivedMessage]:
        """Query all brokers, which compare only hashes of keys; return messages in the order of their store times."""
        fields = write_fields(query) | {UNIQUE_KEY_QUERY: str(by_uniq_key).lower()}
        messages: list[ReceivedMessage] = []
        for broker_name in (await self._cluster.route(route or query.topic)).brokers:
            command = request(RequestCode.QUERY_MESSAGE, fields)
            address = self._cluster.address(broker_name, any_id=True)
            response = await self._cluster.send_command(address, command, 5.0, (ResponseCode.QUERY_NOT_FOUND,))
            if response.code == ResponseCode.SUCCESS:
                messages += decode_records(response.body, broker_name=broker_name)
        # Each broker's messages are in order, and the sort is stable for equal store times.
        return sorted(messages, key=lambda message: (message.store_timestamp_ms, message.physical_offset))

    async def _at_masters(
        self, code: RequestCode, fields: Fields | None, body: bytes = b"", *, broker: str | None = None
    ) -> list[RemotingCommand]:
        addresses = await self.masters() if broker is None else [broker]
        return await self._at_all(addresses, code, fields, body)

    async def _at_all(
        self, addresses: list[str], code: RequestCode, fields: Fields | None, body: bytes = b""
    ) -> list[RemotingCommand]:
        return await asyncio.gather(*(self._cluster.request(address, code, fields, body) for address in addresses))


def _merge_tables(tables: Iterable[Mapping[str, _T]]) -> dict[MessageQueue, _T]:
    """Merge the tables of several brokers, which are keyed by ``queue_key``."""
    return {parse_queue_key(key): value for table in tables for key, value in table.items()}
