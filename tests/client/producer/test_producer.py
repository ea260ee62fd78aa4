"""The producer, at brokers that refuse, are slow or are gone."""

import asyncio
from collections.abc import Callable

import pytest

from rmq_core.client import (
    Backoff,
    BrokerError,
    Credentials,
    Message,
    MessageError,
    MessageQueue,
    NoRouteError,
    Producer,
    ProducerOptions,
    SendFailedError,
    SendStatus,
)
from rmq_core.remoting.access.acl import is_signed_with
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.errors import TransportError
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.server import RemotingServer
from rmq_formats.errors import OptionError
from tests.client.conftest import FakeCluster, sent

MESSAGE = Message("T", b"body")


def refusing(code: int) -> Callable[[RemotingCommand, Connection], RemotingCommand]:
    return lambda command, _: command.response(code, "no")


def sends(fakes: FakeCluster) -> list[str]:
    """Which broker got how many."""
    return [name for name, broker in fakes.brokers.items() for one in broker.requests if one.code == 310]


async def test_queues_of_all_brokers_are_taken_in_turn(fakes: FakeCluster) -> None:
    async with Producer(fakes.namesrv) as producer:
        queues = [(await producer.send(MESSAGE)).queue for _ in range(8)]
    assert len(set(queues[:4])) == 4
    assert queues[4:] == queues[:4]


async def test_each_topic_has_its_queues_in_turn_whatever_is_sent_to_others(fakes: FakeCluster) -> None:
    async with Producer(fakes.namesrv) as producer:
        used = [(await producer.send(Message(topic, b"x"))).queue for _ in range(4) for topic in ("T", "U")]
    for topic in ("T", "U"):
        assert len({queue for queue in used if queue.topic == topic}) == 4


async def test_producers_begin_at_random_queues(fakes: FakeCluster) -> None:
    first: set[MessageQueue] = set()
    for _ in range(40):  # they all begin at one of the 4 in 1 of 4^39 runs
        async with Producer(fakes.namesrv) as producer:
            first.add((await producer.send(MESSAGE)).queue)
    assert len(first) > 1


@pytest.mark.parametrize("code", [17, 14, 1, 2, 16, 204, 205, 1500])
async def test_another_broker_is_tried_where_one_fails(fakes: FakeCluster, code: int) -> None:
    fakes.brokers["a"].answer = refusing(code)
    async with Producer(fakes.namesrv) as producer:
        for _ in range(4):
            result = await producer.send(MESSAGE)
            assert result.queue.broker_name == "b"
    assert sends(fakes).count("b") == 4
    # An attempt is the same message.
    keys, others = ([key_of(one) for one in fakes.brokers[name].requests if one.code == 310] for name in "ab")
    assert keys
    assert set(keys) <= set(others)


def key_of(command: RemotingCommand) -> str:
    return command.ext_fields["i"].split("UNIQ_KEY\x01")[1][:32]


async def test_a_broker_that_is_gone_is_passed_over(fakes: FakeCluster) -> None:
    await fakes.servers["a"].close(0)
    async with Producer(fakes.namesrv) as producer:
        assert {(await producer.send(MESSAGE)).queue.broker_name for _ in range(4)} == {"b"}


async def test_a_refusal_that_others_would_repeat_is_told_at_once(fakes: FakeCluster) -> None:
    for broker in fakes.brokers.values():
        broker.answer = refusing(13)
    async with Producer(fakes.namesrv) as producer:
        with pytest.raises(BrokerError) as error:
            await producer.send(MESSAGE)
    assert (error.value.code, error.value.remark, len(sends(fakes))) == (13, "no", 1)
    assert error.value.address in str(error.value)


async def test_all_attempts_failing_is_told_with_the_last_code(fakes: FakeCluster) -> None:
    for broker in fakes.brokers.values():
        broker.answer = refusing(2)
    async with Producer(fakes.namesrv, options=ProducerOptions(retries=3)) as producer:
        with pytest.raises(SendFailedError, match="4 attempts") as error:
            await producer.send(MESSAGE)
    assert error.value.code == 2
    assert set(error.value.brokers) == {"a", "b"}
    assert all(one != other for one, other in zip(error.value.brokers, error.value.brokers[1:], strict=False))


async def test_a_timeout_is_for_all_attempts(fakes: FakeCluster) -> None:
    for broker in fakes.brokers.values():
        broker.answer = lambda _, __: None
    begin = asyncio.get_running_loop().time()
    async with Producer(fakes.namesrv) as producer:
        with pytest.raises(SendFailedError) as error:
            await producer.send(MESSAGE, timeout_s=0.2)
        assert asyncio.get_running_loop().time() - begin < 2.5  # one attempt alone has 3 s
        for broker in fakes.brokers.values():
            broker.answer = sent
    assert error.value.code == -1006


