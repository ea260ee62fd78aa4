import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.codecs.consumer_offsets_json import consumer_offsets
from rmq_formats.codecs.fastjson import loads
from rmq_formats.codecs.subscription_groups_json import StoredGroupConfig, group_configs
from rmq_formats.codecs.topics_json import StoredTopicConfig, topic_configs, topic_names
from rmq_formats.errors import DecodeError

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), 1 << 63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values, st.sampled_from([None, 0, 2]), st.booleans())
def test_standard_json_is_read_as_the_standard_library_does(
    value: object, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert loads(text) == json.loads(text)


def test_bare_integer_keys_become_strings() -> None:
    assert loads('{"offsetTable":{"t@g":{0:5,1:7\n\t\t}, "u@g":{-1:2, "3" : 4}}}') == {
        "offsetTable": {"t@g": {"0": 5, "1": 7}, "u@g": {"-1": 2, "3": 4}}
    }


def test_object_keys_become_their_canonical_json() -> None:
    queue = '{"brokerName":"b","queueId":0,"topic":"T"}'
    assert loads(f'{{"offsetTable":{{{queue}:{{"brokerOffset":2}},{queue.replace("0", "1")}:3}}}}') == {
        "offsetTable": {queue: {"brokerOffset": 2}, queue.replace("0", "1"): 3}
    }
    assert loads('{ { "topic" : "é", "queueId" : 0 } : 1 }') == {'{"queueId":0,"topic":"é"}': 1}
    assert loads("{{{0:1}:2}:3}") == {'{"{\\"0\\":1}":2}': 3}


def test_a_text_key_that_holds_an_object_stays_text() -> None:
    assert loads('{"{\\"queueId\\":0}":1}') == {'{"queueId":0}': 1}


def test_the_last_of_equal_keys_counts() -> None:
    assert loads('{"a":1,"a":2,0:1,"0":3}') == {"a": 2, "0": 3}


def test_control_characters_in_strings_are_taken_as_they_are() -> None:
    assert loads('"a\tb\\u0001\\ud83d\\ude00"') == "a\tb\x01😀"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("", 0),
        ("  ", 2),
        ("{", 1),
        ("[", 1),
        ('"abc', 0),
        ('{"a"', 4),
        ('{"a":', 5),
        ('{"a":1', 6),
        ("{0", 2),
        ("[1,", 3),
        ("[1,]", 3),
        ('{"a":1,}', 7),
        ("[1 2]", 3),
        ('{"a" 1}', 5),
        ("{a:1}", 1),
        ("{[1]:2}", 1),
        ("{true:1}", 1),
        ("{0.5:1}", 2),
        ("1 2", 1),
        ("nul", 0),
        ("NaN", 0),
        ("+1", 0),
        ("Infinity", 0),
        ("01", 0),
        ("1.", 1),
        (".5", 0),
        ("'a'", 0),
        ("1e999", 0),
        ("9" * 200, 0),
        ('"\\x41"', 1),
        ("\ufeff{}", 0),
    ],
)
def test_other_texts_are_refused_with_their_offset(text: str, at: int) -> None:
    with pytest.raises(DecodeError) as caught:
        loads(text)
    assert caught.value.physical_offset is not None
    assert abs(caught.value.physical_offset - at) <= 1


@pytest.mark.parametrize("opening", ["[", '{"a":', "{0:", "{", "[{0:"])
def test_nesting_has_a_limit(opening: str) -> None:
    with pytest.raises(DecodeError, match="nested too deep"):
        loads(opening * 100_000)


def test_nesting_within_the_limit_is_accepted() -> None:
    value = loads("[" * 64 + "]" * 64)
    for _ in range(63):
        assert isinstance(value, list)
        (value,) = value
    assert value == []


@given(st.text(st.sampled_from('{}[]:,"01-.eE+ntrufalse\\ \n'), max_size=60))
def test_garbage_is_a_value_or_a_typed_error(text: str) -> None:
    try:
        value = loads(text)
    except DecodeError:
        return
    assert not isinstance(value, float) or math.isfinite(value)


