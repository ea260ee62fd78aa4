"""What the proxy asks brokers for, where one of them is away."""

import pytest

from rmq_core.client import ClientOptions
from rmq_core.proxy.brokers import Brokers
from rmq_core.proxy.wire import v2
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.errors import TransportError
from rmq_core.remoting.header import RemotingCommand
from tests.client.conftest import FakeCluster
from tests.client.conftest import fakes as fakes  # noqa: PLC0414 # the fixture


def settings(command: RemotingCommand, _: Connection) -> RemotingCommand:
    if command.code == RequestCode.GET_TOPIC_CONFIG:
        return command.response(body=encode_body(TopicConfig(topic_name="T", attributes={"message.type": "FIFO"})))
    return command.response(body=encode_body(SubscriptionGroupConfig(group_name="g", consume_message_orderly=True)))


@pytest.mark.parametrize("hangs", [False, True])
async def test_another_broker_tells_the_settings_where_one_does_not_answer(fakes: FakeCluster, *, hangs: bool) -> None:
    fakes.brokers["a"].answer = lambda *_: None
    fakes.brokers["b"].answer = settings
    if not hangs:
        await fakes.servers["a"].close()
    async with Brokers(fakes.namesrv, ClientOptions(request_timeout_s=0.3), None) as brokers:
        assert await brokers.message_types("T") == (v2.FIFO,)
        assert (await brokers.group("g", "T")).consume_message_orderly


async def test_it_is_an_error_where_none_answers(fakes: FakeCluster) -> None:
    for name in "ab":
        await fakes.servers[name].close()
    async with Brokers(fakes.namesrv, ClientOptions(), None) as brokers:
        with pytest.raises(TransportError):
            await brokers.message_types("T")
