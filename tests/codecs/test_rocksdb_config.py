"""Keys and values of config in RocksDB against those of a real one, and cut or bent at every byte."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.codecs import consumer_offsets_json, subscription_groups_json, topics_json
from rmq_formats.codecs.rocksdb_config import (
    OffsetKey,
    Table,
    decode_json_value,
    decode_name_key,
    decode_offset,
    decode_offset_key,
    table_prefix,
)
from rmq_formats.errors import DecodeError

OFFSET_KEY = bytes.fromhex("01000102000b254c4d512567726f75703001000c254c4d5125646576696365300100000000")


def test_an_offset_s_key_is_java_s() -> None:
    assert decode_offset_key(OFFSET_KEY) == OffsetKey("%LMQ%group0", "%LMQ%device0", 0)
    assert OffsetKey("%LMQ%group0", "%LMQ%device0", 0).encode() == OFFSET_KEY


def test_each_pair_of_a_real_database_is_decoded(golden: Callable[[str], Path]) -> None:
    lines = (golden("rocksdb_lmq") / "expected" / "rocksdb" / "config-rdb.tsv").read_text("ascii").splitlines()
    pairs = [[bytes.fromhex(text) for text in line.split("\t")[1:]] for line in lines]
    data = [(key, value) for key, value in pairs if key.startswith(table_prefix(Table.CONSUMER_OFFSETS))]
    assert len(data) == len(pairs) - 1  # the other one is the data version
    for key, value in data:
        assert decode_offset_key(key).encode() == key
        assert decode_offset(value) == int.from_bytes(value, "big")


@given(st.text(max_size=40), st.text(max_size=40), st.integers(-(1 << 31), (1 << 31) - 1))
def test_keys_come_back(group: str, topic: str, queue_id: int) -> None:
    key = OffsetKey(group, topic, queue_id)
    assert decode_offset_key(key.encode()) == key


def test_a_name_is_a_key_of_topics_and_groups() -> None:
    assert decode_name_key(table_prefix(Table.TOPICS) + b"\0\6Orders") == "Orders"
    assert decode_json_value(b'\1{"perm":6}') == '{"perm":6}'


@pytest.mark.parametrize("cut", range(len(OFFSET_KEY)))
def test_a_key_that_is_cut_is_refused(cut: int) -> None:
    with pytest.raises(DecodeError, match="bad key of RocksDB"):
        decode_offset_key(OFFSET_KEY[:cut])
    with pytest.raises(DecodeError, match="bad key of RocksDB"):
        decode_name_key((table_prefix(Table.TOPICS) + b"\0\x40" + b"x" * 63)[:cut])


@pytest.mark.parametrize("at", [17, 32])
def test_a_separator_must_be_one(at: int) -> None:
    bent = bytearray(OFFSET_KEY)
    assert bent[at] == 1
    bent[at] = 2
    with pytest.raises(DecodeError, match=f"no separator at {at}"):
        decode_offset_key(bytes(bent))


def test_what_is_too_long_or_of_another_kind_is_refused() -> None:
    with pytest.raises(DecodeError, match="more bytes"):
        decode_offset_key(OFFSET_KEY + b"\0")
    with pytest.raises(DecodeError, match="more bytes"):
        decode_name_key(table_prefix(Table.TOPICS) + b"\0\1xx")
    with pytest.raises(DecodeError, match="no offset"):
        decode_offset(b"1234567")
    with pytest.raises(DecodeError, match="serialization"):
        decode_json_value(b"{}")


def test_values_of_v1_are_json_of_one_name() -> None:
    assert consumer_offsets_json.group_offsets("T@g", '{"offsetTable":{"0":3,2:4}}') == {0: 3, 2: 4}
    assert topics_json.topic_config("T", '{"attributes":{"queue.type":"BatchCQ"}}').has_batch_queues
    assert subscription_groups_json.group_config("g", '{"retryMaxTimes":3}').retry_max_times == 3
    assert topics_json.data_version_counter('{"counter":7,"stateVersion":0}') == 7
    assert topics_json.data_version_counter('{"dataVersion":{"counter":8},"offsetTable":{}}') == 8
    with pytest.raises(DecodeError):
        topics_json.data_version_counter('{"counter":"x"}')
