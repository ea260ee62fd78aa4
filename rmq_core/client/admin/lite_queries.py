"""Requests about lite topics (5.5) to a single broker by its address.

Source: ``MQClientAPIImpl`` of 5.5.
"""

from rmq_core.client.cluster.cluster import Cluster
from rmq_core.remoting.bodies import decode_body
from rmq_core.remoting.bodies.lite import BrokerLiteInfo, LiteClientInfo, LiteGroupInfo, LiteTopicInfo, ParentTopicInfo
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.lite_requests import LiteClientName, LiteDispatch, LiteGroupName, LiteTopicName
from rmq_core.remoting.requests import Topic


class LiteInquiries:
    """Requests about lite topics; each method expects ``host:port`` first, raises BrokerError or TransportError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def of_broker(self, address: str) -> BrokerLiteInfo:
        """Fetch how many lite topics, subscriptions and the like there are."""
        return decode_body(
            (await self._cluster.request(address, RequestCode.GET_BROKER_LITE_INFO)).body, BrokerLiteInfo
        )

    async def of_parent(self, address: str, parent: str) -> ParentTopicInfo:
        """Fetch the number of a topic's children, and the groups that are bound to the topic."""
        answer = await self._cluster.request(address, RequestCode.GET_PARENT_TOPIC_INFO, Topic(topic=parent))
        return decode_body(answer.body, ParentTopicInfo)

    async def of_topic(self, address: str, parent: str, child: str) -> LiteTopicInfo:
        """Fetch the offsets and subscribers of a child."""
        fields = LiteTopicName(parent_topic=parent, lite_topic=child)
        answer = await self._cluster.request(address, RequestCode.GET_LITE_TOPIC_INFO, fields)
        return decode_body(answer.body, LiteTopicInfo)

    async def of_client(self, address: str, parent: str, group: str, client_id: str) -> LiteClientInfo:
        """Fetch the subscriptions of a client."""
        fields = LiteClientName(parent_topic=parent, group=group, client_id=client_id)
        answer = await self._cluster.request(address, RequestCode.GET_LITE_CLIENT_INFO, fields)
        return decode_body(answer.body, LiteClientInfo)

    async def of_group(self, address: str, group: str, child: str = "", most: int = 20) -> LiteGroupInfo:
        """Fetch the lag of a group: in a child, or in all children with the ``most`` worst."""
        fields = LiteGroupName(group=group, lite_topic=child, top_k=most)
        answer = await self._cluster.request(address, RequestCode.GET_LITE_GROUP_INFO, fields)
        return decode_body(answer.body, LiteGroupInfo)

    async def dispatch(self, address: str, group: str, client_id: str = "") -> None:
        """Trigger the dispatch of messages for a client, or for all clients of a group."""
        fields = LiteDispatch(group=group, client_id=client_id)
        await self._cluster.request(address, RequestCode.TRIGGER_LITE_DISPATCH, fields)
