"""Messages in and out, by every way that clients have."""

import asyncio
from struct import pack

import pytest

from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_formats.codecs.hashing import java_string_hash
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.codecs.properties import encode_properties
from tests.broker.conftest import Asker, eventually, messages

TAGGED = [SubscriptionData(topic="T", sub_string="A", tags_set=["A"], code_set=[java_string_hash("A")])]


async def test_what_is_sent_is_pulled(asker: Asker) -> None:
    sent = await asker.send("T", b"body", properties={"UNIQ_KEY": "0A0B", "TAGS": "A"})
    assert (sent.code, sent.ext_fields["queueId"], sent.ext_fields["queueOffset"]) == (0, "0", "0")
    assert sent.ext_fields["transactionId"] == "0A0B"
    host, _ = decode_message_id(sent.ext_fields["msgId"])
    assert host.text == asker.broker.address
    pulled = await asker.pull("T")
    assert (pulled.code, pulled.remark) == (0, "FOUND")
    (message,) = messages(pulled)
    assert (message.body, message.msg_id) == (b"body", sent.ext_fields["msgId"])
    assert message.properties == {
        "UNIQ_KEY": "0A0B", "TAGS": "A", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster",
    }  # fmt: skip
    offsets = (pulled.ext_fields[name] for name in ("minOffset", "nextBeginOffset", "maxOffset"))
    assert tuple(offsets) == ("0", "1", "1")


async def test_the_headers_of_old_clients_do_as_well(asker: Asker) -> None:
    fields: dict[str, object] = {
        "producerGroup": "pg", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 1,
        "sysFlag": 0, "bornTimestamp": 1, "flag": 7, "properties": "TAGS\x01A\x02",
    }  # fmt: skip
    sent = await asker.ask(RequestCode.SEND_MESSAGE, fields, b"x")
    assert sent.code == 0
    assert messages(await asker.pull("T", queue_id=1))[0].flag == 7


async def test_a_batch_becomes_messages_of_their_own(asker: Asker) -> None:
    own = encode_properties({"KEYS": "k"})
    batch = b"".join(
        pack(">iiiii", 22 + len(body) + len(own), 0, 0, 0, len(body)) + body + pack(">h", len(own)) + own
        for body in (b"one", b"two")
    )
    sent = await asker.send("T", batch, m="true", properties={"UNIQ_KEY": "B"})
    assert sent.code == 0
    ids = sent.ext_fields["msgId"].split(",")
    found = messages(await asker.pull("T"))
    assert [(one.body, one.queue_offset) for one in found] == [(b"one", 0), (b"two", 1)]
    assert [one.msg_id for one in found] == ids
    assert {(one.uniq_key, tuple(one.keys)) for one in found} == {("B", ("k",))}


@pytest.mark.parametrize(
    ("body", "properties", "topic"),
    [(b"\0" * 30, {}, "T"), (b"ok", {"DELAY": "1"}, "T"), (b"ok", {}, "%RETRY%cg"), (b"", {}, "T")],
    ids=["lengths that lie", "a delay", "a retry topic", "nothing"],
)
async def test_batches_that_cannot_be_stored_are_refused(
    asker: Asker, body: bytes, properties: dict[str, str], topic: str
) -> None:
    answer = await asker.send(topic, body, m="true", properties=properties)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_pull_waits_for_its_message(asker: Asker) -> None:
    await asker.send("T")
    pull = asyncio.ensure_future(asker.pull("T", 1, sysFlag=6, suspendTimeoutMillis=20_000))
    await asyncio.sleep(0.1)
    assert not pull.done()
    await asker.send("T", b"second")
    assert [one.body for one in messages(await pull)] == [b"second"]


async def test_a_pull_that_waits_is_not_woken_by_other_tags(asker: Asker) -> None:
    await asker.send("T")
    pull = asyncio.ensure_future(asker.pull("T", 1, sysFlag=6, subscription="A", suspendTimeoutMillis=20_000))
    await asyncio.sleep(0.1)
    await asker.send("T", properties={"TAGS": "B"})
    await asyncio.sleep(0.1)
    assert not pull.done()
    await asker.send("T", b"wanted", properties={"TAGS": "A"})
    assert [one.body for one in messages(await pull)] == [b"wanted"]


async def test_a_pull_that_waits_in_vain_is_told_so(asker: Asker) -> None:
    await asker.send("T")
    answer = await asker.pull("T", 1, sysFlag=6, suspendTimeoutMillis=100)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")


