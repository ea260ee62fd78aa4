"""Consumers read from slaves when the master is loaded or gone, and slaves know what is read."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path

import pytest

from rmq_core.client import PullConsumer, PushConsumer, PushOptions, ReceivedMessage, StartPosition
from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.remoting.bodies.configs import TopicConfig
from rmq_core.remoting.codes import RequestCode
from tests.broker.conftest import Asker, eventually, messages
from tests.ha.conftest import caught_up, port_for_long, running, running_pair, slave_of, store_of
from tests.ha.test_replication import fill
from tests.store.small_stores import batch_of

SYSTEM_BUSY = 2
TOPIC_NOT_EXIST = 17
NOT_FOUND = 19
RETRY_IMMEDIATELY = 20
SUGGESTED = "suggestWhichBrokerId"


@pytest.fixture
async def namesrv(tmp_path: Path) -> AsyncIterator[str]:
    config = NamesrvConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kvConfig.json"))
    async with NameServer(config) as server:
        yield server.address


async def test_a_loaded_master_sends_consumers_to_its_slave(tmp_path: Path) -> None:
    for enabled, ratio, suggested in ((True, 0, "1"), (True, 40, "0"), (False, 0, "0")):
        store = store_of(tmp_path / f"{enabled}{ratio}", memory_ratio=ratio)
        async with running(store, slave_read_enable=enabled) as master:
            await fill(master, 4)
            answer = await master.pull("T")
            assert (answer.code, answer.ext_fields[SUGGESTED]) == (0, suggested)
            end = await master.pull("T", 2)
            assert (end.code, end.ext_fields[SUGGESTED]) == (NOT_FOUND, "0")


async def test_a_slave_answers_pulls_only_if_it_is_told_to(tmp_path: Path, namesrv: str) -> None:
    async with running(store_of(tmp_path / "master"), namesrv_addr=namesrv) as master:
        await fill(master, 4)
        settings = slave_of(master, namesrv_addr=namesrv)
        async with running(store_of(tmp_path / "slave"), **settings) as slave:
            assert (await slave.pull("T")).code == SYSTEM_BUSY
        async with running(store_of(tmp_path / "slave"), **settings, slave_read_enable=True) as slave:
            await caught_up(slave.broker, master.broker)
            await knows(slave, "T")
            found = await slave.pull("T")
            assert (found.code, found.ext_fields[SUGGESTED], len(messages(found))) == (0, "0", 2)
            assert (await slave.pull("T", 2)).code == RETRY_IMMEDIATELY  # at the master, which may have it


async def knows(slave: Asker, topic: str) -> None:
    """Wait until a slave has been told of a topic."""

    async def is_there() -> bool:
        return topic in slave.broker.state.topics.table

    await eventually(is_there, 30)


async def test_slaves_are_told_the_address_that_is_for_them(tmp_path: Path, namesrv: str) -> None:
    there = {"namesrv_addr": namesrv, "broker_ip2": "localhost"}
    async with running(store_of(tmp_path / "master"), **there) as master:
        port = master.broker.state.replication.port
        await fill(master, 4)
        settings = {"broker_role": "SLAVE", "broker_id": 1, "namesrv_addr": namesrv}
        async with running(store_of(tmp_path / "slave"), **settings) as slave:
            await caught_up(slave.broker, master.broker)
            following = slave.broker.state.replication.slave
            assert following is not None
            assert following.master_address == f"localhost:{port}"
            assert slave.broker.state.replication.master_address == master.broker.address


async def test_a_slave_that_takes_over_before_it_was_told_of_a_topic_names_it_itself(tmp_path: Path) -> None:
    settings = {"slave_read_enable": True, "slave_sync_interval_ms": 50}  # without name server: it never is
    async with running_pair(tmp_path, {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2}, **settings) as (
        master,
        slave,
    ):
        await eventually(lambda: is_in_sync(master), 60)
        for queue_id in (0, 2):
            assert (await master.send("New", b"acknowledged", queue_id)).code == 0
        assert (await slave.pull("New")).code == TOPIC_NOT_EXIST
        await master.broker.close()

        async def is_served() -> bool:
            return (await slave.pull("New", queue_id=2)).code == 0

        await eventually(is_served, 60)
        assert [one.body for one in messages(await slave.pull("New"))] == [b"acknowledged"]
        topic = slave.broker.state.topics.table["New"]
        assert (topic.read_queue_nums, topic.write_queue_nums) == (3, 3)


async def test_a_topic_that_a_slave_names_itself_has_batch_queues_if_it_has_inner_batches(tmp_path: Path) -> None:
    settings = {"slave_read_enable": True, "slave_sync_interval_ms": 50}
    async with running_pair(tmp_path, **settings) as (master, slave):
        master.broker.state.topics.put(TopicConfig(topic_name="B", attributes={"queue.type": "BatchCQ"}))
        assert await master.broker.state.topics.file.wait_written(60)
        batch = batch_of([(b"%d" % number, b"") for number in range(3)])
        assert (await master.send("B", batch, m="true", properties={"UNIQ_KEY": "k"})).code == 0
        await caught_up(slave.broker, master.broker)
        await master.broker.close()

        async def is_named() -> bool:
            return "B" in slave.broker.state.topics.table

        await eventually(is_named, 60)
        assert slave.broker.state.topics.table["B"].attributes == {"queue.type": "BatchCQ"}
        assert slave.broker.store.max_offset("B", 0) == 3
        assert (await slave.pull("B", 2)).code == 0


async def is_in_sync(master: Asker) -> bool:
    return (await master.send("Before")).code == 0


@pytest.mark.parametrize(
    ("broker_ip2", "told"), [("", "10.0.0.5:0"), ("10.1.0.5", "10.1.0.5:0"), ("fd00::5", "[fd00::5]:0")]
)
async def test_without_an_address_of_its_own_replication_is_beside_the_broker(
    tmp_path: Path, broker_ip2: str, told: str
) -> None:
    async with running(store_of(tmp_path / "master"), broker_ip2=broker_ip2) as master:
        replication = master.broker.state.replication
        assert replication.ha_server_address("10.0.0.5:10911") == told.removesuffix("0") + str(replication.port)


async def test_a_slave_without_its_master_has_consumers_wait(tmp_path: Path, namesrv: str) -> None:
    port = port_for_long()
    settings = {"namesrv_addr": namesrv, "slave_read_enable": True}
    async with running(store_of(tmp_path / "master"), **settings, ha_listen_port=port) as master:
        await fill(master, 4)
        slave_settings = slave_of(master, **settings)
        async with running(store_of(tmp_path / "slave"), **slave_settings) as slave:
            await caught_up(slave.broker, master.broker)
            await knows(slave, "T")
    async with running(store_of(tmp_path / "slave"), **slave_settings) as slave:
        assert (await slave.pull("T", 1)).code == 0
        assert (await slave.pull("T", 2)).code == NOT_FOUND
        assert (await slave.pull("T", 7)).code == NOT_FOUND  # it may be behind what the consumer has seen
        waiting = asyncio.create_task(slave.pull("T", 2, sysFlag=6, suspendTimeoutMillis=60_000))

        async def is_held() -> bool:
            return slave.broker._parked_pulls.count == 1

        await eventually(is_held)
        async with running(store_of(tmp_path / "master"), **settings, ha_listen_port=port) as master:
            await fill(master, 1)
            answer = await waiting
            assert (answer.code, [one.queue_offset for one in messages(answer)]) == (0, [2])


async def test_a_slave_is_told_which_topics_have_batch_queues(tmp_path: Path, namesrv: str) -> None:
    settings = {"namesrv_addr": namesrv, "slave_sync_interval_ms": 50}
    async with running(store_of(tmp_path / "master"), **settings) as master:
        master.broker.state.topics.put(TopicConfig(topic_name="B", attributes={"queue.type": "BatchCQ"}))
        async with running(store_of(tmp_path / "slave"), **slave_of(master, **settings)) as slave:

            async def is_told() -> bool:
                return slave.broker.store.batch_topics == {"B"}

            await eventually(is_told, 60)


async def test_a_slave_takes_over_topics_groups_and_offsets(tmp_path: Path, namesrv: str) -> None:
    settings = {"namesrv_addr": namesrv, "slave_sync_interval_ms": 50}
    async with running(store_of(tmp_path / "master"), **settings) as master:
        state = master.broker.state
        await fill(master, 4)
        assert (await master.heartbeat("readers")).code == 0
        state.offsets.commit("T", "readers", 0, 1)
        master.broker._schedule.offsets[3] = 7
        async with running(store_of(tmp_path / "slave"), **slave_of(master, **settings)) as slave:
            await knows(slave, "T")
            slave_state = slave.broker.state

            async def has_all() -> bool:
                return "readers" in slave_state.groups.table and slave.broker._schedule.offsets == {3: 7}

            await eventually(has_all, 60)
            assert slave_state.topics.table == state.topics.table
            assert slave_state.topics.version == state.topics.version
            assert slave_state.groups.table == state.groups.table
            assert slave_state.offsets.get("T", "readers", 0) == 1
            state.offsets.commit("T", "readers", 0, 2)

            async def is_told() -> bool:
                return slave_state.offsets.get("T", "readers", 0) == 2

            await eventually(is_told, 60)
        async with running(store_of(tmp_path / "slave"), broker_role="SLAVE", broker_id=1) as slave:
            assert slave.broker.state.offsets.get("T", "readers", 0) == 2  # from its files
            assert "T" in slave.broker.state.topics.table


async def test_a_slave_asks_for_a_topic_as_soon_as_it_has_messages_of_it(tmp_path: Path, namesrv: str) -> None:
    async with running(store_of(tmp_path / "master"), namesrv_addr=namesrv) as master:
        settings = slave_of(master, namesrv_addr=namesrv)
        async with running(store_of(tmp_path / "slave"), **settings) as slave:
            await knows(slave, "rmq_sys_REVIVE_LOG_DefaultCluster")  # a sync is over; the next is in a minute
            await fill(master, 1)
            await knows(slave, "T")


async def test_our_consumer_goes_on_at_the_slave_when_the_master_is_gone(tmp_path: Path, namesrv: str) -> None:
    settings = {"namesrv_addr": namesrv, "slave_read_enable": True, "register_name_server_period_ms": 1000}
    async with AsyncExitStack() as stopping:
        slave = await stopping.enter_async_context(
            running(store_of(tmp_path / "slave"), broker_role="SLAVE", broker_id=1, **settings)
        )
        async with running(store_of(tmp_path / "master"), **settings) as master:
            await fill(master, 20)
            await caught_up(slave.broker, master.broker)  # its name server has told it where the master is
            await knows(slave, "T")
            consumer = await stopping.enter_async_context(PullConsumer(namesrv, "readers"))
            queues = await consumer.queues("T")
            consumer.assign(queues)
            await consumer.seek_to_begin(*queues)
            seen = await consumer.poll(60, 5)
        while len(seen) < 20:
            seen += await consumer.poll(60)
        assert sorted({(one.queue_id, one.queue_offset) for one in seen}) == [
            (queue_id, offset) for queue_id in range(2) for offset in range(10)
        ]


async def test_a_group_of_ours_begins_at_the_slave_when_the_master_is_gone(tmp_path: Path, namesrv: str) -> None:
    settings = {"namesrv_addr": namesrv, "slave_read_enable": True}
    seen: set[tuple[int, int]] = set()

    def take(received: list[ReceivedMessage]) -> None:
        seen.update((one.queue.queue_id, one.queue_offset) for one in received)

    async with AsyncExitStack() as stopping:
        async with running(store_of(tmp_path / "master"), **settings) as master:
            slave_settings = slave_of(master, **settings)
            slave = await stopping.enter_async_context(running(store_of(tmp_path / "slave"), **slave_settings))
            await fill(master, 20)
            await caught_up(slave.broker, master.broker)
            await knows(slave, "T")
        consumer = PushConsumer(namesrv, "latecomers", take, PushOptions(start=StartPosition.FIRST))
        consumer.subscribe("T")
        await stopping.enter_async_context(consumer)

        async def has_all() -> bool:
            return len(seen) == 20

        await eventually(has_all, 60)
    assert seen == set(product(range(2), range(10)))


async def test_a_slave_has_the_request_modes_of_its_master(tmp_path: Path, namesrv: str) -> None:
    async with running(store_of(tmp_path / "master"), namesrv_addr=namesrv) as master:
        assert (await master.send("T")).code == 0
        mode = {"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 2}
        assert (await master.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode())).code == 0
        told = await master.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        async with running(store_of(tmp_path / "slave"), **slave_of(master, namesrv_addr=namesrv)) as slave:

            async def is_equal() -> bool:
                return (await slave.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body == told.body

            await eventually(is_equal, 30)
    assert json.loads((tmp_path / "slave" / "config" / "messageRequestMode.json").read_text()) == json.loads(
        bytes(told.body)
    )