def test_every_cut_of_a_file_is_refused() -> None:
    text = '{"t":{"a b":[1,2.5,-3e2],0:null},"u":{{"q":true}:"x\\n"}}'
    loads(text)
    for size in range(len(text)):
        with pytest.raises(DecodeError):
            loads(text[:size])


def test_topics_are_read_with_the_defaults_of_java() -> None:
    text = """{"dataVersion":{"counter":1}, "topicConfigTable":{
        "A":{"attributes":{"message.type":"FIFO"},"order":true,"perm":4,"readQueueNums":8,
             "topicFilterType":"MULTI_TAG","topicName":"A","topicSysFlag":1,"writeQueueNums":2},
        "B":{"topicName":null,"attributes":null}}}"""
    assert topic_configs(text) == {
        "A": StoredTopicConfig("A", 8, 2, 4, "MULTI_TAG", 1, True, {"message.type": "FIFO"}),
        "B": StoredTopicConfig("B", 16, 16, 6, "SINGLE_TAG", 0, False, {}),
    }
    assert topic_names(text) == ["A", "B"]
    assert hash(StoredTopicConfig("A")) == hash(StoredTopicConfig("A", attributes={"a": "b"}))


def test_a_file_without_topics_has_none() -> None:
    assert topic_names("{}") == topic_names('{"topicConfigTable":null}') == []


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "1",
        '{"topicConfigTable":[]}',
        '{"topicConfigTable":{"A":1}}',
        "{",
        '{"topicConfigTable":{"A":{"perm":"6"}}}',
        '{"topicConfigTable":{"A":{"perm":true}}}',
        '{"topicConfigTable":{"A":{"order":1}}}',
        '{"topicConfigTable":{"A":{"topicName":1}}}',
        '{"topicConfigTable":{"A":{"attributes":{"a":1}}}}',
        '{"topicConfigTable":{"A":{"attributes":[]}}}',
    ],
)
def test_members_of_another_type_are_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        topic_configs(text)


def test_consumer_offsets_are_by_topic_and_group() -> None:
    text = '{"offsetTable":{"T@g":{0:5,1:"7"},"%RETRY%g@g":null,"T@g@broadcast":{0:1},"T":{0:1},"@g":{0:1}}}'
    assert consumer_offsets(text) == {("T", "g"): {0: 5, 1: 7}, ("%RETRY%g", "g"): {}}
    assert consumer_offsets("{}") == {}


@pytest.mark.parametrize(
    "bad",
    [
        '{"T@g":{0:null}}',
        '{"T@g":{0:"1.5"}}',
        '{"T@g":{"x":1}}',
        '{"T@g":[1]}',
        "[1]",
        '{"T@g":{2147483648:0}}',
        '{"T@g":{0:9223372036854775808}}',
    ],
)
def test_offsets_that_are_none_are_errors(bad: str) -> None:
    with pytest.raises(DecodeError):
        consumer_offsets(f'{{"offsetTable":{bad}}}')


def test_values_that_fastjson_takes_for_longs_are_offsets() -> None:
    text = '{"offsetTable":{"T@g":{0:true,1:1.5,2:"1,000",-1:0}}}'
    assert consumer_offsets(text) == {("T", "g"): {0: 1, 1: 1, 2: 1000, -1: 0}}


def test_groups_have_the_defaults_of_java() -> None:
    found = group_configs(
        '{"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":3,"attributes":{"a":"b"}},"h":{}}}'
    )
    assert found == {"g": StoredGroupConfig("g", retry_max_times=3, attributes={"a": "b"}), "h": StoredGroupConfig("h")}
    with pytest.raises(DecodeError, match="consumeEnable has a bad value"):
        group_configs('{"subscriptionGroupTable":{"g":{"consumeEnable":"true"}}}')
    with pytest.raises(DecodeError, match="retryMaxTimes has a bad value"):
        group_configs('{"subscriptionGroupTable":{"g":{"retryMaxTimes":2147483648}}}')