@pytest.mark.parametrize(
    ("offset", "code", "remark", "following"),
    [
        (2, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", "2"),
        (9, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", "2"),
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", "0"),
    ],
)
async def test_offsets_out_of_bounds_are_corrected(
    asker: Asker, offset: int, code: int, remark: str, following: str
) -> None:
    for _ in range(2):
        await asker.send("T")
    answer = await asker.pull("T", offset)
    assert (answer.code, answer.remark, answer.ext_fields["nextBeginOffset"]) == (code, remark, following)


async def test_an_empty_queue_has_nothing(asker: Asker) -> None:
    await asker.send("T")
    answer = await asker.pull("T", queue_id=1)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "NO_MATCHED_LOGIC_QUEUE")
    assert (await asker.pull("T", 5, queue_id=1)).code == ResponseCode.PULL_OFFSET_MOVED


async def test_tags_are_filtered(asker: Asker) -> None:
    for tag in ("A", "B", "A", "C"):
        await asker.send("T", tag.encode(), properties={"TAGS": tag})
    answer = await asker.pull("T", subscription=" A || C ")
    assert [one.body for one in messages(answer)] == [b"A", b"A", b"C"]
    answer = await asker.pull("T", subscription="D")
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "4")


async def test_subscriptions_of_heartbeats_count(asker: Asker) -> None:
    await asker.send("T", b"no", properties={"TAGS": "B"})
    await asker.send("T", b"yes", properties={"TAGS": "A"})
    assert (await asker.pull("T", sysFlag=0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    await asker.heartbeat("cg", *TAGGED)
    assert [one.body for one in messages(await asker.pull("T", sysFlag=0))] == [b"yes"]
    assert (await asker.pull("T", sysFlag=0, subVersion=9)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    await asker.send("Other")
    assert (await asker.pull("Other", sysFlag=0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST


async def test_a_pull_commits_the_offset_it_brings(asker: Asker) -> None:
    await asker.send("T")
    await asker.pull("T", sysFlag=5, commitOffset=1)
    fields: dict[str, object] = {"consumerGroup": "cg", "topic": "T", "queueId": 0}
    assert (await asker.ask(14, fields)).ext_fields == {"offset": "1"}


async def test_sql_is_refused_unless_it_is_switched_on(asker: Asker) -> None:
    await asker.send("T")
    answer = await asker.pull("T", expressionType="SQL92", subscription="a = 1")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "does not support consumer to filter message by SQL92" in (answer.remark or "")


class TestShortPolling:
    @pytest.fixture
    def config(self) -> BrokerConfig:
        return BrokerConfig(listen_port=0, long_polling_enable=False, short_polling_time_ms=20)

    async def test_a_pull_waits_for_a_moment_whatever_it_asks_for(self, asker: Asker) -> None:
        await asker.send("T")
        async with asyncio.timeout(60):
            answer = await asker.pull("T", 1, sysFlag=6, suspendTimeoutMillis=3_600_000)
        assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")


class TestSql:
    @pytest.fixture
    def config(self) -> BrokerConfig:
        return BrokerConfig(listen_port=0, enable_property_filter=True)

    async def test_properties_are_filtered(self, asker: Asker) -> None:
        for number in (1, 5, 9):
            await asker.send("T", str(number).encode(), properties={"a": str(number)})
        answer = await asker.pull("T", expressionType="SQL92", subscription="a > 3")
        assert [one.body for one in messages(answer)] == [b"5", b"9"]
        answer = await asker.pull("T", expressionType="SQL92", subscription="a >")  # the original has no filter then
        assert [one.body for one in messages(answer)] == [b"1", b"5", b"9"]
        answer = await asker.pull("T", expressionType="SQL92", subscription="")
        assert (answer.code, answer.remark) == (23, "parse the consumer's subscription failed")


async def test_lite_pulls_are_pulls(asker: Asker) -> None:
    await asker.send("T")
    fields: dict[str, object] = {
        "consumerGroup": "cg", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 20,
        "commitOffset": 0, "suspendTimeoutMillis": 1000, "subscription": "*", "subVersion": 0,
    }  # fmt: skip
    assert (await asker.ask(RequestCode.LITE_PULL_MESSAGE, fields)).code == 0


async def test_what_is_stored_is_there_after_a_restart(asker: Asker) -> None:
    await asker.send("T")
    await asker.pull("T", sysFlag=5, commitOffset=1)
    broker = asker.broker
    await broker.close()
    await broker.start()
    assert len(messages(await asker.pull("T"))) == 1
    fields: dict[str, object] = {"consumerGroup": "cg", "topic": "T", "queueId": 0}
    assert (await asker.ask(14, fields)).ext_fields == {"offset": "1"}


async def test_members_of_a_group_are_told_of_each_other(asker: Asker) -> None:
    await asker.heartbeat("cg", *TAGGED)

    async def is_told() -> bool:
        return [one.ext_fields["consumerGroup"] for one in asker.told] == ["cg"]

    await eventually(is_told)
    ids = await asker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "cg"})
    assert bytes(ids.body) == b'{"consumerIdList":["c1"]}'
    unknown = await asker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "none"})
    assert (unknown.code, unknown.remark) == (1, "no consumer for this group, none")
