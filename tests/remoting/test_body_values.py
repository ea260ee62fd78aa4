"""Values of bodies in other forms than declared, as fastjson reads them."""

import json
from typing import Any

import pytest

from rmq_core.remoting.bodies.clients import ConsumerData, HeartbeatData, LockBatchRequest
from rmq_core.remoting.bodies.codec import MessageQueue, decode_body
from rmq_core.remoting.bodies.configs import (
    DataVersion,
    GroupConfigList,
    MessageRequestMode,
    OffsetTable,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigList,
)
from rmq_core.remoting.bodies.pop import LiteSubscriptions, QueryAssignment
from rmq_core.remoting.bodies.routes import KVTable, TopicList
from rmq_formats.errors import DecodeError


def decoded(value: object, kind: type[Any]) -> Any:
    return decode_body(json.dumps(value).encode(), kind, is_request=True)


def test_a_heartbeat_of_a_cpp_client_is_that_of_a_java_client() -> None:
    consumer = {
        "groupName": "cpp", "consumeFromWhere": 0, "consumeType": 1, "messageModel": 1,
        "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": "1700000000000"}],
    }  # fmt: skip
    by_name = {
        **consumer, "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 1700000000000}],
    }  # fmt: skip
    ordinals = decoded({"clientID": "1@c", "consumerDataSet": [consumer]}, HeartbeatData)
    assert ordinals == decoded({"clientID": "1@c", "consumerDataSet": [by_name]}, HeartbeatData)
    assert ordinals.consumer_data_set[0].message_model == "CLUSTERING"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "BROADCASTING"),
        (1, "CLUSTERING"),
        (2, "LITE_SELECTIVE"),
        ("1", "CLUSTERING"),
        ("", ""),
        ("broadcasting", "BROADCASTING"),
        ("Broadcasting", "BROADCASTING"),
        (None, "CLUSTERING"),
        ("NONE", ""),
    ],
)
def test_an_enum_is_read_by_name_in_any_case_or_by_ordinal(value: object, expected: str) -> None:
    assert decoded({"messageModel": value}, ConsumerData).message_model == expected


@pytest.mark.parametrize("value", [3, -1, 1.0, True, [], {}])
def test_an_enum_without_such_a_constant_is_refused_with_its_path(value: object) -> None:
    with pytest.raises(DecodeError, match=r"HeartbeatData.*consumerDataSet\[0\].messageModel"):
        decoded({"consumerDataSet": [{"messageModel": value}]}, HeartbeatData)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5),
        ("5", 5),
        ("-5", -5),
        ("1,000", 1000),
        ("5.0", 5),
        (5.9, 5),
        (True, 1),
        (False, 0),
        (None, 0),
        ("", 0),
        ("null", 0),
        ("1700000000000", 1_700_000_000_000),
    ],
)
def test_an_integer_is_read_from_text_fractions_and_booleans(value: object, expected: int) -> None:
    assert decoded({"counter": value}, DataVersion).counter == expected


@pytest.mark.parametrize("value", ["five", "0x5", "5.5", [5], {"a": 5}, 1e300])
def test_what_is_no_integer_is_refused(value: object) -> None:
    with pytest.raises(DecodeError, match=r"`\$.counter`"):
        decoded({"counter": value}, DataVersion)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, True),
        (0, False),
        (2, False),
        ("1", True),
        ("0", False),
        ("TRUE", True),
        ("false", False),
        ("Y", True),
        ("N", False),
        (1.0, True),
        (None, True),
        ("", True),
    ],
)
def test_a_boolean_is_read_from_numbers_and_text(value: object, expected: bool) -> None:
    assert decoded({"consumeEnable": value}, SubscriptionGroupConfig).consume_enable is expected


def test_a_text_is_read_from_what_is_none() -> None:
    values = {"a": 4711, "b": 1.5, "c": True, "d": {"e": [1]}, "f": None, "g": "text"}
    texts = {"a": "4711", "b": "1.5", "c": "true", "d": '{"e":[1]}', "g": "text"}
    assert decoded({"table": values}, KVTable).table == texts
    attributes = {"+message.type": "DELAY", "+reserve.time": 72}
    topics = decoded({"topicConfigList": [{"topicName": 7, "attributes": attributes}]}, TopicConfigList)
    assert topics.topic_config_list == [
        TopicConfig(topic_name="7", attributes={"+message.type": "DELAY", "+reserve.time": "72"})
    ]
    assert decoded({"topicList": [1, "two", None]}, TopicList).topic_list == ["1", "two"]


def test_lists_and_tables_within_others_are_read_so_too() -> None:
    groups = decoded(
        {"groupConfigList": [{"groupName": "g", "retryMaxTimes": "3", "groupRetryPolicy": {
            "type": 0, "exponentialRetryPolicy": {"initial": "10", "max": 20.0}}}]}, GroupConfigList,
    )  # fmt: skip
    policy = groups.group_config_list[0].group_retry_policy
    assert (policy.type, policy.exponential_retry_policy.initial, policy.exponential_retry_policy.max) == (
        "EXPONENTIAL", 10, 20,
    )  # fmt: skip
    offsets = decode_body(b"{'offsetTable':{'T@g':{0:'5',1:7}}}", OffsetTable, is_request=True)
    assert offsets.offset_table == {"T@g": {0: 5, 1: 7}}
    queues = decoded({"mqSet": [{"brokerName": "b", "queueId": "3", "topic": 5}]}, LockBatchRequest)
    assert queues.mq_set == [MessageQueue(broker_name="b", queue_id=3, topic="5")]


def test_the_bodies_of_other_codes_have_ordinals_too() -> None:
    assert decoded({"mode": 1, "popShareQueueNum": "2"}, MessageRequestMode).mode == "POP"
    assert decoded({"messageModel": 0}, QueryAssignment).message_model == "BROADCASTING"
    change = {"action": 2, "offsetOption": {"type": 1, "value": "7"}, "liteTopicSet": [5]}
    (subscription,) = decoded({"subscriptionSet": [change]}, LiteSubscriptions).subscription_set
    assert (subscription.action, subscription.offset_option.type, subscription.offset_option.value) == (
        "COMPLETE_ADD", "OFFSET", 7,
    )  # fmt: skip
    assert decoded({"topicConfigList": [{"topicFilterType": 1}]}, TopicConfigList).topic_config_list == [
        TopicConfig(topic_filter_type="MULTI_TAG")
    ]


@pytest.mark.parametrize("name", ["groupname", "group_name", "GROUP-NAME", "GroupName"])
def test_a_member_is_found_by_its_name_in_any_case(name: str) -> None:
    assert decoded({name: "g", "unknown": {"groupName": "x"}}, ConsumerData).group_name == "g"
    assert decoded({name: "other", "groupName": "g"}, ConsumerData).group_name == "g"


def test_single_quotes_and_bare_names_are_read() -> None:
    beat = decode_body(b"{clientID:'c',consumerDataSet:[{groupName:'g',messageModel:0,},]}", HeartbeatData)
    assert beat.client_id == "c"
    assert beat.consumer_data_set[0].message_model == "BROADCASTING"