@pytest.mark.parametrize(("code", "status"), [(10, "FLUSH_DISK_TIMEOUT"), (11, "SLAVE_NOT_AVAILABLE"),
                                              (12, "FLUSH_SLAVE_TIMEOUT")])  # fmt: skip
async def test_what_is_stored_with_a_reservation_is_sent(fakes: FakeCluster, code: int, status: str) -> None:
    def answer(command: RemotingCommand, connection: Connection) -> RemotingCommand:
        made = sent(command, connection)
        made.code = code
        return made

    for broker in fakes.brokers.values():
        broker.answer = answer
    async with Producer(fakes.namesrv) as producer:
        assert (await producer.send(MESSAGE)).status is SendStatus[status]
    assert len(sends(fakes)) == 1
    async with Producer(fakes.namesrv, options=ProducerOptions(retry_when_not_stored_well=True)) as producer:
        assert (await producer.send(MESSAGE)).status is SendStatus[status]
    assert len(sends(fakes)) == 4


async def test_a_broker_that_fails_is_left_out_for_a_while(fakes: FakeCluster) -> None:
    fakes.brokers["a"].answer = refusing(1)
    async with Producer(fakes.namesrv, options=ProducerOptions(send_latency_fault=True)) as producer:
        for _ in range(8):
            await producer.send(MESSAGE)
    assert sends(fakes).count("a") <= 1
    taken = [one.ext_fields["e"] for one in fakes.brokers["b"].requests if one.code == 310]
    assert [taken.count(queue_id) for queue_id in ("0", "1")] == [4, 4]  # passing over another broker takes no turn


