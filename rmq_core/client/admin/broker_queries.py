"""Administration requests to a single broker by its address, also about users and policies (codes 3001 to 3010).

Source: ``MQClientAPIImpl``.
"""

from typing import Final, TypeVar

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
from rmq_core.remoting.pop import LiteClientName, LiteDispatch, LiteGroupName, LiteTopicName
from rmq_core.remoting.requests import (
    AccessFields,
    CloneGroupOffset,
    ConsumeDirectly,
    ConsumerGroupName,
    ConsumeStatsInBroker,
    GetConsumeStats,
    ProducerGroup,
    ResetOffset,
    RunningInfo,
    Topic,
    ViewStats,
)
from rmq_formats.codecs.java_properties import parse_properties

_T = TypeVar("_T")
_DIRECTLY_S: Final = 20.0  # the broker waits ten seconds for the consumer


class _BrokerRequests:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._fetch = cluster.request_body


class LiteInquiries(_BrokerRequests):
    """Requests about lite topics; each method expects ``host:port`` first, raises BrokerError or TransportError."""

    async def of_broker(self, address: str) -> BrokerLiteInfo:
        """Fetch the number of lite topics, subscriptions and offsets of a broker."""
        return await self._fetch(address, RequestCode.GET_BROKER_LITE_INFO, BrokerLiteInfo)

    async def of_parent(self, address: str, parent: str) -> ParentTopicInfo:
        """Fetch the number of a topic's children, and the groups that are bound to the topic."""
        return await self._fetch(address, RequestCode.GET_PARENT_TOPIC_INFO, ParentTopicInfo, Topic(topic=parent))

    async def of_topic(self, address: str, parent: str, child: str) -> LiteTopicInfo:
        """Fetch the offsets and subscribers of a child."""
        fields = LiteTopicName(parent_topic=parent, lite_topic=child)
        return await self._fetch(address, RequestCode.GET_LITE_TOPIC_INFO, LiteTopicInfo, fields)

    async def of_client(self, address: str, parent: str, group: str, client_id: str) -> LiteClientInfo:
        """Fetch the subscriptions of a client."""
        fields = LiteClientName(parent_topic=parent, group=group, client_id=client_id)
        return await self._fetch(address, RequestCode.GET_LITE_CLIENT_INFO, LiteClientInfo, fields)

    async def of_group(self, address: str, group: str, child: str = "", most: int = 20) -> LiteGroupInfo:
        """Fetch the lag of a group: in a child, or in all children with the ``most`` worst."""
        fields = LiteGroupName(group=group, lite_topic=child, top_k=most)
        return await self._fetch(address, RequestCode.GET_LITE_GROUP_INFO, LiteGroupInfo, fields)

    async def dispatch(self, address: str, group: str, client_id: str = "") -> None:
        """Trigger the dispatch of messages for a client, or for all clients of a group."""
        fields = LiteDispatch(group=group, client_id=client_id)
        await self._cluster.request(address, RequestCode.TRIGGER_LITE_DISPATCH, fields)


