"""The broker's tables in their files: written off the event loop, many changes at once, and again after a failure."""

import asyncio
import errno
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.tables import names
from rmq_core.broker.tables.table_file import TableFiles
from rmq_core.remoting.bodies.configs import OffsetTable
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Handler
from rmq_core.store.config import FlushDiskType, StoreConfig
from rmq_core.store.files.disk import Disk
from rmq_core.store.files.threads import Threads
from tests.broker.conftest import Asker, eventually, small_store


class CountingDisk(Disk):
    """A disk that counts the files replaced, and cannot replace some.

    Attributes:
        replaced: names of files, in order.
        threads: that have replaced one.
        failing: names that cannot be.
        fails_late: they have their new content then, but not for certain.
    """

    def __init__(self) -> None:
        self.replaced: list[str] = []
        self.threads: set[int] = set()
        self.failing: set[str] = set()
        self.fails_late = False

    def replace(self, path: str, data: bytes) -> None:
        name = Path(path).name
        if name in self.failing and not self.fails_late:
            raise OSError(errno.EIO, "Input/output error", path)
        super().replace(path, data)
        self.replaced.append(name)
        if name in self.failing:
            raise OSError(errno.EIO, "Input/output error", path)
        self.threads.add(threading.get_ident())


@pytest.fixture
def disk() -> CountingDisk:
    """The broker's disk."""
    return CountingDisk()


@pytest.fixture
def config() -> BrokerConfig:
    """A broker that writes what it has periodically."""
    return BrokerConfig(
        listen_port=0,
        flush_consumer_offset_interval_ms=20,
        flush_delay_offset_interval_ms=20,
        wait_time_mills_in_send_queue=60_000,  # a busy machine gets no send refused
    )


@pytest.fixture(params=list(FlushDiskType))
def store_config(tmp_path: Path, request: pytest.FixtureRequest) -> StoreConfig:
    """A store of each kind."""
    return small_store(tmp_path / "store", request.param)


@pytest.fixture
async def asker(config: BrokerConfig, store_config: StoreConfig, disk: CountingDisk) -> AsyncIterator[Asker]:
    """A running broker on the disk, with its client."""
    handlers: dict[int, Handler] = {}
    async with Broker(config, store_config, disk=disk) as broker, RemotingClient(handlers) as client:
        yield Asker(broker, client, handlers)


def table(asker: Asker, name: str) -> str:
    """The text of a file in ``config/``; nothing if there is none."""
    path = Path(asker.broker.store.config.root, "config", name)
    return path.read_text() if path.exists() else ""


async def test_new_groups_of_many_pulls_are_written_together_and_off_the_loop(asker: Asker, disk: CountingDisk) -> None:
    await asker.send("T")
    fields = {"topic": "T", "queueId": 0, "queueOffset": 5, "maxMsgNums": 1, "sysFlag": 0, "commitOffset": 0,
              "suspendTimeoutMillis": 0, "subVersion": 0}  # fmt: skip
    groups = [f"group{number}" for number in range(1000)]
    await asyncio.gather(*(asker.ask(RequestCode.PULL_MESSAGE, fields | {"consumerGroup": name}) for name in groups))

    async def are_written() -> bool:
        return all(f'"{name}"' in table(asker, "subscriptionGroup.json") for name in groups)

    await eventually(are_written)
    assert disk.replaced.count("subscriptionGroup.json") < len(groups) // 10
    assert threading.get_ident() not in disk.threads


async def test_a_message_of_a_new_topic_is_acknowledged_once_the_topic_is_written(asker: Asker) -> None:
    answers = await asyncio.gather(*(asker.send(f"N{number % 7}", b"%d" % number) for number in range(70)))
    assert {answer.code for answer in answers} == {0}
    assert all(f'"N{number}"' in table(asker, "topics.json") for number in range(7))


async def test_what_could_not_be_written_is_written_when_the_disk_does_it_again(
    asker: Asker, disk: CountingDisk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.failing = {"topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"}
    assert (await asker.send("New")).code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert (await asker.send("New")).code == ResponseCode.FLUSH_DISK_TIMEOUT
    made = await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {
        "topic": "Made", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    })  # fmt: skip
    assert made.code == ResponseCode.SYSTEM_ERROR
    assert "topics.json cannot be written" in str(made.remark)
    await asker.pull("New", consumerGroup="slow", sysFlag=5, commitOffset=1)
    await asker.send("TopicTest", properties={"DELAY": "1"})

    async def has_failed() -> bool:
        return all(name in caplog.text for name in disk.failing - {"delayOffset.json"})

    await eventually(has_failed)
    disk.failing = set()

    async def is_written() -> bool:
        return (
            '"Made"' not in table(asker, "topics.json")
            and '"New"' in table(asker, "topics.json")
            and '"slow"' in table(asker, "subscriptionGroup.json")
            and "New@slow" in table(asker, "consumerOffset.json")
            and table(asker, "delayOffset.json") != ""
        )

    await eventually(is_written)
    assert (await asker.send("New")).code == 0


