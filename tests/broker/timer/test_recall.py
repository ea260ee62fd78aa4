"""Messages that wait are recalled by their handles."""

from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.recall_handle import RecallHandle
from rmq_formats.codecs.topics import TIMER_TOPIC
from rmq_formats.pending_timers import pending_timers
from tests.broker.conftest import Asker, Clock, messages, small_store
from tests.broker.timer.test_delivery import DAY_MS, SECOND_MS, pulled, taken_in


@pytest.fixture
def config() -> BrokerConfig:
    return BrokerConfig(listen_port=0, recall_message_enable=True)


async def sent(asker: Asker, topic: str, key: str, delay_s: int = 600) -> str:
    """Send a message for later; the handle to recall it by."""
    properties = {"TIMER_DELAY_SEC": str(delay_s), "UNIQ_KEY": key}
    return str((await asker.send(topic, key.encode(), properties=properties)).ext_fields["recallHandle"])


async def recall(asker: Asker, handle: str, topic: str = "T") -> RemotingCommand:
    return await asker.ask(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle, "producerGroup": "pg"})


async def test_a_recalled_message_does_not_come(asker: Asker, clock: Clock) -> None:
    handles = [await sent(asker, "T", key) for key in ("U1", "U2", "U3")]
    answer = await recall(asker, handles[1])
    assert (answer.code, answer.ext_fields["msgId"]) == (0, "U2")
    await taken_in(asker, 4)
    clock.ahead_ms += 700 * SECOND_MS
    assert [one.body for one in await pulled(asker, "T", 2)] == [b"U1", b"U3"]
    assert b'"T":{"count":0' in bytes((await asker.ask(RequestCode.GET_TIMER_METRICS)).body)


async def test_a_recall_is_stored_as_the_original_stores_it(asker: Asker) -> None:
    handle = RecallHandle.decode(await sent(asker, "T", "U1"))
    await recall(asker, handle.encode())
    waiting, recalling = messages(await asker.pull(TIMER_TOPIC))
    assert handle == ("T", "broker-a", int(waiting.properties["TIMER_OUT_MS"]) + 1, "U1")
    found = recalling.properties
    assert (recalling.body, recalling.tags, recalling.uniq_key) == (b"0", "_RECALL_TAG_", "U1")
    assert (found["TIMER_DEL_UNIQKEY"], found["REAL_TOPIC"], found["REAL_QID"]) == ("T+U1", "T", "0")
    assert found["TIMER_OUT_MS"] == waiting.properties["TIMER_OUT_MS"]


async def test_the_same_key_of_another_topic_is_not_recalled(asker: Asker, clock: Clock) -> None:
    await sent(asker, "Other", "U1")
    await recall(asker, await sent(asker, "T", "U1"))
    await taken_in(asker, 3)
    clock.ahead_ms += 700 * SECOND_MS
    await pulled(asker, "Other")
    assert messages(await asker.pull("T")) == []


async def test_a_message_far_ahead_is_recalled_on_the_way(asker: Asker, clock: Clock) -> None:
    handle = await sent(asker, "T", "U1", 3 * 86_400 - 5)
    await sent(asker, "T", "U2", 3 * 86_400 - 5)
    await recall(asker, handle)
    await taken_in(asker, 3)
    clock.ahead_ms += 2 * DAY_MS + 60 * SECOND_MS
    await taken_in(asker, 6)
    clock.ahead_ms += DAY_MS
    assert [one.body for one in await pulled(asker, "T")] == [b"U2"]


async def test_what_was_recalled_stays_recalled_after_a_restart(asker: Asker, clock: Clock) -> None:
    await recall(asker, await sent(asker, "T", "U1"))
    await sent(asker, "T", "U2")
    await taken_in(asker, 3)
    await asker.broker.close()
    clock.ahead_ms += 700 * SECOND_MS
    await asker.broker.start()
    assert [one.body for one in await pulled(asker, "T")] == [b"U2"]


async def test_a_recall_is_of_all_messages_of_its_key(asker: Asker, clock: Clock) -> None:
    deliver_ms = str(clock() + 600 * SECOND_MS)
    for _ in range(2):
        answer = await asker.send("T", b"U1", properties={"TIMER_DELIVER_MS": deliver_ms, "UNIQ_KEY": "U1"})
    await asker.send("T", b"U2", properties={"TIMER_DELIVER_MS": deliver_ms, "UNIQ_KEY": "U2"})
    for _ in range(3):
        assert (await recall(asker, str(answer.ext_fields["recallHandle"]))).code == 0
    await taken_in(asker, 6)
    clock.ahead_ms += 700 * SECOND_MS
    assert [one.body for one in await pulled(asker, "T")] == [b"U2"]
    assert b'"T":{"count":0' in bytes((await asker.ask(RequestCode.GET_TIMER_METRICS)).body)