async def test_a_broker_that_is_slow_is_avoided_for_the_chosen_time_although_it_succeeds(fakes: FakeCluster) -> None:
    async def slow(command: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(1.2)
        return sent(command)

    fakes.brokers["a"].answer = lambda command, _: slow(command)
    backoff = Backoff(steps_ms=((0, 0), (1000, 3000)), failure_ms=500)
    async with Producer(fakes.namesrv, options=ProducerOptions(send_latency_fault=True, backoff=backoff)) as producer:
        used = [(await producer.send(MESSAGE)).queue.broker_name for _ in range(12)]
        assert used.count("a") == 1
        fakes.brokers["a"].answer = sent
        await asyncio.sleep(3)
        used = [(await producer.send(MESSAGE)).queue.broker_name for _ in range(8)]
        assert used.count("a") == 4


async def test_a_chosen_queue_is_not_changed(fakes: FakeCluster) -> None:
    fakes.brokers["a"].answer = refusing(2)
    async with Producer(fakes.namesrv) as producer:
        queue = (await producer.queues("T"))[0]
        assert queue.broker_name == "a"
        with pytest.raises(BrokerError):
            await producer.send(MESSAGE, queue=queue)
        with pytest.raises(BrokerError):
            await producer.send(MESSAGE, selector=lambda queues, _message, number: queues[number], argument=1)
    assert sends(fakes) == ["a", "a"]


async def test_a_topic_that_does_not_exist_gets_the_queues_of_the_template(fakes: FakeCluster) -> None:
    fakes.topics = {"TBW102"}
    async with Producer(fakes.namesrv, options=ProducerOptions(default_topic_queue_nums=1)) as producer:
        assert [queue.queue_id for queue in await producer.queues("New")] == [0, 0]
        assert (await producer.send(Message("New", b"x"))).queue.topic == "New"
    fakes.topics = set()
    async with Producer(fakes.namesrv) as producer:
        with pytest.raises(NoRouteError) as error:
            await producer.send(Message("New", b"x"))
    assert error.value.code == 17


async def test_an_ordered_topic_keeps_its_queues(fakes: FakeCluster) -> None:
    fakes.order_conf = "b:3;a:1"
    async with Producer(fakes.namesrv) as producer:
        queues = await producer.queues("T")
    assert [(queue.broker_name, queue.queue_id) for queue in queues] == [("b", 0), ("b", 1), ("b", 2), ("a", 0)]


async def test_the_next_name_server_is_asked_where_one_is_gone(fakes: FakeCluster) -> None:
    for _ in range(20):  # half of them begin with the one that is gone
        async with Producer(f"127.0.0.1:1;{fakes.namesrv}") as producer:
            assert (await producer.send(MESSAGE)).status is SendStatus.SEND_OK
    async with Producer("127.0.0.1:1;127.0.0.1:2") as producer:
        with pytest.raises(TransportError):
            await producer.send(MESSAGE)


async def test_clients_begin_with_a_random_name_server_and_keep_it(fakes: FakeCluster) -> None:
    asked: list[int] = []
    servers = [await name_server(fakes, asked, number) for number in range(3)]
    try:
        addresses = ";".join(address for _, address in servers)
        for _ in range(40):
            begun = len(asked)
            async with Producer(addresses) as producer:
                await producer.queues("T")
                await producer.queues("U")
            assert len(asked) == begun + 2
            assert asked[begun] == asked[begun + 1]
    finally:
        for server, _ in servers:
            await server.close(0)
    assert set(asked) == {0, 1, 2}  # one is left out in about 1 of 3,700,000 runs


async def test_a_client_goes_on_when_its_name_server_ends(fakes: FakeCluster) -> None:
    asked: list[int] = []
    servers = [await name_server(fakes, asked, number) for number in range(2)]
    try:
        async with Producer(";".join(address for _, address in servers)) as producer:
            await producer.queues("T")
            await servers[asked[0]][0].close(0)
            for topic in ("U", "V"):
                assert len(await producer.queues(topic)) == 4
    finally:
        for server, _ in servers:
            await server.close(0)
    assert asked == [asked[0], 1 - asked[0], 1 - asked[0]]


async def name_server(fakes: FakeCluster, asked: list[int], number: int) -> tuple[RemotingServer, str]:
    """One more name server of the cluster; it notes its number when it is asked."""

    def route(command: RemotingCommand, connection: Connection) -> RemotingCommand:
        asked.append(number)
        return fakes.route(command, connection)

    server = RemotingServer({RequestCode.GET_ROUTEINFO_BY_TOPIC: route})
    host, port = await server.listen("127.0.0.1", 0)
    return server, f"{host}:{port}"


async def test_brokers_are_told_that_a_producer_comes_and_goes(fakes: FakeCluster) -> None:
    async with Producer(fakes.namesrv, "group") as producer:
        await producer.send(MESSAGE)
        async with asyncio.timeout(60):
            while not all(broker.heartbeats for broker in fakes.brokers.values()):
                await asyncio.sleep(0.01)
    for broker in fakes.brokers.values():
        (goodbye,) = [one for one in broker.requests if one.code == 35]
        assert goodbye.ext_fields == {"clientID": producer.client_id, "producerGroup": "group"}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("T", b""), "without a body"),
        (Message("T", b"x" * 101), "101 bytes"),
        (Message("", b"x"), "topic ''"),
        (Message("a/b", b"x"), "topic 'a/b'"),
        (Message("t" * 128, b"x"), "128 characters"),
        (Message("T", b"x", properties={"a": ""}), "is empty"),
        (Message("T", b"x", properties={"a": "\x02"}), "separator"),
        (Message("T", b"x", properties={"TAGS": "x"}), "set the message's field of its name"),
        (Message("T", b"x", properties={"a": "v" * 40_000}), "properties of"),
    ],
)
async def test_what_no_broker_would_take_is_not_sent(fakes: FakeCluster, message: Message, reason: str) -> None:
    async with Producer(fakes.namesrv, options=ProducerOptions(max_body_bytes=100)) as producer:
        with pytest.raises(MessageError, match=reason) as error:
            await producer.send(message)
        with pytest.raises(MessageError):
            await producer.send_batch([message])
        with pytest.raises(MessageError):
            await producer.send_oneway(message)
    assert error.value.code == 13
    assert sends(fakes) == []


def test_bad_settings_are_refused() -> None:
    with pytest.raises(OptionError):
        Producer(" ; ")
    with pytest.raises(MessageError):
        Producer("127.0.0.1:9876", "a group")
    with pytest.raises(OptionError):
        ProducerOptions(retries=-1)
    with pytest.raises(OptionError):
        ProducerOptions(compression_level=10)
    for steps_ms in ((), ((100, 0), (50, 10)), ((50, 10), (50, 20)), ((-1, 0),), ((50, -1),)):
        with pytest.raises(OptionError, match="steps_ms"):
            Backoff(steps_ms=steps_ms, failure_ms=0)


async def test_each_attempt_is_signed(fakes: FakeCluster) -> None:
    credentials = Credentials("me", "secret")
    fakes.brokers["a"].answer = refusing(1)
    async with Producer(fakes.namesrv, credentials=credentials) as producer:
        for _ in range(4):
            await producer.send(MESSAGE)
    requests = [one for broker in fakes.brokers.values() for one in broker.requests]
    assert len(requests) > 4
    assert all(is_signed_with(one, credentials.secret_key) for one in requests)
    assert not any("secret" in str(one.ext_fields) for one in requests)
