"""Route of a topic for a client: writable queues, readable queues, the brokers' addresses.

Source: ``MQClientInstance#topicRouteData2TopicPublishInfo``, ``#topicRouteData2TopicSubscribeInfo``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from rmq_core.remoting.bodies.codec import MessageQueue
from rmq_core.remoting.bodies.routes import QueueData, TopicRouteData
from rmq_core.remoting.codes import MASTER_ID
from rmq_formats.codecs.properties import parse_decimal

_READABLE: Final = 4
_WRITABLE: Final = 2
MAX_QUEUES: Final = 1 << 16  # of a topic at a broker; a route with more is invalid


@dataclass(frozen=True, slots=True)
class Route:
    """Route of a topic: its queues, and the brokers of the queues.

    ``brokers`` has addresses by broker name and broker id.
    """

    write_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]
    brokers: dict[str, dict[int, str]]
    clusters: frozenset[str] = frozenset()


def route_of(topic: str, data: TopicRouteData) -> Route:
    """Build the route from a name server's response."""
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    parts = sorted(data.queue_datas, key=lambda part: part.broker_name)
    ordered = data.order_topic_conf if isinstance(data.order_topic_conf, str) else ""
    writable = [part for part in parts if part.perm & _WRITABLE and MASTER_ID in brokers.get(part.broker_name, {})]
    writes = _order_queues(topic, ordered) if ordered else _queues(topic, writable, "write_queue_nums")
    readable = [part for part in parts if part.perm & _READABLE and part.broker_name in brokers]
    clusters = frozenset(broker.cluster for broker in data.broker_datas)
    return Route(tuple(writes), tuple(_queues(topic, readable, "read_queue_nums")), brokers, clusters)


def _queues(topic: str, parts: list[QueueData], count: str) -> Iterator[MessageQueue]:
    for part in parts:
        for number in range(min(getattr(part, count), MAX_QUEUES)):
            yield MessageQueue(topic=topic, broker_name=part.broker_name, queue_id=number)


def _order_queues(topic: str, configuration: str) -> Iterator[MessageQueue]:
    """List the queues of an ordered topic, which remain without their broker: ``broker-a:4;broker-b:4``."""
    for part in configuration.split(";"):
        name, _, count = part.rpartition(":")
        if name:
            for number in range(min(parse_decimal(count, 0), MAX_QUEUES)):
                yield MessageQueue(topic=topic, broker_name=name, queue_id=number)


def template_data(data: TopicRouteData, max_queues: int) -> TopicRouteData:
    """Build the route of a topic that does not exist yet from that of its template topic."""
    parts = []
    for part in data.queue_datas:
        count = min(max_queues, part.read_queue_nums)
        parts.append(msgspec.structs.replace(part, read_queue_nums=count, write_queue_nums=count))
    return msgspec.structs.replace(data, queue_datas=parts)
