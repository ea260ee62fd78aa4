"""Light queues (LMQ) at a broker: sends that name them, pulls, offsets, delays and transactions."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.tables import consumer_offsets
from rmq_core.broker.tables import names as table_names
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.configs import OffsetTable
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.pop import PopHandle, TopicKind, decode_offsets, decode_starts
from rmq_core.store.config import StoreConfig
from rmq_formats.codecs.consumer_offsets_json import light_consumer_offsets
from rmq_formats.codecs.layout import PROPERTY_POP_CK
from tests.broker.conftest import Asker, Clock, eventually, messages, small_store
from tests.broker.pop.conftest import Popped, Popper
from tests.conftest import LAYOUT_STORES

NAMES, PLACES = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"
GROUP = "%LMQ%devices"


@pytest.fixture
def store_config(tmp_path: Path) -> StoreConfig:
    return light_store(tmp_path / "store")


def light_store(path: Path, most: int = 20_000) -> StoreConfig:
    """A small store with light queues."""
    small = {name: getattr(small_store(path), name) for name in StoreConfig.__dataclass_fields__}
    return StoreConfig(**{**small, "lmq_enabled": True, "multi_dispatch_enabled": True, "max_lmq_queues": most})


def names(*queues: str, **others: str) -> dict[str, str]:
    """Properties of a message to light queues."""
    return {"UNIQ_KEY": "0A0B", "WAIT": "true", NAMES: ",".join(f"%LMQ%{queue}" for queue in queues), **others}


async def places(asker: Asker, topic: str, queue_id: int = 0) -> list[str | None]:
    """What the messages of a queue say of their places."""
    return [one.properties.get(PLACES) for one in messages(await asker.pull(topic, queue_id=queue_id))]


async def test_what_names_light_queues_is_pulled_from_each(asker: Asker) -> None:
    assert (await asker.send("T", b"1", properties=names("a", "b"))).code == 0
    assert (await asker.send("U", b"2", 3, properties=names("b"))).code == 0
    assert (await asker.send("T", b"3")).code == 0
    first, second = await asker.pull("%LMQ%a"), await asker.pull("%LMQ%b", consumerGroup=GROUP)
    assert [one.body for one in messages(first)] == [b"1"]
    assert [(one.body, one.topic, one.queue_id, one.queue_offset) for one in messages(second)] == [
        (b"1", "T", 0, 0), (b"2", "U", 3, 0),
    ]  # fmt: skip
    assert (second.ext_fields["nextBeginOffset"], second.ext_fields["maxOffset"]) == ("2", "2")
    assert [one.properties[PLACES] for one in messages(second)] == ["0,0", "1"]
    assert (await asker.ask(RequestCode.GET_MAX_OFFSET, {"topic": "%LMQ%b", "queueId": 0})).ext_fields["offset"] == "2"
    assert "%LMQ%a" not in asker.broker.state.topics.table
    assert GROUP not in asker.broker.state.groups.table
    assert (await asker.pull("%LMQ%a", queue_id=1)).code == ResponseCode.INVALID_PARAMETER


async def test_a_pull_of_a_light_queue_waits_for_its_message(asker: Asker) -> None:
    pull = asyncio.ensure_future(asker.pull("%LMQ%a", sysFlag=6, suspendTimeoutMillis=60_000))
    await asyncio.sleep(0.1)
    await asker.send("T", b"other", properties=names("b"))
    await asyncio.sleep(0.1)
    assert not pull.done()
    await asker.send("T", b"wanted", properties=names("b", "a", TAGS="x"))
    assert [one.body for one in messages(await pull)] == [b"wanted"]


async def test_a_light_queue_is_filtered_by_tags(asker: Asker) -> None:
    for tag in "xyx":
        await asker.send("T", tag.encode(), properties=names("a", TAGS=tag))
    assert [one.body for one in messages(await asker.pull("%LMQ%a", subscription="x"))] == [b"x", b"x"]


async def test_messages_can_be_sent_to_a_light_queue_itself(asker: Asker) -> None:
    sent = [await asker.send("%LMQ%a", b"%d" % number) for number in range(2)]
    named = await asker.send("T", b"2", properties=names("a"))
    sent.append(await asker.send("%LMQ%a", b"3", properties=names("a", "b")))
    assert [one.ext_fields["queueOffset"] for one in (*sent, named)] == ["0", "1", "3", "0"]
    assert [one.body for one in messages(await asker.pull("%LMQ%a"))] == [b"0", b"1", b"2", b"3"]
    assert (await asker.send("%LMQ%a", queue_id=1)).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("wrong", ["plain", "%LMQ%a/b", "%LMQ%a,,%LMQ%b", "%LMQ%" + "n" * 251, " %LMQ%a"])
async def test_names_that_cannot_be_light_queues_are_refused(asker: Asker, wrong: str) -> None:
    answer = await asker.send("T", properties={**names("a"), NAMES: f"%LMQ%a,{wrong},%LMQ%c"})
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert NAMES in str(answer.remark)
    assert (await asker.send("%LMQ%a/b")).code == ResponseCode.INVALID_PARAMETER
    assert not asker.broker.store.topics()


async def test_names_that_are_blank_count_for_nothing(asker: Asker) -> None:
    for blank in (" ", ",", " ,"):
        assert (await asker.send("T", properties={**names("a"), NAMES: blank, PLACES: "9"})).code in (0, 13)
    assert set(asker.broker.store.topics()) == {"T"}


class TestFew:
    """A broker that takes two light queues."""

    @pytest.fixture
    def store_config(self, tmp_path: Path) -> StoreConfig:
        return light_store(tmp_path / "store", most=2)

    async def test_no_more_are_made(self, asker: Asker) -> None:
        assert (await asker.send("T", properties=names("a", "b"))).code == 0
        for refused in (await asker.send("T", properties=names("a", "c")), await asker.send("%LMQ%c")):
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "maxLmqConsumeQueueNum" in str(refused.remark)
        assert (await asker.send("T", properties=names("b", "a"))).code == 0
        assert (await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "%LMQ%a"})).code == 0
        assert (await asker.send("T", properties=names("c"))).code == 0
        assert (await asker.pull("%LMQ%a")).code == ResponseCode.PULL_NOT_FOUND

    async def test_nor_by_messages_that_come_later(self, asker: Asker, clock: Clock) -> None:
        """Neither of them has made a queue when the others come."""
        assert (await asker.send("T", properties=names("a", DELAY="1"))).code == 0
        assert (await asker.send("%LMQ%b", properties={"UNIQ_KEY": "0A0B", "DELAY": "1"})).code == 0
        for refused in (await asker.send("T", properties=names("c", DELAY="1")), await asker.send("%LMQ%d")):
            assert "maxLmqConsumeQueueNum" in str(refused.remark)
        clock.ahead_ms += 2000

        async def are_there() -> bool:
            return {"%LMQ%a", "%LMQ%b"} <= set(asker.broker.store.topics())

        await eventually(are_there, 60)


async def test_offsets_are_kept_in_the_file_of_light_queues(
    config: BrokerConfig, store_config: StoreConfig, clock: Clock
) -> None:
    fields: dict[str, Any] = {"queueId": 0}
    async with Broker(config, store_config, clock) as broker, RemotingClient({}) as client:
        asker = Asker(broker, client, {})
        for number in range(5):
            await asker.send("T", b"%d" % number, properties=names("a"))
        await asker.pull("T")  # makes the group cg
        for topic, group, offset in (("%LMQ%a", GROUP, 3), ("%LMQ%a", "cg", 2), ("T", "cg", 4), ("T", GROUP, 1)):
            about = {"topic": topic, "consumerGroup": group}
            done = await asker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, **about, "commitOffset": offset})
            assert done.code == 0
        told = await asker.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        assert decode_body(told.body, OffsetTable).lmq_offset_table == {f"%LMQ%a@{GROUP}": 3, f"T@{GROUP}": 1}
    saved = (Path(store_config.root) / "config" / "lmqConsumerOffset.json").read_text()
    assert json.loads(saved)["lmqOffsetTable"] == {f"%LMQ%a@{GROUP}": 3, f"T@{GROUP}": 1}
    assert light_consumer_offsets(saved) == {
        ("%LMQ%a", GROUP): {0: 3}, ("T", GROUP): {0: 1}, ("%LMQ%a", "cg"): {0: 2}, ("T", "cg"): {0: 4},
    }  # fmt: skip
    assert not (Path(store_config.root) / "config" / "consumerOffset.json").exists()
    async with Broker(config, store_config, clock) as broker, RemotingClient({}) as client:
        asker = Asker(broker, client, {})
        asked = await asker.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, {**fields, "topic": "%LMQ%a", "consumerGroup": GROUP}
        )
        assert asked.ext_fields["offset"] == "3"
        await asker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP, "cleanOffset": "true"})
        assert broker.state.offsets.get("%LMQ%a", GROUP, 0) == -1


async def test_to_save_offsets_looks_at_no_light_queue(asker: Asker) -> None:
    """There may be a million: the body of the file is there at any time, whatever is done to the table."""
    offsets = asker.broker.state.offsets
    before = offsets.body()
    offsets.adopt(OffsetTable(lmq_offset_table={"%LMQ%b@%LMQ%g": 7}, offset_table={"U@cg": {1: 3}}))
    for topic, group, queue_id in product(("T", "%LMQ%a"), ("cg", "%LMQ%g"), (0, 2)):
        offsets.commit(topic, group, queue_id, 5)
    offsets.commit("%LMQ%a", "%LMQ%g", 0, 6)
    offsets.clone("%LMQ%g", "%LMQ%h", "%LMQ%a")
    offsets.clone("cg", "other", "T")
    offsets.remove_topic("T")
    body = offsets.body()
    assert body.lmq_offset_table == {"%LMQ%b@%LMQ%g": 7, "%LMQ%a@%LMQ%g": 6, "%LMQ%a@%LMQ%h": 6}
    assert body.offset_table == {"U@cg": {1: 3}, "%LMQ%a@cg": {0: 5, 2: 5}}
    assert (body.lmq_offset_table is before.lmq_offset_table, body.offset_table is before.offset_table) == (True, True)


async def test_a_broker_that_gets_light_queues_keeps_its_offsets(
    config: BrokerConfig, store_config: StoreConfig, clock: Clock
) -> None:
    async with Broker(config, small_store(Path(store_config.root)), clock) as broker, RemotingClient({}) as client:
        asker = Asker(broker, client, {})
        for _ in range(5):
            await asker.send("T")
        await asker.pull("T", sysFlag=5, commitOffset=4)
    async with Broker(config, store_config, clock) as broker:
        assert broker.state.offsets.get("T", "cg", 0) == 4


async def test_offsets_beyond_the_end_of_a_light_queue_are_set_back(
    config: BrokerConfig, store_config: StoreConfig, clock: Clock
) -> None:
    async with Broker(config, store_config, clock) as broker, RemotingClient({}) as client:
        await Asker(broker, client, {}).send("T", properties=names("a"))
        broker.state.offsets.commit("%LMQ%a", GROUP, 0, 7)
    async with Broker(config, store_config, clock) as broker:
        assert broker.state.offsets.get("%LMQ%a", GROUP, 0) == 1


async def test_a_delayed_message_gets_its_places_when_it_is_delivered(asker: Asker, clock: Clock) -> None:
    assert (await asker.send("T", b"late", properties=names("a", DELAY="1"))).code == 0
    await asker.send("T", b"soon", properties=names("a"))
    clock.ahead_ms += 2000

    async def delivered() -> bool:
        return [one.body for one in messages(await asker.pull("%LMQ%a"))] == [b"soon", b"late"]

    await eventually(delivered, 60)
    assert await places(asker, "T") == ["0", "1"]


async def test_a_timer_message_gets_its_places_when_it_is_delivered(asker: Asker, clock: Clock) -> None:
    assert (await asker.send("T", b"late", properties=names("a", TIMER_DELAY_SEC="2"))).code == 0
    assert "%LMQ%a" not in asker.broker.store.topics()
    clock.ahead_ms += 5000

    async def delivered() -> bool:
        return await places(asker, "%LMQ%a") == ["0"]

    await eventually(delivered, 60)


async def test_half_messages_take_places_and_committed_ones_take_others(asker: Asker) -> None:
    """As the original has it: ``RMQ_SYS_TRANS_HALF_TOPIC`` is none of the topics that it leaves out."""
    half = await asker.send("T", b"half", properties=names("a", TRAN_MSG="true", PGROUP="pg"), f=4)
    offset = int(half.ext_fields["msgId"][16:], 16)
    fields = {
        "producerGroup": "pg", "tranStateTableOffset": half.ext_fields["queueOffset"], "commitLogOffset": offset,
        "commitOrRollback": 8, "fromTransactionCheck": "false", "msgId": "0A0B", "transactionId": "0A0B",
    }  # fmt: skip
    assert (await asker.ask(RequestCode.END_TRANSACTION, fields)).code == 0
    found = messages(await asker.pull("%LMQ%a"))
    assert [(one.topic, one.properties[PLACES]) for one in found] == [("RMQ_SYS_TRANS_HALF_TOPIC", "0"), ("T", "1")]


async def test_light_queues_are_neither_topics_nor_unused(asker: Asker) -> None:
    await asker.send("T", properties=names("a"))
    await asker.heartbeat(GROUP, SubscriptionData(topic="%LMQ%a", sub_string="*"))
    assert f"%RETRY%{GROUP}" not in asker.broker.state.topics.table
    assert (await asker.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
    assert asker.broker.store.max_offset("%LMQ%a", 0) == 1
    assert (await asker.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "%LMQ%a"})).code == 0
    assert (await asker.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "%LMQ%a"})).code == 0
    assert (await asker.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP, "topic": "%LMQ%a"})).code == 0


@pytest.fixture
async def plain(config: BrokerConfig, tmp_path: Path, clock: Clock) -> AsyncIterator[Asker]:
    """A broker without light queues."""
    async with Broker(config, small_store(tmp_path / "plain"), clock) as broker, RemotingClient({}) as client:
        yield Asker(broker, client, {})


async def test_without_the_settings_names_are_properties_like_any(plain: Asker) -> None:
    assert (await plain.send("T", properties=names("a"))).code == 0
    assert await places(plain, "T") == [None]
    assert (await plain.pull("%LMQ%a")).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await plain.send("%LMQ%a")).code == ResponseCode.INVALID_PARAMETER


async def test_offsets_and_queues_of_a_java_broker_are_taken_over(
    golden: Callable[[str], Path], tmp_path: Path, config: BrokerConfig, clock: Clock
) -> None:
    shutil.copytree(golden("lmq") / "store", tmp_path / "java")
    java = replace(
        light_store(tmp_path / "java"),
        commitlog_file_bytes=LAYOUT_STORES["lmq"].commitlog_file_bytes,
        file_reserved_hours=1 << 20,
    )
    async with Broker(config, java, clock) as broker, RemotingClient({}) as client:
        assert broker.state.offsets.get("%LMQ%device0", "%LMQ%group0", 0) == 5
        assert broker.state.offsets.get("RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS", 0) == 12
        pulled = messages(await Asker(broker, client, {}).pull("%LMQ%device0", 5))
        assert len(pulled) > 5
        assert all("%LMQ%device0" in one.properties[NAMES].split(",") for one in pulled)


async def test_nobody_can_fill_the_tables_with_names_that_he_makes_up(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_offsets, "_MAX_LMQ_ENTRIES", 20)
    monkeypatch.setattr(table_names, "MAX_AUTO_CREATED_TOPICS", len(asker.broker.state.topics.table) + 5)
    sent = await asker.send("T", properties=names("a"))
    offset = int(sent.ext_fields["msgId"][16:], 16)
    made, state = len(asker.broker.state.topics.table), asker.broker.state
    for number in range(60):
        topic, group = f"%LMQ%{number}", f"%LMQ%g{number}"
        await asker.pull(topic, consumerGroup=group, sysFlag=5, commitOffset=1)
        await asker.pull("%LMQ%a", consumerGroup="cg" if number % 2 else group, sysFlag=5, commitOffset=1)
        back = {"offset": offset, "group": group, "delayLevel": 0, "originMsgId": "0A0B", "originTopic": "T"}
        await asker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
    assert len(state.offsets.table) <= 20 + 1
    assert len(state.offsets._next_pull_offsets) <= 20
    assert len(state.topics.table) <= made + 5
    assert (await asker.pull("T")).code == 0


@pytest.mark.parametrize("group", ["%LMQ%/../../x", "%LMQ%a\n", "%LMQ%" + 255 * "g"])
async def test_a_group_s_name_makes_no_topic_that_cannot_be_one(asker: Asker, group: str) -> None:
    sent = await asker.send("T", properties=names("a"))
    topics = set(asker.broker.state.topics.table)
    for level in (0, 1, -1):
        back = {
            "offset": int(sent.ext_fields["msgId"][16:], 16), "group": group, "delayLevel": level,
            "originMsgId": "0A0B", "originTopic": "T",
        }  # fmt: skip
        assert (await asker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code != 0
    assert set(asker.broker.state.topics.table) == topics


async def test_names_of_light_queues_and_their_groups_are_not_longer_than_any(asker: Asker) -> None:
    await asker.send("T")
    for topic, group in (("%LMQ%" + 255 * "q", GROUP), ("T", "%LMQ%" + 255 * "g")):
        offset = {"topic": topic, "consumerGroup": group, "queueId": 0, "commitOffset": 1}
        assert (await asker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, offset)).code != 0


async def popped_place(popper: Popper, **more: object) -> list[Popped]:
    """Pop a light queue; the messages with the handles that clients make. Source: ``#processPopResponse``."""
    answer = await popper.ask(**more)
    if answer.code != ResponseCode.SUCCESS:
        return []
    told = answer.ext_fields
    starts, offsets = decode_starts(told["startOffsetInfo"]), decode_offsets(told["msgOffsetInfo"])
    found = []
    for one in messages(answer):
        if PROPERTY_POP_CK in one.properties:
            handle = PopHandle.decode(one.properties[PROPERTY_POP_CK])
        else:
            at = one.properties[NAMES].split(",").index(popper.topic)
            place, key = int(one.properties[PLACES].split(",")[at]), (TopicKind.NORMAL, 0)
            assert place in offsets[key]
            handle = PopHandle(
                starts[key],
                int(told["popTime"]),
                int(told["invisibleTime"]),
                int(told["reviveQid"]),
                TopicKind.NORMAL,
                popper.broker,
                0,
                place,
            )
        found.append(Popped(one.body, one.topic, handle, one.reconsume_times, one.properties))
    return found


