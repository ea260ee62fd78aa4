"""A master of ours and slaves of ours."""

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from struct import pack

import pytest

from rmq_core.ha.slave import HaSlave
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.configs import OffsetTable, TopicConfig
from rmq_core.remoting.bodies.stats import HaStatus
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.header import RemotingCommand
from rmq_core.store.files.disk import Disk
from rmq_core.store.results import PutStatus
from rmq_formats.codecs.layout import FLAG_INNER_BATCH, FLAG_NEED_UNWRAP
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import StoredMessage
from tests.broker.conftest import Asker, eventually, messages
from tests.ha.conftest import FILE_BYTES, caught_up, port_for_long, running, running_pair, slave_of, store_of, written
from tests.support.stores.store_files import tree

BODY = b"." * 3000


async def fill(master: Asker, count: int, first: int = 0) -> None:
    """Send messages to two queues."""
    for number in range(first, first + count):
        answer = await master.send("T", b"%d " % number + BODY, queue_id=number % 2)
        assert answer.code == 0, answer


def stored(asker: Asker, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
    """The messages of a queue, as a store has them."""
    found: list[StoredMessage] = []
    while slices := asker.broker.store.get(topic, queue_id, len(found), 32).slices:
        found += messages(RemotingCommand(0, body=b"".join(slices)))
    return found


async def test_a_slave_ends_with_its_masters_log(tmp_path: Path) -> None:
    master_store, slave_store = store_of(tmp_path / "master"), store_of(tmp_path / "slave")
    async with running(master_store) as master, running(slave_store, **slave_of(master)) as slave:
        await fill(master, 100)
        await caught_up(slave.broker, master.broker)
        assert stored(slave) == stored(master)
        assert len(stored(slave)) == 50
        end = master.broker.store.max_physical_offset
        assert end > 4 * FILE_BYTES
    assert written(slave_store, end) == written(master_store, end)
    assert len(written(master_store, end)) > 4


async def test_a_slave_that_was_away_gets_all_that_it_missed(tmp_path: Path) -> None:
    master_store, slave_store = store_of(tmp_path / "master"), store_of(tmp_path / "slave")
    async with running(master_store) as master:
        settings = slave_of(master)
        async with running(slave_store, **settings) as slave:
            await fill(master, 30)
            await caught_up(slave.broker, master.broker)
        await fill(master, 100, first=30)
        async with running(slave_store, **settings) as slave:
            await caught_up(slave.broker, master.broker)
            assert stored(slave, queue_id=1) == stored(master, queue_id=1)
            end = master.broker.store.max_physical_offset
    assert written(slave_store, end) == written(master_store, end)


async def test_a_slave_follows_a_master_that_comes_again(tmp_path: Path) -> None:
    master_store, slave_store = store_of(tmp_path / "master"), store_of(tmp_path / "slave")
    async with AsyncExitStack() as stopping:
        port = port_for_long()
        async with running(master_store, ha_listen_port=port) as master:
            settings = slave_of(master)
            slave = await stopping.enter_async_context(running(slave_store, **settings))
            await fill(master, 30)
            await caught_up(slave.broker, master.broker)
        async with running(master_store, ha_listen_port=port) as master:
            await fill(master, 30, first=30)
            await caught_up(slave.broker, master.broker)
            assert stored(slave) == stored(master)


async def test_an_empty_slave_begins_with_the_masters_last_file(tmp_path: Path) -> None:
    master_store, slave_store = store_of(tmp_path / "master"), store_of(tmp_path / "slave")
    async with running(master_store) as master:
        await fill(master, 60)
        async with running(slave_store, **slave_of(master)) as slave:
            await caught_up(slave.broker, master.broker)
            end = master.broker.store.max_physical_offset
            assert slave.broker.store.min_physical_offset == end - end % FILE_BYTES
            asked = stored(master)[-1].queue_offset
            assert messages(await slave.pull("T", asked)) == []  # slaveReadEnable is false by default
            result = slave.broker.store.get("T", 0, asked, 1)
            assert result.message_count == 1
    (name,) = written(slave_store, end)
    assert written(slave_store, end)[name] == written(master_store, end)[name]


async def test_a_slave_of_a_slave_has_the_log_too(tmp_path: Path) -> None:
    names = "master", "slave", "second"
    stores = [store_of(tmp_path / name) for name in names]
    async with (
        running(stores[0]) as master,
        running(stores[1], **slave_of(master)) as slave,
        running(stores[2], **slave_of(slave, broker_id=2)) as second,
    ):
        await fill(master, 30)
        await caught_up(second.broker, master.broker)
        assert stored(second) == stored(master)


async def test_a_slave_takes_no_messages(tmp_path: Path) -> None:
    async with running(store_of(tmp_path / "slave"), broker_role="SLAVE", broker_id=1) as slave:
        answer = await slave.send("T")
        assert (answer.code, answer.remark) == (2, "[REJECTREQUEST]system busy, start flow control for a while")
        back = await slave.ask(36, {"offset": 0, "group": "g", "delayLevel": 0})
        ended = {"producerGroup": "g", "tranStateTableOffset": 0, "commitLogOffset": 0, "commitOrRollback": 8}
        assert back.code == 2
        assert (await slave.ask(37, ended | {"msgId": "x"})).code == 11
        assert (
            slave.broker.store.appender.put("T", 0, b"x", b"", 0, bytes(8), 0).status is PutStatus.SERVICE_NOT_AVAILABLE
        )
        assert slave.broker.store.max_physical_offset == 0


async def test_a_slave_without_room_asks_seldom_and_tells_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "rmq.broker.replication")
    waits: list[float] = []

    async def pause(_: HaSlave, wait_s: float) -> bool:
        waits.append(wait_s)
        await asyncio.sleep(0)
        return False

    def told(begin: str) -> int:
        return sum(one.getMessage().startswith(begin) for one in caplog.records)

    async with running_pair(tmp_path) as (master, slave):
        await fill(master, 3)
        await caught_up(slave.broker, master.broker)
        begin = slave.broker.store.max_physical_offset
        monkeypatch.setattr(HaSlave, "_wait_for_address", pause)
        monkeypatch.setattr(Disk, "used_ratio", lambda *_: 1.0)
        slave.broker.store.clean(0)
        await fill(master, 3)

        async def asks_seldom() -> bool:
            return waits[-2:] == [30, 30]

        await eventually(asks_seldom)
        assert waits[:3] == [0.1, 0.2, 0.4]
        assert slave.broker.store.max_physical_offset == begin
        refused, taken = "disconnects from the master: the disk is nearly full", "replicates the master"
        assert (told(refused), told(taken), told("slave 127.0.0.1:")) == (1, 1, 2)
        monkeypatch.setattr(Disk, "used_ratio", lambda *_: 0.1)
        slave.broker.store.clean(0)
        await caught_up(slave.broker, master.broker)
        assert stored(slave) == stored(master)
        assert (told("disconnects from the master"), told("replicates the master"), told("the master at")) == (1, 2, 0)


