"""Waiting for the disk; clients that come and go."""

import asyncio
import errno
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import WAITING_BYTES, Connection, Handler, HandlerResponse
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.store.config import FlushDiskType, StoreConfig
from tests.broker.conftest import Asker, Clock, eventually, messages, small_store


class TestSyncFlush:
    @pytest.fixture
    def store_config(self, tmp_path: Path) -> StoreConfig:
        return small_store(tmp_path / "store", FlushDiskType.SYNC)

    async def test_an_acknowledged_message_is_on_the_disk(self, asker: Asker) -> None:
        store = asker.broker.store
        answers = await asyncio.gather(*(asker.send("T", b"%d" % number, properties={}) for number in range(50)))
        ends = [int(answer.ext_fields["msgId"][16:], 16) for answer in answers]
        assert {answer.code for answer in answers} == {0}
        assert store.flushed_offset > max(ends)
        assert len(messages(await asker.pull("T", maxMsgNums=50))) == 32  # as many as one pull may give

    async def test_answers_come_in_the_order_of_the_log(self, asker: Asker) -> None:
        answers = await asyncio.gather(*(asker.send("T") for _ in range(20)))
        assert [answer.ext_fields["queueOffset"] for answer in answers] == [str(number) for number in range(20)]

    async def test_who_does_not_wait_is_answered_at_once(self, asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(asker.broker.store, "dispatch", lambda: True)  # nobody asks for a flush
        assert (await asker.send("T", properties={"WAIT": "false"})).code == 0

    async def test_a_disk_that_fails_acknowledges_nothing(self, asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
        assert (await asker.send("T", b"kept")).code == 0

        def fail(_: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, fail)
        refused = [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
        assert [(await asker.send("T", b"lost")).code for _ in range(2)] == refused
        assert [one.body for one in messages(await asker.pull("T"))] == [b"kept"]


def hang_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Have each force of a file wait for the event that is returned."""
    goes_on = threading.Event()

    def wait(_: int) -> None:
        goes_on.wait(60)

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, wait)
    return goes_on


class TestSlowDisk:
    @pytest.fixture
    def config(self) -> BrokerConfig:
        return BrokerConfig(listen_port=0, sync_flush_timeout_ms=100)

    @pytest.fixture
    def store_config(self, tmp_path: Path) -> StoreConfig:
        return small_store(tmp_path / "store", FlushDiskType.SYNC)

    async def test_a_send_that_waits_too_long_is_told_so(self, asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
        await asker.send("T", properties={"WAIT": "false"})
        disk_goes_on = hang_disk(monkeypatch)
        try:
            answer = await asker.send("T")
        finally:
            disk_goes_on.set()
        assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert answer.ext_fields["queueOffset"] == "1"


class TestHungDisk:
    @pytest.fixture
    def config(self) -> BrokerConfig:
        return BrokerConfig(listen_port=0, sync_flush_timeout_ms=60_000, max_waiting_bytes=100 * WAITING_BYTES)

    @pytest.fixture
    def store_config(self, tmp_path: Path) -> StoreConfig:
        return replace(small_store(tmp_path / "store", FlushDiskType.SYNC), commitlog_file_bytes=64 << 20)

    async def test_what_waits_for_it_takes_no_memory_and_is_read_up_to_a_limit(
        self, asker: Asker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await asker.send("T", properties={"WAIT": "false"})
        disk_goes_on = hang_disk(monkeypatch)
        server, store = asker.broker._server, asker.broker.store
        handlers = cast(dict[int, Handler], server._handlers)
        send = handlers[RequestCode.SEND_MESSAGE_V2]
        asked: list[RemotingCommand] = []

        def note(command: RemotingCommand, connection: Connection) -> HandlerResponse:
            asked.append(command)
            return send(command, connection)

        handlers[RequestCode.SEND_MESSAGE_V2] = note
        sends = [asyncio.create_task(asker.send("T", bytes(100_000))) for _ in range(150)]
        try:

            async def is_held_up() -> bool:
                return server.held_bytes >= 100 * WAITING_BYTES

            await eventually(is_held_up)
            await asyncio.sleep(0.2)
            assert 100 <= len(asked) <= 102
            assert {len(command.body) for command in asked} == {0}
            assert server.held_bytes < 100 * WAITING_BYTES + (2 << 20)
            assert not store.fault
            async with RemotingClient() as other:  # who does not wait for the disk is served
                where = {"topic": "T", "queueId": 0}
                assert (await Asker(asker.broker, other, {}).ask(RequestCode.GET_MAX_OFFSET, where)).code == 0
        finally:
            disk_goes_on.set()
        assert {answer.code for answer in await asyncio.gather(*sends)} == {0}


async def test_a_member_that_has_gone_is_forgotten_and_the_others_told(asker: Asker) -> None:
    await asker.heartbeat("cg", SubscriptionData(topic="T"))
    async with RemotingClient() as second:
        other = Asker(asker.broker, second, {})
        await other.heartbeat("cg", SubscriptionData(topic="T"), client_id="c2")
        ids = await asker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "cg"})
        assert bytes(ids.body) == b'{"consumerIdList":["c1","c2"]}'

    async def is_gone() -> bool:
        answer = await asker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "cg"})
        return bytes(answer.body) == b'{"consumerIdList":["c1"]}'

    await eventually(is_gone)
    assert len(asker.told) == 3  # it came, the other came, the other went


async def test_members_that_get_all_messages_are_not_told_of_each_other(asker: Asker) -> None:
    await asker.heartbeat("cg", SubscriptionData(topic="T"), model="BROADCASTING")
    await asker.send("T")
    assert (await asker.pull("T", sysFlag=0)).code == 0
    assert asker.told == []


async def test_groups_that_may_not_broadcast_do_not(asker: Asker) -> None:
    await asker.ask(200, {}, b'{"groupName":"cg","consumeBroadcastEnable":false}')
    await asker.send("T")
    await asker.heartbeat("cg", SubscriptionData(topic="T"), model="BROADCASTING")
    assert (await asker.pull("T", sysFlag=0)).code == ResponseCode.NO_PERMISSION
    await asker.ask(200, {}, b'{"groupName":"cg","consumeEnable":false}')
    assert (await asker.pull("T", sysFlag=0)).code == ResponseCode.NO_PERMISSION


@pytest.fixture
def frequent_housekeeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that starts now looks for clients that are gone ten times a second."""
    monkeypatch.setattr("rmq_core.broker.broker._HOUSEKEEPING_S", 0.1)


@pytest.mark.usefixtures("frequent_housekeeping")
async def test_a_client_without_heartbeats_is_gone(asker: Asker, clock: Clock) -> None:
    await asker.heartbeat("cg")
    clock.ahead_ms += 121_000

    async def is_gone() -> bool:
        async with RemotingClient() as other:
            answer = await other.invoke(asker.broker.address, request(38, {"consumerGroup": "cg"}))
        return answer.code == ResponseCode.SYSTEM_ERROR

    await eventually(is_gone, 15)


async def test_the_second_port_has_no_pulls(asker: Asker) -> None:
    await asker.send("T")
    host, port = asker.broker.address.split(":")
    fast = f"{host}:{int(port) - 2}"
    assert (await asker.client.invoke(fast, RemotingCommand(21))).code == 0
    answer = await asker.client.invoke(fast, RemotingCommand(11, fields={"topic": "T"}))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_reply_goes_straight_to_who_has_asked(asker: Asker) -> None:
    pushed: list[tuple[bytes, dict[str, str]]] = []

    def take(command: RemotingCommand, _: object) -> RemotingCommand:
        pushed.append((bytes(command.body), command.ext_fields))
        return command.response()

    asker.handlers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = take
    await asker.heartbeat()
    fields: dict[str, object] = {
        "a": "pg", "b": "DefaultCluster_REPLY_TOPIC", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0,
        "i": "REPLY_TO_CLIENT\x01c1\x02CORRELATION_ID\x017\x02",
    }  # fmt: skip
    answer = await asker.ask(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"answer")
    assert answer.code == 0
    ((body, told),) = pushed
    assert (body, told["storeHost"]) == (b"answer", asker.broker.address)
    assert "CORRELATION_ID\x017\x02" in told["properties"]
    assert messages(await asker.pull("DefaultCluster_REPLY_TOPIC"))[0].body == b"answer"
    for properties, remark in (("", "is null"), ("REPLY_TO_CLIENT\x01gone\x02", "channel of <gone> not found")):
        answer = await asker.ask(RequestCode.SEND_REPLY_MESSAGE_V2, fields | {"i": properties}, b"x")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert remark in (answer.remark or "")
