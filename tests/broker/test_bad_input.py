"""Bad input: the original's response code, and the other connections go on."""

import asyncio
import errno
import os
import re
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.header import request
from rmq_formats.codecs.layout import MAX_BODY_BYTES
from tests.broker.conftest import Asker, messages

PAGE = Path(__file__).parents[2] / "docs" / "broker.md"


async def test_an_unknown_code_is_told_so(asker: Asker) -> None:
    answer = await asker.ask(999)
    assert (answer.code, answer.remark) == (
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        " request type 999 not supported",
    )


@pytest.mark.parametrize(
    "frame",
    [
        pack(">ii", 32 << 20, 0),
        pack(">ii", 20, 1 << 20) + b"x" * 16,
        pack(">ii", 6, 2) + b"{]",
        pack(">ii", 6, 0x7F000002) + b"{}",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["too long", "header longer than the frame", "no JSON", "unknown type", "another protocol"],
)
async def test_a_frame_that_lies_ends_its_connection_only(asker: Asker, frame: bytes) -> None:
    host, port = asker.broker.address.split(":")
    assert (await asker.send("T")).code == 0
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(frame)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    assert len(messages(await asker.pull("T"))) == 1


async def test_a_frame_that_is_cut_off_loses_nothing(asker: Asker) -> None:
    host, port = asker.broker.address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(pack(">ii", 1000, 20) + b'{"code":310')
    await writer.drain()
    writer.close()
    assert (await asker.send("T")).code == 0


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("a/b", ResponseCode.INVALID_PARAMETER),
        ("..", ResponseCode.INVALID_PARAMETER),
        ("", ResponseCode.INVALID_PARAMETER),
        ("x" * 128, ResponseCode.INVALID_PARAMETER),
        ("SCHEDULE_TOPIC_XXXX", ResponseCode.NO_PERMISSION),
        ("SELF_TEST_TOPIC", ResponseCode.NO_PERMISSION),
        ("%RETRY%..", ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_topics_that_clients_may_not_use_are_refused(asker: Asker, topic: str, code: int, tmp_path: Path) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    assert (await asker.send(topic)).code == code
    create = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    assert (await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create)).code == ResponseCode.INVALID_PARAMETER
    delete = await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    assert delete.code == ResponseCode.INVALID_PARAMETER
    assert {path.name for path in tmp_path.iterdir()} == before


async def test_a_topic_of_an_unknown_filter_type_is_refused(asker: Asker) -> None:
    """Source: ``CreateTopicRequestHeader#checkFields``; a Java broker does not load such a ``topics.json``."""
    create = {
        "topic": "New", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "NO_TAG", "order": "false",
    }  # fmt: skip
    answer = await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "topicFilterType = [NO_TAG] value invalid")
    assert (await asker.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "New"})).code == ResponseCode.TOPIC_NOT_EXIST


async def test_an_unknown_topic_has_no_messages(asker: Asker) -> None:
    assert (await asker.pull("None")).code == ResponseCode.TOPIC_NOT_EXIST
    for code in (RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_TOPIC_CONFIG):
        assert (await asker.ask(code, {"topic": "None"})).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(("template", "queue_id"), [("none", 0), ("T", 0)])
async def test_a_topic_that_may_not_be_made_is_not(asker: Asker, template: str, queue_id: int) -> None:
    await asker.send("T")
    answer = await asker.send("New", queue_id=queue_id, c=template)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("queue_id", [4, 1 << 30])
async def test_queues_that_are_not_there_are_refused(asker: Asker, queue_id: int) -> None:
    assert (await asker.send("T", queue_id=queue_id)).code == ResponseCode.INVALID_PARAMETER
    await asker.send("T")
    for wrong in (queue_id, -1):
        assert (await asker.pull("T", queue_id=wrong)).code == ResponseCode.INVALID_PARAMETER


async def test_a_negative_queue_is_any(asker: Asker) -> None:
    answer = await asker.send("T", queue_id=-1)
    assert 0 <= int(answer.ext_fields["queueId"]) < 4


@pytest.mark.parametrize(
    ("body", "properties"),
    [(b"x" * (MAX_BODY_BYTES + 1), {}), (b"x", {"k": "v" * 32768}), (b"", {}), (b"x", {"DELAY": "soon"})],
    ids=["a large body", "large properties", "no body", "a delay that is no number"],
)
async def test_messages_over_their_limits_are_illegal(asker: Asker, body: bytes, properties: dict[str, str]) -> None:
    answer = await asker.send("T", body, properties=properties)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert (await asker.send("T")).ext_fields["queueOffset"] == "0"


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"TIMER_DELAY_SEC": "soon"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
async def test_kinds_of_messages_that_are_not_there_are_refused(
    asker: Asker, properties: dict[str, str], code: int
) -> None:
    assert (await asker.send("T", properties=properties)).code == code


