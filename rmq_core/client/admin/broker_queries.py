"""Administration requests to a single broker by its address, also about users and policies (codes 3001 to 3010).

Source: ``MQClientAPIImpl``.
"""

from typing import Final

from rmq_core.client.cluster import Cluster
from rmq_core.client.options import check_time
from rmq_core.remoting.bodies.clients import (
    ConsumeDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    GroupList,
    ProducerConnection,
)
from rmq_core.remoting.bodies.codec import decode_body, encode_body
from rmq_core.remoting.bodies.configs import AclInfo, OffsetTable, SubscriptionGroups, TopicConfigs, UserInfo
from rmq_core.remoting.bodies.pop import BrokerLiteInfo, LiteClientInfo, LiteGroupInfo, LiteTopicInfo, ParentTopicInfo
from rmq_core.remoting.bodies.routes import TopicList
from rmq_core.remoting.bodies.stats import BrokerConsumeStats, BrokerStats, ConsumeStats, OffsetsBody, TopicStats
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.fields import Fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.pop import LiteClientName, LiteDispatch, LiteGroupName, LiteTopicName
from rmq_core.remoting.requests import (
    AccessFields,
    CloneGroupOffset,
    ConsumeDirectly,
    ConsumerGroupName,
    ConsumeStatsInBroker,
    ConsumeStatsOf,
    ProducerGroup,
    ResetOffset,
    RunningInfo,
    Topic,
    ViewStats,
)
from rmq_formats.codecs.java_properties import parse_properties

_DIRECTLY_S: Final = 20.0  # the broker waits ten seconds for the consumer


class LiteInquiries:
    """Requests about lite topics; each method expects ``host:port`` first, raises BrokerError or TransportError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def of_broker(self, address: str) -> BrokerLiteInfo:
        """Fetch the number of lite topics, subscriptions and offsets of a broker."""
        return decode_body(
            (await self._cluster.request(address, RequestCode.GET_BROKER_LITE_INFO)).body, BrokerLiteInfo
        )

    async def of_parent(self, address: str, parent: str) -> ParentTopicInfo:
        """Fetch the number of a topic's children, and the groups that are bound to the topic."""
        response = await self._cluster.request(address, RequestCode.GET_PARENT_TOPIC_INFO, Topic(topic=parent))
        return decode_body(response.body, ParentTopicInfo)

    async def of_topic(self, address: str, parent: str, child: str) -> LiteTopicInfo:
        """Fetch the offsets and subscribers of a child."""
        fields = LiteTopicName(parent_topic=parent, lite_topic=child)
        response = await self._cluster.request(address, RequestCode.GET_LITE_TOPIC_INFO, fields)
        return decode_body(response.body, LiteTopicInfo)

    async def of_client(self, address: str, parent: str, group: str, client_id: str) -> LiteClientInfo:
        """Fetch the subscriptions of a client."""
        fields = LiteClientName(parent_topic=parent, group=group, client_id=client_id)
        response = await self._cluster.request(address, RequestCode.GET_LITE_CLIENT_INFO, fields)
        return decode_body(response.body, LiteClientInfo)

    async def of_group(self, address: str, group: str, child: str = "", most: int = 20) -> LiteGroupInfo:
        """Fetch the lag of a group: in a child, or in all children with the ``most`` worst."""
        fields = LiteGroupName(group=group, lite_topic=child, top_k=most)
        response = await self._cluster.request(address, RequestCode.GET_LITE_GROUP_INFO, fields)
        return decode_body(response.body, LiteGroupInfo)

    async def dispatch(self, address: str, group: str, client_id: str = "") -> None:
        """Trigger the dispatch of messages for a client, or for all clients of a group."""
        fields = LiteDispatch(group=group, client_id=client_id)
        await self._cluster.request(address, RequestCode.TRIGGER_LITE_DISPATCH, fields)


