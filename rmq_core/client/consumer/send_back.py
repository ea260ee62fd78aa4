"""Send-back of failed messages to their broker, which retries them later or makes them dead letters.

Source: ``DefaultMQPushConsumerImpl#sendMessageBack``.
"""

import logging
from collections.abc import Callable
from typing import Final

from rmq_core.client.cluster import Cluster
from rmq_core.client.errors import NoRouteError
from rmq_core.client.message import (
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_RECONSUME_TIME,
    RETRY_TOPIC_PREFIX,
    Message,
    ReceivedMessage,
)
from rmq_core.client.options import ProducerOptions
from rmq_core.client.producer.packet import Packer
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.errors import RemotingError
from rmq_core.remoting.requests import SendBackFields
from rmq_formats.codecs.layout import (
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_WAIT,
)

log = logging.getLogger("rmq.client")
MAX_INT: Final = (1 << 31) - 1
_TIMEOUT_S: Final = 5.0
_INNER_GROUP: Final = "CLIENT_INNER_PRODUCER"
_FIRST_LEVEL: Final = 3  # delay level of 10 s
_PROPERTIES_NOT_COPIED: Final = frozenset(
    [PROPERTY_TRANSACTION_PREPARED, PROPERTY_DELAY, PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_WAIT]
)


class SendBack:
    """Sender of failed messages back to their broker."""

    def __init__(self, cluster: Cluster, group: str, max_reconsume_times: int, clock_ms: Callable[[], int]) -> None:
        """Create the sender of a group; after ``max_reconsume_times`` failures a message is a dead letter."""
        self._cluster = cluster
        self._group = group
        self._max_reconsume_times = max_reconsume_times
        self._packer = Packer(_INNER_GROUP, ProducerOptions(clock_ms=clock_ms))

    async def send(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Send a message back with a delay level of ``Later``, or to the retry topic. Raises RemotingError."""
        fields = SendBackFields(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=self._max_reconsume_times,
        )
        try:
            address = self._cluster.address(message.queue.broker_name)
            await self._cluster.request(address, RequestCode.CONSUMER_SEND_MSG_BACK, fields, timeout_s=_TIMEOUT_S)
        except RemotingError as error:
            log.warning("cannot send back %s of %s, sending a copy: %s", message.msg_id, message.topic, error)
            await self.send_copy(message)

    async def send_copy(self, message: ReceivedMessage) -> None:
        """Send a copy of a message to the retry topic, as a producer does. Raises RemotingError."""
        old = message.properties
        copied_properties = {name: value for name, value in old.items() if name not in _PROPERTIES_NOT_COPIED}
        copy = Message(
            RETRY_TOPIC_PREFIX + self._group,
            message.body,
            tags=old.get(PROPERTY_TAGS),
            keys=old.get(PROPERTY_KEYS, ""),
            flag=message.flag,
            delay_level=_FIRST_LEVEL + message.reconsume_times,
            properties=copied_properties
            | {
                PROPERTY_ORIGIN_MESSAGE_ID: old.get(PROPERTY_ORIGIN_MESSAGE_ID) or message.msg_id,
                PROPERTY_RETRY_TOPIC: message.topic,
                PROPERTY_RECONSUME_TIME: str(message.reconsume_times + 1),
                PROPERTY_MAX_RECONSUME_TIMES: str(self._max_reconsume_times),
            },
        )
        packet = self._packer.single(copy)
        route = await self._cluster.route(copy.topic)
        same_broker = [queue for queue in route.write_queues if queue.broker_name == message.queue.broker_name]
        if not route.write_queues:
            raise NoRouteError(copy.topic, "no queue of this topic can be written to")
        queue = (same_broker or route.write_queues)[0]
        address = self._cluster.address(queue.broker_name)
        await self._cluster.send_command(address, packet.request(queue.queue_id), _TIMEOUT_S)