async def test_a_message_that_has_no_time_has_no_handle(asker: Asker) -> None:
    for properties in ({"UNIQ_KEY": "U"}, {"DELAY": "1"}, {"TIMER_DELIVER_MS": "5"}):
        assert "recallHandle" not in (await asker.send("T", properties=properties)).ext_fields


@pytest.mark.parametrize(
    ("handle", "topic", "code", "remark"),
    [
        (("T", "broker-a", 60_000, "U"), "Absent", ResponseCode.TOPIC_NOT_EXIST, "not exist"),
        (("U", "broker-a", 60_000, "U"), "T", ResponseCode.ILLEGAL_OPERATION, "topic not match"),
        (("T", "broker-b", 60_000, "U"), "T", ResponseCode.ILLEGAL_OPERATION, "service not available"),
        (("T", "broker-a", -60_000, "U"), "T", ResponseCode.ILLEGAL_OPERATION, "timestamp invalid"),
        (("T", "broker-a", 4 * DAY_MS, "U"), "T", ResponseCode.ILLEGAL_OPERATION, "timestamp invalid"),
        ("djIgVCBi", "T", ResponseCode.ILLEGAL_OPERATION, "handle is invalid"),
        ("@", "T", ResponseCode.ILLEGAL_OPERATION, "handle is invalid"),
        ("", "T", ResponseCode.ILLEGAL_OPERATION, "handle is invalid"),
    ],
)
async def test_what_cannot_be_recalled_is_told_so(
    asker: Asker, clock: Clock, handle: str | tuple[str, str, int, str], topic: str, code: int, remark: str
) -> None:
    await asker.send("T")
    if isinstance(handle, tuple):
        handle = RecallHandle(handle[0], handle[1], clock() + handle[2], handle[3]).encode()
    answer = await recall(asker, handle, topic)
    assert answer.code == code
    assert remark in (answer.remark or "")


class TestSwitchedOff:
    @pytest.fixture
    def config(self) -> BrokerConfig:
        return BrokerConfig(listen_port=0)

    async def test_nothing_is_recalled_unless_the_settings_say_so(self, asker: Asker) -> None:
        answer = await recall(asker, await sent(asker, "T", "U1"))
        assert answer.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(("asked", "tags", "has_topic"), [
    ("true", "yes", True), ("false", "no", False), ("auto", "yes", False), ("auto", "no", True),
])  # fmt: skip
async def test_both_ways_to_store_a_recall_are_read(
    tmp_path: Path, clock: Clock, asked: str, tags: str, has_topic: bool
) -> None:
    """As 5.3.3 stores it, with its topic, and as brokers from 5.4 on do, in whose stores TAGS are indexed."""
    config = BrokerConfig(listen_port=0, recall_message_enable=True, append_topic_for_timer_delete_key=asked)
    store = replace(small_store(tmp_path / "store"), index_tags=tags)
    async with Broker(config, store, clock) as broker, RemotingClient() as client:
        asker = Asker(broker, client, {})
        await sent(asker, "Other", "U1")
        await recall(asker, await sent(asker, "T", "U1"))
        await sent(asker, "T", "U2")
        recalling = messages(await asker.pull(TIMER_TOPIC))[2]
        assert recalling.properties["TIMER_DEL_UNIQKEY"] == ("T+U1" if has_topic else "U1")
        await taken_in(asker, 4)
    assert {(one["topic"], one["uniq_key"]): one["is_recalled"] for one in pending_timers(store.root).to_pylist()} == {
        ("Other", "U1"): False, ("T", "U1"): True, ("T", "U2"): False
    }  # fmt: skip
    other = replace(config, append_topic_for_timer_delete_key="false" if has_topic else "true")
    async with Broker(other, store, clock) as broker, RemotingClient() as client:
        asker = Asker(broker, client, {})
        clock.ahead_ms += 700 * SECOND_MS
        assert [one.body for one in await pulled(asker, "T")] == [b"U2"]
        assert [one.body for one in await pulled(asker, "Other")] == [b"U1"]
