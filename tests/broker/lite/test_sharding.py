"""Which broker has a lite topic: as Java's String#hashCode and Guava's Hashing#consistentHash say, which were asked."""

from collections.abc import Sequence

import pytest

from rmq_core.broker.lite.metadata import LiteSharding
from rmq_core.broker.lite.subscriptions import LiteSubscriptionCtlProcessor
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.routes import TopicRouteData
from rmq_formats.codecs.hashing import consistent_hash, java_string_hash
from tests.broker.conftest import Asker
from tests.broker.lite.conftest import PARENT, Watcher, send

BUCKETS = (1, 2, 3, 8, 16, 100, 1000)
OF_GUAVA = [
    ("", 0, (0, 0, 0, 0, 0, 0, 0)),
    ("a", 97, (0, 0, 0, 0, 0, 29, 346)),
    ("device-000123", -80202407, (0, 0, 0, 6, 6, 81, 81)),
    ("x_Y-9", 113739646, (0, 0, 0, 7, 7, 7, 494)),
    ("\u00fcber\u4e2d", 235767418, (0, 1, 1, 4, 14, 95, 393)),
    ("zzzzzzzzzzzzzzzz", -509494784, (0, 1, 1, 3, 10, 64, 64)),
    ("d1", 3149, (0, 1, 1, 1, 10, 85, 751)),
]


@pytest.mark.parametrize(("text", "number", "buckets"), OF_GUAVA)
def test_hashes_are_java_s(text: str, number: int, buckets: Sequence[int]) -> None:
    assert java_string_hash(text) == number
    assert tuple(consistent_hash(number, count) for count in BUCKETS) == tuple(buckets)


ROUTE = b"""{"brokerDatas":[
    {"brokerAddrs":{"0":"h:2"},"brokerName":"broker-b","cluster":"c"},
    {"brokerAddrs":{"0":"h:1"},"brokerName":"broker-a","cluster":"c"},
    {"brokerAddrs":{"1":"h:3"},"brokerName":"broker-c","cluster":"c"}],"queueDatas":[
    {"brokerName":"broker-b","perm":6,"readQueueNums":1,"topicSysFlag":0,"writeQueueNums":1},
    {"brokerName":"broker-c","perm":6,"readQueueNums":9,"topicSysFlag":0,"writeQueueNums":9},
    {"brokerName":"broker-a","perm":6,"readQueueNums":1,"topicSysFlag":0,"writeQueueNums":1}]}"""


async def test_a_child_is_of_the_broker_that_its_hash_says(lite: Asker) -> None:
    """Of two write queues; the third broker has no master."""

    async def route(_: str) -> TopicRouteData:
        return decode_body(ROUTE, TopicRouteData)

    sharding = LiteSharding(lite.broker.state, route)
    brokers = await sharding.brokers_of(PARENT)
    assert list(brokers) == ["broker-a", "broker-b"]
    assert [sharding.is_here(child, brokers) for child, _, _ in OF_GUAVA] == [True] * 4 + [False] * 3
    assert sharding.is_here("d1", ())


async def test_children_of_other_brokers_are_not_subscribed_unless_they_are_here(lite: Asker) -> None:
    """Else each broker would keep the subscriptions of the whole cluster."""

    async def route(_: str) -> TopicRouteData:
        return decode_body(ROUTE, TopicRouteData)

    state, parts = lite.broker.state, lite.broker._lite
    control = LiteSubscriptionCtlProcessor(state, parts._groups, parts._subscriptions, LiteSharding(state, route))
    lite.broker._server._handlers.update(control.handlers())
    watcher = Watcher(lite)
    await send(lite, "zzzzzzzzzzzzzzzz", b"came before")
    await watcher.add("a", "d1", "zzzzzzzzzzzzzzzz")
    assert set(parts._registry.clients["c1"].queues) == {"%LMQ%$Devices$a", "%LMQ%$Devices$zzzzzzzzzzzzzzzz"}
    assert [one.body for one in await watcher.pop()] == [b"came before"]