async def test_light_queues_are_popped_by_their_places(asker: Asker, clock: Clock) -> None:
    """What is acknowledged is, what is not comes back; a queue that is not there leaves no row of the group."""
    popper = Popper(asker, topic="%LMQ%b")
    assert await popped_place(popper) == []
    assert await popped_place(popper, order="true") == []
    assert not [key for key in asker.broker.state.offsets.table if key.startswith("%LMQ%")]
    waiting = asyncio.ensure_future(popped_place(popper, pollTime=60_000, invisibleTime=2000))
    await asyncio.sleep(0.05)
    for number, (queue_id, light) in enumerate([(2, ("a",)), (3, ("a", "b")), (1, ("b", "a")), (0, ("b",))]):
        assert (await asker.send("T", b"%d" % number, queue_id, properties=names(*light))).code == 0
    found = await waiting + await popped_place(popper, invisibleTime=2000)
    assert [(one.body, one.topic, one.place) for one in found] == [
        (b"1", "T", (0, 0)), (b"2", "T", (0, 1)), (b"3", "T", (0, 2)),
    ]  # fmt: skip
    assert (await popper.ack(found[1])).code == 0
    later = await popper.change(found[2], 1000)
    assert later.offset == 2
    again: dict[bytes, int] = {}

    async def back() -> bool:
        for _ in range(4):
            clock.ahead_ms += 500
            await asyncio.sleep(0.01)
        for one in await popped_place(popper, invisibleTime=60_000):
            assert (one.topic, one.handle.kind) == ("%LMQ%b", TopicKind.RETRY_V1)
            assert (await popper.ack(one)).code == 0
            again[one.body] = one.reconsume_times
        return len(again) >= 2

    await eventually(back)
    assert again == {b"1": 1, b"3": 1}
    assert "%RETRY%g_%LMQ%b" in asker.broker.state.topics.table
    assert "%LMQ%b" not in asker.broker.state.topics.table


async def test_groups_of_light_queues_do_not_pop(asker: Asker) -> None:
    """For each group that pops there are retry topics, and rows in files of groups and their queues."""
    await asker.send("T")
    pop = {
        "consumerGroup": GROUP, "topic": "T", "queueId": -1, "maxMsgNums": 1, "invisibleTime": 1000, "pollTime": 0,
        "bornTime": 0, "initMode": 0,
    }  # fmt: skip
    assert (await asker.ask(RequestCode.POP_MESSAGE, pop)).code == ResponseCode.NO_PERMISSION
    for topic, group in (("T", GROUP), ("%LMQ%a", "cg")):
        mode = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
        assert (await asker.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(mode).encode())).code != 0