class BrokerInquiries(_BrokerRequests):
    """Administration requests; each method expects ``host:port`` first, raises BrokerError or TransportError."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.lite = LiteInquiries(cluster)

    async def config(self, address: str) -> dict[str, str]:
        """Fetch the broker's settings, by their names in ``broker.conf``."""
        response = await self._cluster.request(address, RequestCode.GET_BROKER_CONFIG)
        return parse_properties(str(response.body, "utf-8", "replace"))

    async def topics(self, address: str) -> TopicConfigs:
        """Fetch the topics of a broker."""
        return await self._fetch(address, RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigs)

    async def system_topics(self, address: str) -> list[str]:
        """List the system topics of a broker."""
        return (await self._fetch(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, TopicList)).topic_list

    async def groups(self, address: str) -> SubscriptionGroups:
        """Fetch the consumer groups of a broker."""
        return await self._fetch(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroups)

    async def topic_stats(self, address: str, topic: str) -> TopicStats:
        """Fetch the min and max offsets of a topic's queues on a broker, and the store times of their last messages."""
        return await self._fetch(address, RequestCode.GET_TOPIC_STATS_INFO, TopicStats, Topic(topic=topic))

    async def groups_of(self, address: str, topic: str) -> list[str]:
        """List the groups that consume a topic."""
        return (
            await self._fetch(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, GroupList, Topic(topic=topic))
        ).group_list

    async def consume_stats(self, address: str, group: str, topic: str | None = None) -> ConsumeStats:
        """Fetch a group's consumer offsets in the broker's queues, or only in a topic's, and its consume rate."""
        fields = GetConsumeStats(consumer_group=group, topic=topic)
        return await self._fetch(address, RequestCode.GET_CONSUME_STATS, ConsumeStats, fields)

    async def consumer_offsets(self, address: str) -> OffsetTable:
        """Fetch the table of consumer offsets, as slaves do; the table lacks queues without a committed offset."""
        return await self._fetch(address, RequestCode.GET_ALL_CONSUMER_OFFSET, OffsetTable)

    async def all_consume_stats(
        self, address: str, *, in_order: bool = False, timeout_s: float | None = None
    ) -> BrokerConsumeStats:
        """Fetch the consumer offsets of all groups; with ``in_order`` only groups of ordered topics."""
        fields = ConsumeStatsInBroker(is_order=in_order)
        return await self._fetch(
            address, RequestCode.GET_BROKER_CONSUME_STATS, BrokerConsumeStats, fields, timeout_s=timeout_s
        )

    async def consumers(self, address: str, group: str) -> ConsumerConnection | None:
        """Return the clients of a consumer group; None without one."""
        fields = ConsumerGroupName(consumer_group=group)
        code, not_found = RequestCode.GET_CONSUMER_CONNECTION_LIST, ResponseCode.CONSUMER_NOT_ONLINE
        return await self._find(address, code, ConsumerConnection, fields, not_found)

    async def producers(self, address: str, group: str) -> ProducerConnection | None:
        """List the clients of a producer group; None without one."""
        fields = ProducerGroup(producer_group=group)
        return await self._find(
            address, RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerConnection, fields, ResponseCode.SYSTEM_ERROR
        )

    async def stats(self, address: str, name: str, key: str) -> BrokerStats | None:
        """Fetch a counter of the broker; None for a counter without a value.

        ``name`` is TOPIC_PUT_NUMS, GROUP_GET_NUMS, …; ``key`` is ``topic``, or ``topic@group``.
        """
        fields = ViewStats(stats_name=name, stats_key=key)
        return await self._find(
            address, RequestCode.VIEW_BROKER_STATS_DATA, BrokerStats, fields, ResponseCode.SYSTEM_ERROR
        )

    async def running_info(self, address: str, group: str, client_id: str) -> ConsumerRunningInfo:
        """Fetch the running info of a member of a consumer group, through the broker."""
        fields = RunningInfo(consumer_group=group, client_id=client_id)
        return await self._fetch(address, RequestCode.GET_CONSUMER_RUNNING_INFO, ConsumerRunningInfo, fields)

    async def consume_directly(
        self, address: str, group: str, client_id: str, topic: str, offset_msg_id: str
    ) -> ConsumeDirectlyResult:
        """Request that a member of a consumer group consumes one message at once; return its result."""
        fields = ConsumeDirectly(consumer_group=group, client_id=client_id, topic=topic, msg_id=offset_msg_id)
        return await self._fetch(
            address, RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeDirectlyResult, fields, timeout_s=_DIRECTLY_S
        )

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

        ``timestamp_ms`` is the store time to reset to, -1 for the end; ``offset`` replaces it. ``queue_id`` -1 means
        all queues.

        Return the offsets by ``queue_key``. Raises OptionError for a time in seconds or microseconds.
        """
        timestamp = check_time("timestamp_ms", timestamp_ms)
        fields = ResetOffset(
            group=group, topic=topic, queue_id=queue_id, offset=offset, timestamp=timestamp, is_force=True
        )
        return (await self._fetch(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, OffsetsBody, fields)).offset_table

    async def _find(
        self, address: str, code: RequestCode, kind: type[_T], fields: Fields, not_found: ResponseCode
    ) -> _T | None:
        """Send a request and return the decoded body of its answer; None for the response code ``not_found``."""
        response = await self._cluster.request(address, code, fields, also=(not_found,))
        return None if response.code == not_found else decode_body(response.body, kind)


class UserRequests(_BrokerRequests):
    """Requests about users; each method expects ``host:port`` first, raises BrokerError or TransportError."""

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