class BrokerInquiries:
    """Administration requests; each method expects ``host:port`` first, raises BrokerError or TransportError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.lite = LiteInquiries(cluster)

    async def config(self, address: str) -> dict[str, str]:
        """Fetch the broker's settings, by their names in ``broker.conf``."""
        response = await self._cluster.request(address, RequestCode.GET_BROKER_CONFIG)
        return parse_properties(str(response.body, "utf-8", "replace"))

    async def topics(self, address: str) -> TopicConfigs:
        """Fetch the topics of a broker."""
        return decode_body((await self._cluster.request(address, RequestCode.GET_ALL_TOPIC_CONFIG)).body, TopicConfigs)

    async def system_topics(self, address: str) -> list[str]:
        """List the system topics of a broker."""
        response = await self._cluster.request(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        return decode_body(response.body, TopicList).topic_list

    async def groups(self, address: str) -> SubscriptionGroups:
        """Fetch the consumer groups of a broker."""
        response = await self._cluster.request(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return decode_body(response.body, SubscriptionGroups)

    async def topic_stats(self, address: str, topic: str) -> TopicStats:
        """Fetch the min and max offsets of a topic's queues on a broker, and the store times of their last messages."""
        response = await self._cluster.request(address, RequestCode.GET_TOPIC_STATS_INFO, Topic(topic=topic))
        return decode_body(response.body, TopicStats)

    async def groups_of(self, address: str, topic: str) -> list[str]:
        """List the groups that consume a topic."""
        response = await self._cluster.request(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, Topic(topic=topic))
        return decode_body(response.body, GroupList).group_list

    async def consume_stats(self, address: str, group: str, topic: str | None = None) -> ConsumeStats:
        """Fetch a group's consumer offsets in the broker's queues, or only in a topic's, and its consume rate."""
        fields = ConsumeStatsOf(consumer_group=group, topic=topic)
        response = await self._cluster.request(address, RequestCode.GET_CONSUME_STATS, fields)
        return decode_body(response.body, ConsumeStats)

    async def consumer_offsets(self, address: str) -> OffsetTable:
        """Fetch the table of consumer offsets, as slaves do; the table lacks queues without a committed offset."""
        return decode_body(
            (await self._cluster.request(address, RequestCode.GET_ALL_CONSUMER_OFFSET)).body, OffsetTable
        )

    async def all_consume_stats(
        self, address: str, *, in_order: bool = False, timeout_s: float | None = None
    ) -> BrokerConsumeStats:
        """Fetch the consumer offsets of all groups.

        Args:
            in_order: only groups of ordered topics.
            timeout_s: for the response; by default that of the options.
        """
        fields = ConsumeStatsInBroker(is_order=in_order)
        response = await self._cluster.request(
            address, RequestCode.GET_BROKER_CONSUME_STATS, fields, timeout_s=timeout_s
        )
        return decode_body(response.body, BrokerConsumeStats)

    async def consumers(self, address: str, group: str) -> ConsumerConnection | None:
        """Return the clients of a consumer group; None without one."""
        fields = ConsumerGroupName(consumer_group=group)
        response = await self._or_none(
            address, RequestCode.GET_CONSUMER_CONNECTION_LIST, fields, ResponseCode.CONSUMER_NOT_ONLINE
        )
        return None if response is None else decode_body(response.body, ConsumerConnection)

    async def producers(self, address: str, group: str) -> ProducerConnection | None:
        """List the clients of a producer group; None without one."""
        fields = ProducerGroup(producer_group=group)
        response = await self._or_none(
            address, RequestCode.GET_PRODUCER_CONNECTION_LIST, fields, ResponseCode.SYSTEM_ERROR
        )
        return None if response is None else decode_body(response.body, ProducerConnection)

    async def stats(self, address: str, name: str, key: str) -> BrokerStats | None:
        """Fetch a counter of the broker; None for a counter without a value.

        Args:
            name: TOPIC_PUT_NUMS, GROUP_GET_NUMS, …
            key: ``topic``, or ``topic@group``.
        """
        fields = ViewStats(stats_name=name, stats_key=key)
        response = await self._or_none(address, RequestCode.VIEW_BROKER_STATS_DATA, fields, ResponseCode.SYSTEM_ERROR)
        return None if response is None else decode_body(response.body, BrokerStats)

    async def running_info(self, address: str, group: str, client_id: str) -> ConsumerRunningInfo:
        """Fetch the running info of a member of a consumer group, through the broker."""
        fields = RunningInfo(consumer_group=group, client_id=client_id)
        response = await self._cluster.request(address, RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        return decode_body(response.body, ConsumerRunningInfo)

    async def consume_directly(
        self, address: str, group: str, client_id: str, topic: str, offset_msg_id: str
    ) -> ConsumeDirectlyResult:
        """Request that a member of a consumer group consumes one message at once; return its result."""
        fields = ConsumeDirectly(consumer_group=group, client_id=client_id, topic=topic, msg_id=offset_msg_id)
        response = await self._cluster.request(
            address, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, timeout_s=_DIRECTLY_S
        )
        return decode_body(response.body, ConsumeDirectlyResult)

    async def clone_offsets(self, address: str, source: str, target: str, topic: str, *, offline: bool) -> None:
        """Copy the consumer offsets of a group to another; ``offline`` even if no member subscribes to the topic."""
        fields = CloneGroupOffset(src_group=source, dest_group=target, topic=topic, offline=offline)
        await self._cluster.request(address, RequestCode.CLONE_GROUP_OFFSET, fields)

    async def reset_offsets(
        self,
        address: str,
        group: str,
        topic: str,
        *,
        timestamp_ms: int = -1,
        queue_id: int = -1,
        offset: int | None = None,
    ) -> dict[str, int]:
        """Reset a group's consumer offsets; its running consumers continue from there.

        Args:
            timestamp_ms: the store time to reset to; -1 for the end.
            queue_id: reset only this queue; -1 for all.
            offset: the queue offset to set instead of a time.

        Returns:
            The offsets, by ``queue_key``.

        Raises:
            OptionError: the time is in seconds or microseconds.
        """
        timestamp = check_time("timestamp_ms", timestamp_ms)
        fields = ResetOffset(
            group=group, topic=topic, queue_id=queue_id, offset=offset, timestamp=timestamp, is_force=True
        )
        response = await self._cluster.request(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        return decode_body(response.body, OffsetsBody).offset_table

    async def _or_none(
        self, address: str, code: RequestCode, fields: Fields, none: ResponseCode
    ) -> RemotingCommand | None:
        response = await self._cluster.request(address, code, fields, also=(none,))
        return None if response.code == none else response


class UserRequests:
    """Requests about users; each method expects ``host:port`` first, raises BrokerError or TransportError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create(self, address: str, user: UserInfo) -> None:
        """Create a user."""
        await self._request(address, RequestCode.AUTH_CREATE_USER, _username_field(user), encode_body(user))

    async def update(self, address: str, user: UserInfo) -> None:
        """Change those members of a user that are set."""
        await self._request(address, RequestCode.AUTH_UPDATE_USER, _username_field(user), encode_body(user))

    async def delete(self, address: str, name: str) -> None:
        """Delete a user with its policies, if the user exists."""
        await self._request(address, RequestCode.AUTH_DELETE_USER, AccessFields(username=name))

    async def get(self, address: str, name: str) -> UserInfo | None:
        """Fetch a user; None without one."""
        body = await self._request(address, RequestCode.AUTH_GET_USER, AccessFields(username=name))
        return decode_body(body, UserInfo) if body else None

    async def find(self, address: str, part: str = "") -> list[UserInfo]:
        """Fetch the users whose names contain a text, in order."""
        body = await self._request(address, RequestCode.AUTH_LIST_USER, AccessFields(filter=part))
        return decode_body(body, list[UserInfo]) if body else []

    async def put_acl(self, address: str, acl: AclInfo, *, is_new: bool) -> None:
        """Add entries to a user's policies, or replace entries of the same resource."""
        code = RequestCode.AUTH_CREATE_ACL if is_new else RequestCode.AUTH_UPDATE_ACL
        await self._request(address, code, AccessFields(subject=str(acl.subject)), encode_body(acl))

    async def delete_acl(self, address: str, subject: str, resource: str = "", policy_type: str = "") -> None:
        """Delete a user's entry for a resource; without a resource, all policies."""
        fields = AccessFields(subject=subject, resource=resource or None, policy_type=policy_type or None)
        await self._request(address, RequestCode.AUTH_DELETE_ACL, fields)

    async def get_acl(self, address: str, subject: str) -> AclInfo | None:
        """Fetch a user's policies; None without any."""
        body = await self._request(address, RequestCode.AUTH_GET_ACL, AccessFields(subject=subject))
        return decode_body(body, AclInfo) if body else None

    async def find_acls(self, address: str, subject: str = "", resource: str = "") -> list[AclInfo]:
        """Fetch the policies whose subjects and resources contain these texts, in order."""
        fields = AccessFields(subject_filter=subject, resource_filter=resource)
        body = await self._request(address, RequestCode.AUTH_LIST_ACL, fields)
        return decode_body(body, list[AclInfo]) if body else []

    async def _request(self, address: str, code: RequestCode, fields: AccessFields, body: bytes = b"") -> bytes:
        return bytes((await self._cluster.request(address, code, fields, body)).body)


def _username_field(user: UserInfo) -> AccessFields:
    return AccessFields(username=str(user.username))
