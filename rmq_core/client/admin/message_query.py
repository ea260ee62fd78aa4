"""Query of a topic's messages by a key, at all its brokers.

Source: ``MQAdminImpl#queryMessage``.
"""

from rmq_core.client.cluster.cluster import Cluster
from rmq_core.client.message import ReceivedMessage
from rmq_core.client.pull.record_decoder import decode_records
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.fields import write_fields
from rmq_core.remoting.header import request
from rmq_core.remoting.requests import QueryMessage


async def query_messages(
    cluster: Cluster, query: QueryMessage, route: str | None = None, *, by_uniq_key: bool = False
) -> list[ReceivedMessage]:
    """Query all brokers of a topic (code 12), which compare only hashes of keys: a result may have another key.

    Args:
        cluster: the client.
        query: topic, key and times.
        route: the topic whose brokers are asked, if it is another.
        by_uniq_key: whether the key is a unique key.

    Returns:
        The messages in the order of their store times.
    """
    fields = write_fields(query) | {"_UNIQUE_KEY_QUERY": str(by_uniq_key).lower()}
    messages: list[ReceivedMessage] = []
    for broker_name in (await cluster.route(route or query.topic)).brokers:
        command = request(RequestCode.QUERY_MESSAGE, fields)
        address = cluster.address(broker_name, any_id=True)
        answer = await cluster.send_command(address, command, 5.0, (ResponseCode.QUERY_NOT_FOUND,))
        if answer.code == ResponseCode.SUCCESS:
            messages += decode_records(answer.body, broker_name=broker_name)
    # Each broker gives its own in order, and many may be of one millisecond.
    return sorted(messages, key=lambda message: (message.store_timestamp_ms, message.physical_offset))
