"""Clients of one process that would be the same member of a group, and those that would not."""

import asyncio
import re

import pytest

from rmq_core.client import (
    MessageModel,
    Producer,
    ProducerOptions,
    PullConsumer,
    PullOptions,
    PushConsumer,
    PushOptions,
    TransactionProducer,
    TransactionState,
)
from rmq_core.client.options import DEFAULT_INSTANCE
from rmq_core.remoting.bodies.clients import ConsumerIdList
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.errors import ConnectError
from rmq_formats.errors import OptionError
from tests.client.conftest import FakeCluster


def consumer_of(fakes: FakeCluster, group: str, name: str, model: MessageModel) -> PushConsumer:
    options = PushOptions(instance_name=name, model=model)
    consumer = PushConsumer(fakes.namesrv, group, lambda _: None, options)
    consumer.subscribe("T")
    return consumer


@pytest.mark.parametrize(
    ("name", "model"),
    [("one", MessageModel.CLUSTERING), (DEFAULT_INSTANCE, MessageModel.BROADCASTING)],
)
async def test_two_consumers_of_a_group_must_differ_in_their_client_ids(
    fakes: FakeCluster, name: str, model: MessageModel
) -> None:
    fakes.topics = set()  # no queue is consumed
    async with consumer_of(fakes, "g", name, model) as first:
        for _ in range(2):  # closing what was refused does not give up the place of the first one
            second = consumer_of(fakes, "g", name, model)
            assert first.client_id == second.client_id
            with pytest.raises(OptionError, match=rf"group g has a consumer with client id .*@{name} in this process"):
                await second.start()
            await second.close()
        async with consumer_of(fakes, "another", name, model):
            pass
    async with consumer_of(fakes, "g", name, model):
        pass


async def test_a_pull_consumer_either_subscribes_or_is_assigned_queues(fakes: FakeCluster) -> None:
    async with PullConsumer(fakes.namesrv, "g") as consumer:
        consumer.subscribe("T")
        with pytest.raises(OptionError, match="not both"):
            consumer.assign(await consumer.queues("T"))
    async with PullConsumer(fakes.namesrv, "g") as consumer:
        consumer.assign(await consumer.queues("T"))
        with pytest.raises(OptionError, match="not both"):
            consumer.subscribe("T")


async def test_pull_consumers_of_a_group_must_differ_in_their_client_ids_too(fakes: FakeCluster) -> None:
    first, second = (PullConsumer(fakes.namesrv, "g", PullOptions(instance_name="one")) for _ in range(2))
    async with first:
        with pytest.raises(OptionError, match="group g has a consumer with client id"):
            await second.start()


async def test_producers_of_a_group_must_differ_in_their_client_ids_too(fakes: FakeCluster) -> None:
    options = ProducerOptions(instance_name="one")
    async with Producer(fakes.namesrv, "g", options):
        for second in (
            Producer(fakes.namesrv, "g", options),
            TransactionProducer(fakes.namesrv, "g", lambda _: TransactionState.COMMIT, options),
        ):
            with pytest.raises(OptionError, match=r"group g has a producer with client id .*@one in this process"):
                await second.start()
            await second.close()
        async with Producer(fakes.namesrv, "another", options), Producer(fakes.namesrv, "g"):
            pass
        async with PullConsumer(fakes.namesrv, "g", PullOptions(instance_name="one")):  # a group of another kind
            pass
    async with Producer(fakes.namesrv, "g", options):
        pass


@pytest.mark.parametrize(("unit", "expected"), [("", r"[\d.]+@one"), ("u", r"[\d.]+@one@u")])
async def test_a_client_id_is_address_instance_and_unit(fakes: FakeCluster, unit: str, expected: str) -> None:
    options = PushOptions(instance_name="one", unit_name=unit)
    assert re.fullmatch(expected, PushConsumer(fakes.namesrv, "g", lambda _: None, options).client_id)


async def test_consumers_without_names_are_members_of_their_own(fakes: FakeCluster) -> None:
    fakes.topics = set()
    first, second = (consumer_of(fakes, "g", DEFAULT_INSTANCE, MessageModel.CLUSTERING) for _ in range(2))
    async with first, second:
        assert first.client_id != second.client_id


async def test_a_start_that_fails_gives_its_place_up(fakes: FakeCluster) -> None:
    await fakes.servers["namesrv"].close(0)
    for _ in range(2):
        with pytest.raises(ConnectError, match="cannot connect"):
            await consumer_of(fakes, "g", "one", MessageModel.CLUSTERING).start()


async def test_heartbeats_go_to_masters_again_and_again_and_those_of_consumers_to_slaves(fakes: FakeCluster) -> None:
    master, slave = fakes.brokers["a"], fakes.brokers["b"]
    fakes.slaves["a"] = fakes.addresses.pop("b")
    body = encode_body(ConsumerIdList(consumer_id_list=["another"]))  # which has all queues
    master.answer = slave.answer = lambda command, _: command.response(0, None, None, body)
    async with Producer(fakes.namesrv, "pg", ProducerOptions(heartbeat_interval_s=0.01)) as producer:
        await producer.queues("T")
        async with asyncio.timeout(60):
            while master.heartbeats < 3:
                await asyncio.sleep(0.005)
    assert slave.heartbeats == 0
    consumer = PushConsumer(fakes.namesrv, "g", lambda _: None, PushOptions(heartbeat_interval_s=0.01))
    consumer.subscribe("T")
    async with consumer, asyncio.timeout(60):
        while slave.heartbeats < 3:
            await asyncio.sleep(0.005)