async def test_a_missing_field_is_named(asker: Asker) -> None:
    answer = await asker.ask(RequestCode.PULL_MESSAGE, {"topic": "T"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "is null" in (answer.remark or "")


async def test_a_group_with_a_bad_name_is_not_made(asker: Asker) -> None:
    await asker.send("T")
    assert (await asker.pull("T", consumerGroup="a/b")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    answer = await asker.ask(200, {}, b'{"groupName":"../x"}')
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert (await asker.ask(200, {}, b"{")).code == ResponseCode.SYSTEM_ERROR


async def test_an_unknown_group_commits_nothing(asker: Asker) -> None:
    await asker.send("T")
    fields: dict[str, object] = {"consumerGroup": "none", "topic": "T", "queueId": 0, "commitOffset": 1}
    answer = await asker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    fields |= {"consumerGroup": "TOOLS_CONSUMER", "topic": "none"}
    assert (await asker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_an_offset_is_of_a_queue_that_the_topic_has(asker: Asker) -> None:
    """There are four thousand million queue ids, and the table is for ever."""
    await asker.send("T")
    fields = {"consumerGroup": "TOOLS_CONSUMER", "topic": "T", "commitOffset": 1}
    for queue_id, code in ((0, 0), (3, 0), (4, 29), (-1, 29), (2**31 - 1, 29)):
        answer = await asker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields | {"queueId": queue_id})
        assert answer.code == code, (queue_id, answer.remark)
    assert asker.broker.state.offsets.of("T", "TOOLS_CONSUMER").keys() == {0, 3}


@pytest.mark.parametrize("expression", ["||", " || "])
async def test_a_subscription_of_no_tag_is_told_so(asker: Asker, expression: str) -> None:
    await asker.send("T")
    assert (await asker.pull("T", subscription=expression)).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


class TestForbidden:
    @pytest.fixture
    def config(self) -> BrokerConfig:
        return BrokerConfig(listen_port=0, auto_create_topic_enable=False, auto_create_subscription_group=False)

    async def test_nothing_is_made_by_itself(self, asker: Asker) -> None:
        assert (await asker.send("T")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await asker.send("TBW102")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await asker.pull("broker-a")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class TestFullDisk:
    @pytest.fixture
    def no_room(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Has the file system refuse new space, as long as the list it gives is not empty."""
        full: list[bool] = []
        allocate = os.posix_fallocate

        def refuse(descriptor: int, offset: int, size: int) -> None:
            if full:
                raise OSError(errno.ENOSPC, "No space left on device")
            allocate(descriptor, offset, size)

        monkeypatch.setattr(os, "posix_fallocate", refuse)
        return full

    async def test_it_is_told_and_heals(self, asker: Asker, no_room: list[bool]) -> None:
        assert (await asker.send("T", b"x" * 900_000)).code == 0
        no_room.append(True)
        codes = {(await asker.send("T", b"y" * 900_000)).code for _ in range(3)}
        assert codes <= {ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE, 0}
        assert codes & {ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE}
        assert messages(await asker.pull("T"))[0].body == b"x" * 900_000
        no_room.clear()
        assert (await asker.send("T", b"z")).code == 0


def handled_codes(broker: Broker) -> list[int]:
    return sorted(broker._server._handlers)


async def test_the_page_of_the_broker_has_each_code(asker: Asker) -> None:
    rows = PAGE.read_text().split("## Request codes")[1].split("Any other code")[0].splitlines()
    told = {int(code) for row in rows for code in re.findall(r"\b\d+\b", re.sub(r"to (clients|producers).*", "", row))}
    assert told == set(handled_codes(asker.broker))


GARBAGE: dict[str, object] = {
    "topic": "\x00/../", "consumerGroup": "\x01", "group": "\x01", "queueId": -5, "offset": 1 << 62,
    "queueOffset": -(1 << 62), "maxMsgNums": -1, "sysFlag": -1, "commitOffset": -9, "suspendTimeoutMillis": -9,
    "subVersion": 0, "subscription": "||", "timestamp": -(1 << 62), "isForce": "true", "key": "\x01", "maxNum": -3,
    "beginTimestamp": -9, "endTimestamp": -99, "clientID": "", "clientId": "", "msgId": "", "delayLevel": 1 << 30,
    "producerGroup": "", "defaultTopic": "", "defaultTopicQueueNums": -1, "bornTimestamp": -1, "flag": -1,
    "properties": "\x01\x02\x01DELAY\x01-", "a": "", "b": "%RETRY%", "c": "", "d": -1, "e": -1, "f": -1, "g": -1,
    "h": -1, "i": "\x02DELAY\x01\x02", "m": "true", "readQueueNums": -1, "writeQueueNums": 1 << 30, "perm": 99,
    "topicFilterType": "", "order": "true", "attributes": ",=,+,-", "isOrder": "true", "srcGroup": "", "destGroup": "",
    "statsName": "", "statsKey": "", "groupName": "",
}  # fmt: skip


@pytest.mark.parametrize("fields", [{}, GARBAGE], ids=["nothing", "garbage"])
@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"groupName":7,"mqSet":[{}]}', b"\xff\xfe"])
async def test_every_code_answers_garbage(
    asker: Asker, fields: dict[str, object], body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    codes = handled_codes(asker.broker)
    assert len(codes) > 50
    for code in codes:
        answer = await asker.ask(code, fields, body)
        assert answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED, code
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR" or record.exc_info] == []
    assert (await asker.send("T")).code == 0
    assert len(messages(await asker.pull("T"))) == 1


async def test_a_oneway_send_is_stored_and_not_answered(asker: Asker) -> None:
    fields = dict(zip("abcdefghm", ["pg", "T", "TBW102", "4", "0", "0", "1", "0", "false"], strict=True))
    await asker.client.invoke_oneway(asker.broker.address, request(310, fields, b"oneway"))
    answer = await asker.pull("T", sysFlag=6, suspendTimeoutMillis=5000)
    assert [one.body for one in messages(answer)] == [b"oneway"]