@pytest.mark.parametrize("slave", [False, True])
async def test_offsets_beyond_the_end_of_what_a_store_has_are_set_back(
    config: BrokerConfig, store_config: StoreConfig, slave: bool
) -> None:
    handlers: dict[int, Handler] = {}
    async with Broker(config, store_config) as broker, RemotingClient(handlers) as client:
        asker = Asker(broker, client, handlers)
        for _ in range(5):
            await asker.send("T")
    directory = Path(store_config.root, "config")
    offsets = {"T@ahead": {0: 10, 3: 2}, "T@right": {0: 5}, "Gone@ahead": {0: 4}}
    directory.joinpath("consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    directory.joinpath("delayOffset.json").write_text(json.dumps({"offsetTable": {"1": 7}}))
    again = BrokerConfig(listen_port=0, broker_role="SLAVE", broker_id=1) if slave else config
    async with Broker(again, store_config) as broker:
        assert broker.state.offsets.table == {"T@ahead": {0: 5, 3: 0}, "T@right": {0: 5}, "Gone@ahead": {0: 0}}
    written = json.loads(directory.joinpath("delayOffset.json").read_text())["offsetTable"]
    assert written == {"1": 0}


@pytest.mark.parametrize("entry", ['"0":99999999999999999999', '"2147483648":1', '"x":1'])
def test_offsets_beyond_javas_range_leave_the_backup_to_load(tmp_path: Path, disk: CountingDisk, entry: str) -> None:
    path = tmp_path / "config" / "consumerOffset.json"
    path.parent.mkdir()
    path.write_text(f'{{"offsetTable":{{"T@g":{{{entry}}}}}}}')
    path.with_name(f"{path.name}.bak").write_text('{"offsetTable":{"T@g":{"0":"3"}}}')
    assert TableFiles(str(tmp_path), disk, Threads()).load(path.name, OffsetTable).offset_table == {"T@g": {0: 3}}


async def test_a_file_that_was_replaced_but_not_forced_is_written_again(asker: Asker, disk: CountingDisk) -> None:
    disk.failing, disk.fails_late = {"topics.json"}, True
    assert (await asker.send("New")).code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert '"New"' in table(asker, "topics.json")
    disk.failing = set()
    disk.replaced.clear()
    assert (await asker.send("New")).code == 0
    assert "topics.json" in disk.replaced


async def test_clients_make_no_more_topics_and_groups_than_their_files_can_bear(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics, groups = asker.broker.state.topics.table, asker.broker.state.groups.table
    monkeypatch.setattr(names, "MAX_AUTO_CREATED_TOPICS", len(topics) + 2)
    assert [(await asker.send(f"N{number}")).code for number in range(3)] == [0, 0, ResponseCode.TOPIC_NOT_EXIST]
    assert (await asker.send("%RETRY%of_nobody")).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await asker.send("N0")).code == 0
    monkeypatch.setattr(names, "MAX_AUTO_CREATED_TOPICS", len(groups) + 2)
    for number in range(3):
        answer = await asker.pull("N0", consumerGroup=f"G{number}")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    made = await asker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G2"}')
    assert made.code == 0
    assert (await asker.pull("N0", consumerGroup="G2")).code == 0


TOPIC = {
    "topic": "Kept", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
}  # fmt: skip


@pytest.mark.parametrize("fails_late", [False, True])
async def test_a_change_that_cannot_be_written_is_not_made(asker: Asker, disk: CountingDisk, fails_late: bool) -> None:
    """Topics, groups and modes: the client gets an error, and memory and file agree."""
    state = asker.broker.state
    group = b'{"groupName":"kept","retryQueueNums":3}'
    mode = b'{"topic":"Kept","consumerGroup":"kept","mode":"POP","popShareQueueNum":0}'
    assert (await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)).code == 0
    assert (await asker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)).code == 0
    assert (await asker.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, mode)).code == 0
    state.offsets.commit("Kept", "kept", 0, 7)
    topics, groups = dict(state.topics.table), dict(state.groups.table)
    modes = bytes((await asker.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body)
    disk.failing, disk.fails_late = {"topics.json", "subscriptionGroup.json", "messageRequestMode.json"}, fails_late
    answers = [
        *await asyncio.gather(
            asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC | {"readQueueNums": 8, "writeQueueNums": 8}),
            asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC | {"readQueueNums": 9, "writeQueueNums": 9}),
            asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC | {"topic": "Fresh"}),
            asker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group.replace(b"3", b"5")),
            asker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"fresh"}'),
        ),
        await asker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "kept", "cleanOffset": "true"}),
        await asker.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, mode.replace(b"POP", b"PULL")),
        await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Kept"}),
    ]
    assert {answer.code for answer in answers} == {ResponseCode.SYSTEM_ERROR}
    assert all("cannot be written" in str(answer.remark) for answer in answers)
    assert (state.topics.table, state.groups.table) == (topics, groups)
    assert bytes((await asker.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body) == modes
    disk.failing = set()

    async def agree() -> bool:
        files = state.topics.file, state.groups.file
        return all(file.written == file.changes for file in files)

    await eventually(agree)
    assert json.loads(table(asker, "topics.json"))["topicConfigTable"].keys() == topics.keys()
    written = json.loads(table(asker, "subscriptionGroup.json"))["subscriptionGroupTable"]
    assert written.keys() == groups.keys()
    assert written["kept"]["retryQueueNums"] == 3
    deletion = {"groupName": "kept", "cleanOffset": "true"}
    assert (await asker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, deletion)).code == 0
    assert (await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Kept"})).code == 0
    assert ("Kept" in state.topics.table, "kept" in state.groups.table) == (False, False)


async def test_messages_stay_where_their_topic_cannot_be_deleted(asker: Asker, disk: CountingDisk) -> None:
    state = asker.broker.state
    assert (await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)).code == 0
    for _ in range(3):
        assert (await asker.send("Kept")).code == 0
    state.offsets.commit("Kept", "readers", 0, 2)
    disk.failing = {"topics.json"}
    deletion, cleaning = await asyncio.gather(
        asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Kept"}), asker.ask(RequestCode.CLEAN_UNUSED_TOPIC, {})
    )
    assert (deletion.code, cleaning.code) == (ResponseCode.SYSTEM_ERROR, 0)
    assert "Kept" in state.topics.table
    assert state.store.max_offset("Kept", 0) == 3
    assert state.offsets.get("Kept", "readers", 0) == 2
    disk.failing = set()
    assert (await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Kept"})).code == 0
    assert ("Kept" in state.topics.table, "Kept" in state.store.topics()) == (False, False)
    assert state.offsets.get("Kept", "readers", 0) == -1


async def test_a_topic_stays_whose_queues_cannot_be_deleted(
    asker: Asker, disk: CountingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = asker.broker.state
    assert (await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)).code == 0
    assert (await asker.send("Kept")).code == 0

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(state.store), "delete_topics", fail)
        assert (
            await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Kept"})
        ).code == ResponseCode.SYSTEM_ERROR
    assert "Kept" in state.topics.table
    assert state.store.max_offset("Kept", 0) == 1


async def test_a_topic_created_again_during_its_deletion_keeps_its_new_messages(
    asker: Asker, disk: CountingDisk
) -> None:
    state = asker.broker.state
    assert (await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)).code == 0
    assert (await asker.send("Kept")).code == 0
    answers = await asyncio.gather(
        asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Kept"}),
        asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC),
        asker.send("Kept"),
    )
    assert [answer.code for answer in answers] == [0, 0, 0]
    assert state.store.max_offset("Kept", 0) - state.store.min_offset("Kept", 0) == 1


async def test_consumers_offsets_stay_where_their_group_cannot_be_deleted(asker: Asker, disk: CountingDisk) -> None:
    made = b'{"groupName":"kept"}'
    assert (await asker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, made)).code == 0
    asker.broker.state.offsets.commit("T", "kept", 0, 7)
    fields = {"groupName": "kept", "cleanOffset": "true"}
    disk.failing = {"subscriptionGroup.json"}
    assert (await asker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)).code == ResponseCode.SYSTEM_ERROR
    assert asker.broker.state.offsets.get("T", "kept", 0) == 7
    disk.failing = set()
    assert (await asker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)).code == 0
    assert asker.broker.state.offsets.get("T", "kept", 0) == -1
