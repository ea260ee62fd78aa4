"""Name servers and brokers that answer as a test says, and messages as they come from a pull."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from rmq_core.client import MessageQueue, ReceivedMessage
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.bodies.routes import BrokerData, QueueData, TopicRouteData
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.server import RemotingServer


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What users get."""
    return {"uvloop": uvloop.new_event_loop}


def received(offset: int, body: bytes = b"body", size: int = 100, reconsume_times: int = 0) -> ReceivedMessage:
    """A message of the queue ``QUEUE``."""
    return ReceivedMessage(
        QUEUE,
        QUEUE.topic,
        body,
        offset,
        offset * 1000,
        size,
        0,
        0,
        1,
        2,
        reconsume_times,
        0,
        b"UNIQ_KEY\x01%d\x02" % offset,
        b"\x7f\x00\x00\x01\x00\x00\x00\x01",
        b"\x7f\x00\x00\x01\x00\x00\x00\x02",
    )


QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=0)


class FakeBroker:
    """A broker that answers each request as its test says, and remembers what came.

    Attributes:
        answer: takes a request; gives the answer.
        requests: what came, heartbeats left out.
    """

    def __init__(self) -> None:
        self.answer: Handler = sent
        self.requests: list[RemotingCommand] = []
        self.heartbeats = 0

    def handle(self, command: RemotingCommand, connection: Connection) -> object:
        """Any request."""
        command.ext_fields  # noqa: B018 # its bytes are the connection's
        self.requests.append(command)
        return self.answer(command, connection)

    def heartbeat(self, command: RemotingCommand, _: Connection) -> RemotingCommand:
        """A heartbeat."""
        self.heartbeats += 1
        return command.response()


def sent(command: RemotingCommand, _: Connection | None = None) -> RemotingCommand:
    """A message was stored."""
    queue_id = command.ext_fields.get("e", "0")
    return command.response(0, None, {"msgId": "ID", "queueId": queue_id, "queueOffset": "5"})


class FakeCluster:
    """A name server and some brokers with two queues of each topic.

    Attributes:
        namesrv: the name server's address.
        brokers: by name.
        order_conf: of all topics.
        topics: those that exist; None are all.
        addresses: of the masters, by name.
        slaves: addresses of slaves, by name.
    """

    def __init__(self) -> None:
        self.namesrv = ""
        self.brokers: dict[str, FakeBroker] = {}
        self.order_conf: str | None = None
        self.topics: set[str] | None = None
        self.addresses: dict[str, str] = {}
        self.slaves: dict[str, str] = {}
        self.servers: dict[str, RemotingServer] = {}

    def route(self, command: RemotingCommand, _: Connection) -> RemotingCommand:
        """Code 105."""
        topic = command.ext_fields["topic"]
        if self.topics is not None and topic not in self.topics:
            return command.response(17, f"No topic route info in name server for the topic: {topic}")
        data = TopicRouteData(
            broker_datas=[
                BrokerData(broker_name=name, broker_addrs={0: address} | self._slave(name))
                for name, address in self.addresses.items()
            ],
            queue_datas=[
                QueueData(broker_name=name, perm=6, read_queue_nums=2, write_queue_nums=2) for name in self.addresses
            ],
        )
        if self.order_conf is not None:
            data = TopicRouteData(
                broker_datas=data.broker_datas, queue_datas=data.queue_datas, order_topic_conf=self.order_conf
            )
        return command.response(body=encode_body(data))

    def _slave(self, name: str) -> dict[int, str]:
        return {1: self.slaves[name]} if name in self.slaves else {}


@pytest.fixture
async def fakes() -> AsyncIterator[FakeCluster]:
    """A name server and the brokers a and b."""
    cluster = FakeCluster()
    for name in ("a", "b"):
        broker = cluster.brokers[name] = FakeBroker()
        codes = [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.PULL_MESSAGE,
                 RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.UNREGISTER_CLIENT,
                 RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.QUERY_CONSUMER_OFFSET,
                 RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                 RequestCode.POP_MESSAGE, RequestCode.GET_TOPIC_CONFIG,
                 RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG]  # fmt: skip
        handlers: dict[int, Handler] = {int(code): broker.handle for code in codes}  # type: ignore[dict-item]
        server = cluster.servers[name] = RemotingServer({**handlers, RequestCode.HEART_BEAT: broker.heartbeat})
        host, port = await server.listen("127.0.0.1", 0)
        cluster.addresses[name] = f"{host}:{port}"
    name_server = cluster.servers["namesrv"] = RemotingServer({RequestCode.GET_ROUTEINFO_BY_TOPIC: cluster.route})
    host, port = await name_server.listen("127.0.0.1", 0)
    cluster.namesrv = f"{host}:{port}"
    yield cluster
    for server in cluster.servers.values():
        await server.close(0.2)
