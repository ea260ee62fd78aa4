"""Topics with batch queues (BatchConsumeQueue) at a broker, and the inner batches that it stores for them."""

import asyncio
from pathlib import Path
from struct import pack

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.header import RemotingCommand
from rmq_core.store.config import StoreConfig
from rmq_formats.codecs.batch_consumequeue import inner_messages
from rmq_formats.codecs.properties import encode_properties
from tests.broker.conftest import Asker, Clock, messages

FLAGS = 0xC0
KEY = {"UNIQ_KEY": "0A0B", "WAIT": "true"}


async def make(asker: Asker, topic: str = "B", attributes: str = "+queue.type=BatchCQ") -> RemotingCommand:
    """Create a topic."""
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", "attributes": attributes,
    }  # fmt: skip
    return await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def batch(*bodies: bytes, **properties: str) -> bytes:
    """A client's batch."""
    own = encode_properties(properties)
    return b"".join(
        pack(">iiiii", 22 + len(body) + len(own), 0, 0, 0, len(body)) + body + pack(">h", len(own)) + own
        for body in bodies
    )


@pytest.fixture
async def made(asker: Asker) -> Asker:
    """A broker with the topic B, which has batch queues."""
    assert (await make(asker)).code == 0
    return asker


async def test_a_batch_becomes_one_record_with_a_place_for_each_message(made: Asker) -> None:
    sent = [await made.send("B", batch(b"1", b"2", b"3"), m="true", properties=KEY) for _ in range(2)]
    assert [one.ext_fields["queueOffset"] for one in sent] == ["0", "3"]
    assert {one.ext_fields["batchUniqId"] for one in sent} == {"0A0B"}
    single = await made.send("B", b"alone")
    assert (single.ext_fields["queueOffset"], "batchUniqId" in single.ext_fields) == ("6", False)
    pulled = await made.pull("B", 4)
    assert (pulled.ext_fields["nextBeginOffset"], pulled.ext_fields["maxOffset"]) == ("7", "7")
    first, last = messages(pulled)
    assert (first.sys_flag, first.queue_offset) == (FLAGS, 3)
    assert [one.body for one in inner_messages(first)] == [b"1", b"2", b"3"]
    assert {name: first.properties[name] for name in ("INNER_NUM", "INNER_BASE", "UNIQ_KEY")} == {
        "INNER_NUM": "3", "INNER_BASE": "3", "UNIQ_KEY": "0A0B",
    }  # fmt: skip
    assert (last.body, last.queue_offset) == (b"alone", 6)


async def test_bounds_and_times_are_those_of_the_messages(made: Asker) -> None:
    queue = {"topic": "B", "queueId": 0}
    assert (await made.ask(RequestCode.GET_MIN_OFFSET, queue)).ext_fields["offset"] == "-1"
    assert (await made.ask(RequestCode.GET_MAX_OFFSET, queue)).ext_fields["offset"] == "0"
    await made.send("B", batch(b"1", b"2"), m="true", properties=KEY)
    assert (await made.ask(RequestCode.GET_MIN_OFFSET, queue)).ext_fields["offset"] == "0"
    assert (await made.ask(RequestCode.GET_MAX_OFFSET, queue)).ext_fields["offset"] == "2"
    found = await made.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**queue, "timestamp": 1})
    assert found.ext_fields["offset"] == "0"


async def test_a_batch_without_a_key_of_its_own_becomes_records(made: Asker) -> None:
    sent = await made.send("B", batch(b"1", b"2"), m="true", properties={"WAIT": "true"})
    assert len(sent.ext_fields["msgId"].split(",")) == 2
    assert [(one.body, one.queue_offset) for one in messages(await made.pull("B"))] == [(b"1", 0), (b"2", 1)]
    assert (await made.send("B", b"3")).ext_fields["queueOffset"] == "2"


async def test_a_client_may_set_the_flags_itself(made: Asker) -> None:
    body = batch(b"1", b"2")
    assert (await made.send("B", body, f=FLAGS, properties=KEY | {"INNER_NUM": "2"})).code == 0
    for properties in (KEY | {"INNER_NUM": "3"}, KEY | {"DELAY": "1"}, KEY | {"TRAN_MSG": "true"}):
        assert (await made.send("B", body, f=FLAGS, properties=properties)).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await made.send("B", b"no batch", f=FLAGS, properties=KEY)).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await made.send("T", body, f=FLAGS, properties=KEY)).code == ResponseCode.MESSAGE_ILLEGAL
    assert made.broker.store.next_offset("B", 0) == 2