async def test_the_status_tells_of_both_sides(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as (master, slave):
        await fill(master, 3)
        await caught_up(slave.broker, master.broker)
        end = master.broker.store.max_physical_offset

        async def has_told() -> bool:
            status = decode_body((await master.ask(907)).body, HaStatus)
            return [one.slave_ack_offset for one in status.ha_connection_info] == [end]

        await eventually(has_told)
        master_status, slave_status = [decode_body((await peer.ask(907)).body, HaStatus) for peer in (master, slave)]
        assert (master_status.master, master_status.in_sync_slave_nums, master_status.master_commit_log_max_offset) == (
            True,
            1,
            end,
        )
        assert (slave_status.master, slave_status.ha_client_runtime_info.max_offset) == (False, end)


BATCH_FLAGS = FLAG_INNER_BATCH | FLAG_NEED_UNWRAP


async def test_a_slave_has_the_batch_queues_too_once_it_is_told_of_their_topic(tmp_path: Path) -> None:
    master_store, slave_store = store_of(tmp_path / "master"), store_of(tmp_path / "slave")
    async with running(master_store) as master, running(slave_store, **slave_of(master)) as slave:
        master.broker.state.topics.put(TopicConfig(topic_name="B", attributes={"queue.type": "BatchCQ"}))
        assert await master.broker.state.topics.file.wait_written(60)
        own = encode_properties({"TAGS": "t"})
        batch = (pack(">iiiii", 23 + len(own), 0, 0, 0, 1) + b"x" + pack(">h", len(own)) + own) * 3

        async def send() -> None:
            for _ in range(20):
                assert (await master.send("B", batch, m="true", properties={"UNIQ_KEY": "k"})).code == 0
                assert (await master.send("B", BODY)).code == 0
            await caught_up(slave.broker, master.broker)

        await send()
        slave.broker.store.set_batch_topics({"B"})
        await send()
        assert slave.broker.store.max_offset("B", 0) == 160
    for name in ("batchconsumequeue", "consumequeue"):
        assert tree(Path(slave_store.root) / name) == tree(Path(master_store.root) / name)


async def test_no_client_can_send_an_inner_batch(tmp_path: Path) -> None:
    async with running(store_of(tmp_path / "master")) as master:
        answer = await master.send("T", BODY, properties={"INNER_NUM": "2", "INNER_BASE": "0"}, f=BATCH_FLAGS)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert master.broker.store.max_physical_offset == 0


async def test_a_slave_says_that_it_writes_no_light_queues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    master_store, slave_store = store_of(tmp_path / "master"), store_of(tmp_path / "slave")
    light = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "0"}
    async with running(master_store) as master, running(slave_store, **slave_of(master)) as slave:
        for _ in range(2):
            assert (await master.send("T", BODY, properties=light)).code == 0
        await caught_up(slave.broker, master.broker)
    told = [record for record in caplog.records if "light queues (LMQ)" in record.getMessage()]
    assert sorted(record.getMessage().partition(": ")[0] for record in told) == sorted(
        [master_store.commitlog_path, slave_store.commitlog_path]
    )


async def test_a_slave_has_the_light_queues_and_their_offsets_too(tmp_path: Path) -> None:
    settings = {"lmq_enabled": True, "multi_dispatch_enabled": True}
    master_store, slave_store = store_of(tmp_path / "master", **settings), store_of(tmp_path / "slave", **settings)
    group = "%LMQ%devices"
    async with (
        running(master_store) as master,
        running(slave_store, **slave_of(master, slave_read_enable=True)) as slave,
    ):
        for number in range(60):
            names = ",".join(f"%LMQ%{name}" for name in ("all", f"d{number % 3}"))
            assert (await master.send("T", BODY, properties={"INNER_MULTI_DISPATCH": names})).code == 0
        master.broker.state.offsets.commit("%LMQ%all", group, 0, 17)
        await caught_up(slave.broker, master.broker)
        told = await master.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        slave.broker.state.offsets.adopt(decode_body(told.body, OffsetTable))
        assert slave.broker.state.offsets.get("%LMQ%all", group, 0) == 17
        assert slave.broker.store.max_offset("%LMQ%all", 0) == 60
        pulled = messages(await slave.pull("%LMQ%d1", 18, consumerGroup=group))
        assert [one.properties["INNER_MULTI_QUEUE_OFFSET"] for one in pulled] == ["55,18", "58,19"]
    assert tree(Path(slave_store.root) / "consumequeue") == tree(Path(master_store.root) / "consumequeue")
