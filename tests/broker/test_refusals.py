"""Clients with unusual bodies are served, and those that are refused leave a line in the log."""

import json
import logging

import pytest

from rmq_core.remoting.bodies.clients import ConsumerConnection, ConsumerIdList
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.configs import SubscriptionGroups
from rmq_core.remoting.codes import RequestCode, ResponseCode
from tests.broker.conftest import Asker

CPP_GROUP = {
    "groupName": "cpp", "consumeFromWhere": 0, "consumeType": 1, "messageModel": 1,
    "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": "1700000000000"}],
}  # fmt: skip


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("refused request")]


@pytest.mark.parametrize("groups", [1, 50], ids=["short", "long"])
async def test_a_cpp_client_becomes_a_member_of_its_group(asker: Asker, groups: int) -> None:
    beat = {"clientID": "1@c", "consumerDataSet": [CPP_GROUP] * groups}
    assert (await asker.ask(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())).code == 0
    answer = await asker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "cpp"})
    assert decode_body(answer.body, ConsumerIdList).consumer_id_list == ["1@c"]
    connections = await asker.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "cpp"})
    assert decode_body(connections.body, ConsumerConnection).message_model == "CLUSTERING"


async def test_a_group_with_numbers_as_text_is_made(asker: Asker) -> None:
    body = b"{'groupName':'g','retryMaxTimes':'3','consumeEnable':1,'brokerId':null,'attributes':{}}"
    assert (await asker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)).code == 0
    answer = await asker.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    group = decode_body(answer.body, SubscriptionGroups).subscription_group_table["g"]
    assert (group.retry_max_times, group.consume_enable) == (3, True)


async def test_a_refused_client_leaves_one_line(asker: Asker, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        answer = await asker.ask(RequestCode.HEART_BEAT, {}, b'{"consumerDataSet":[{"messageModel":9}]}')
        assert answer.code == ResponseCode.SYSTEM_ERROR
    (line,) = refusals(caplog)
    assert line.startswith("refused request 34 of 127.0.0.1:")
    assert "messageModel" in line
    assert asker.broker.address not in line


async def test_other_refusals_leave_lines_of_their_own(asker: Asker, caplog: pytest.LogCaptureFixture) -> None:
    await asker.ask(RequestCode.HEART_BEAT, {}, b"no JSON")
    await asker.ask(RequestCode.LOCK_BATCH_MQ, {}, b"no JSON")
    await asker.ask(RequestCode.SEND_MESSAGE_V2, {"b": "T"})
    await asker.ask(9999)
    lines = refusals(caplog)
    assert [line.split(" ")[2] for line in lines] == ["34", "41", "310", "9999"]
    assert "is null" in lines[2]
    assert all(record.levelno == logging.WARNING for record in caplog.records if "refused" in record.getMessage())


async def test_what_is_not_there_is_no_refusal(asker: Asker, caplog: pytest.LogCaptureFixture) -> None:
    assert (await asker.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "None"})).code != 0
    assert (await asker.pull("None")).code == ResponseCode.TOPIC_NOT_EXIST
    assert refusals(caplog) == []