@pytest.mark.parametrize("name", ["INNER_NUM", "INNER_BASE"])
async def test_no_message_may_say_what_only_a_broker_knows(made: Asker, name: str) -> None:
    lies = {name: "1000000"}
    assert (await made.send("B", b"x", properties=KEY | lies)).code == ResponseCode.MESSAGE_ILLEGAL
    for own, common in (({}, lies), (lies, {})):
        answer = await made.send("B", batch(b"1", **own), m="true", properties={"WAIT": "true"} | common)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert (await made.send("B", batch(b"1", b"2"), m="true", properties=KEY)).ext_fields["queueOffset"] == "0"


@pytest.mark.parametrize("body", [b"", b"\0" * 30, batch(b"one")[:-1]])
async def test_batches_with_lengths_that_lie_are_refused(made: Asker, body: bytes) -> None:
    assert (await made.send("B", body, m="true", properties=KEY)).code == ResponseCode.MESSAGE_ILLEGAL
    assert made.broker.store.max_physical_offset == 0


async def test_a_pull_by_tags_waits_for_a_batch(made: Asker) -> None:
    fields = {"sysFlag": 6, "subscription": "t", "suspendTimeoutMillis": 60_000}
    pull = asyncio.ensure_future(made.pull("B", **fields))
    await asyncio.sleep(0.1)
    assert not pull.done()
    await made.send("B", batch(b"1", TAGS="t"), m="true", properties=KEY)
    assert len(messages(await pull)) == 1


async def test_the_kind_of_a_topic_s_queues_does_not_change(made: Asker) -> None:
    assert (await make(made, "B", "+queue.type=SimpleCQ")).code == ResponseCode.SYSTEM_ERROR
    assert (await make(made, "B", "")).code == 0
    await made.send("B", batch(b"1", b"2"), m="true", properties=KEY)
    await made.send("T", batch(b"1", b"2"), m="true", properties=KEY)
    store = made.broker.store
    assert {name: [store.max_offset(name, 0)] for name in store.topics()} == {"B": [2], "T": [2]}
    assert store.batch_topics == {"B"}
    assert (await made.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "B"})).code == 0
    await made.send("B", b"plain now")
    assert (store.batch_topics, store.max_offset("B", 0)) == (frozenset(), 1)


async def test_what_is_not_built_for_batches_is_refused(made: Asker) -> None:
    sent = await made.send("B", batch(b"1", b"2"), m="true", properties=KEY)
    offset = int(sent.ext_fields["msgId"][16:], 16)
    await made.pull("B")  # makes the group
    back = {"offset": offset, "group": "cg", "delayLevel": 0, "originMsgId": "0A0B", "originTopic": "B"}
    assert (await made.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == ResponseCode.SYSTEM_ERROR
    pop = {
        "consumerGroup": "cg", "topic": "B", "queueId": 0, "maxMsgNums": 8, "invisibleTime": 60_000, "pollTime": 0,
        "bornTime": 1_700_000_000_000, "initMode": 0, "exp": "*", "expType": "TAG",
    }  # fmt: skip
    refused = await made.ask(RequestCode.POP_MESSAGE, pop)
    assert "batch queues (BatchConsumeQueue)" in str(refused.remark)


async def test_a_restart_goes_on_with_the_places(config: BrokerConfig, store_config: StoreConfig, clock: Clock) -> None:
    for turn in range(3):
        async with Broker(config, store_config, clock) as broker, RemotingClient({}) as client:
            asker = Asker(broker, client, {})
            if not turn:
                await make(asker)
            sent = await asker.send("B", batch(b"1", b"2", b"3"), m="true", properties=KEY)
            assert sent.ext_fields["queueOffset"] == str(3 * turn)
            assert len(messages(await asker.pull("B"))) == turn + 1
    assert not (Path(store_config.root) / "consumequeue" / "B").exists()
