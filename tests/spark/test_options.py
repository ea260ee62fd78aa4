"""Options are checked by name and value; every mistake names the option."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rmq_formats.arrow.schema import Mode
from rmq_formats.errors import OptionError
from rmq_formats.read.query import MAX_LONG, MIN_LONG, AccessPath, QueueBounds
from rmq_formats.spark.options.read import (
    COMMITLOG_OPTIONS,
    CONSUMEQUEUE_OPTIONS,
    INDEX_OPTIONS,
    OptionParser,
    SourceOptions,
    commitlog_options,
    consumequeue_options,
    index_options,
    refuse_stream_options,
)
from rmq_formats.spark.options.values import EARLIEST, LATEST

PAGE = Path(__file__).parents[2] / "docs" / "reading.md"
_Value = TypeVar("_Value")


def parse(**options: str) -> SourceOptions:
    return commitlog_options({"path": "/store", **options})


def test_without_options_all_is_read() -> None:
    options = parse()
    assert options.path == "/store"
    assert options.columns is None
    assert options.read.mode is Mode.PERMISSIVE
    assert options.read.verify_crc
    assert not options.read.decompress
    assert options.access_path is AccessPath.AUTO
    assert options.split_bytes == 256 << 20
    assert not options.pushdown
    assert not options.query.reads_queues
    assert options.query.includes_damage


def test_names_have_any_case_as_spark_hands_them_over_in_lower_case() -> None:
    assert parse(accesspath="SCAN", SplitBytes="1k").access_path is AccessPath.SCAN


@pytest.mark.parametrize(
    ("option", "value", "attribute", "expected"),
    [
        ("subscribe", "a, b", "topics", frozenset({"a", "b"})),
        ("subscribePattern", "a.*", "topic_pattern", "a.*"),
        ("assign", '{"a":[0,2]}', "queues", {"a": frozenset({0, 2})}),
        ("startingTimestamp", "1700000000000", "first_ms", 1_700_000_000_000),
        ("startingTimestamp", "2023-11-14T22:13:20Z", "first_ms", 1_700_000_000_000),
        ("endingTimestamp", "2023-11-14T23:13:20.5+01:00", "end_ms", 1_700_000_000_500),
        ("endingTimestamp", "2023-11-14", "end_ms", 1_699_920_000_000),
        ("startingPhysicalOffset", "12", "first_physical_offset", 12),
        ("endingPhysicalOffset", "99", "end_physical_offset", 99),
        ("key", "k 1", "key", "k 1"),
        ("uniqKey", "U", "uniq_key", "U"),
        ("tags", "a || b", "tags", frozenset({"a", "b"})),
        ("tags", "*", "tags", None),
    ],
)
def test_conditions_are_read(option: str, value: str, attribute: str, expected: Any) -> None:
    assert getattr(parse(**{option: value}).query, attribute) == expected


def test_a_message_id_is_a_host_and_a_place() -> None:
    host, place = parse(msgId="7F00000100002A9F0000011F71FB04CB").query.msg_id or (None, 0)
    assert str(host) == "127.0.0.1:10911"
    assert place == 1234567890123


def test_offsets_and_times_by_queue_become_bounds() -> None:
    options = parse(
        subscribe="a,b",
        startingOffsets='{"a":{"0":5,"1":-2}}',
        endingOffsets='{"a":{"0":9,"2":-1},"b":{"0":3}}',
        startingOffsetsByTimestamp='{"b":{"0":1000}}',
        endingOffsetsByTimestamp='{"b":{"1":2000}}',
    )
    assert options.query.bounds == {
        ("a", 0): QueueBounds(5, 9),
        ("b", 0): QueueBounds(MIN_LONG, 3, 1000, MAX_LONG),
        ("b", 1): QueueBounds(end_ms=2000),
    }


def test_the_words_for_the_two_ends_bound_nothing() -> None:
    options = parse(subscribe="a", startingOffsets="earliest", endingOffsets="latest")
    assert options.query.bounds == {}
    assert options.starting == EARLIEST
    assert refuse_stream_options(options) is options


def test_a_batch_cannot_begin_at_the_latest_offset() -> None:
    options = parse(startingOffsets="latest")
    assert options.starting == LATEST
    with pytest.raises(OptionError, match="startingOffsets"):
        refuse_stream_options(options)


def test_options_of_streams_are_known_and_checked() -> None:
    options = parse(maxBytesPerTrigger="64m", maxOffsetsPerTrigger="1000", failOnDataLoss="false")
    assert (options.max_trigger_bytes, options.max_trigger_offsets, options.fail_on_data_loss) == (
        64 << 20,
        1000,
        False,
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("assign", "[]"),
        ("assign", '{"a":[true]}'),
        ("assign", "{"),
        ("subscribe", "a,,b"),
        ("subscribePattern", "("),
        ("startingOffsets", "sometimes"),
        ("startingOffsets", '{"a":{"0":-1}}'),
        ("startingOffsets", '{"a":{"0":-3}}'),
        ("startingOffsets", '{"a":{"x":1}}'),
        ("startingOffsets", '{"a":5}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", '{"a":{"0":-2}}'),
        ("endingOffsets", '{"a":{"0":1.5}}'),
        ("startingTimestamp", "yesterday"),
        ("startingTimestamp", "1700000000"),  # seconds
        ("startingOffsetsByTimestamp", '{"Orders":{"0":1700000000}}'),
        ("endingPhysicalOffset", "-1"),
        ("startingPhysicalOffset", "1e3"),
        ("key", ""),
        ("msgId", "7F"),
        ("columns", "topic,"),
        ("accessPath", "msgId"),
        ("mode", "STRICT"),
        ("verifyCrc", "yes"),
        ("decompress", "1"),
        ("splitBytes", "0"),
        ("splitBytes", "many"),
        ("minPartitions", "0"),
        ("maxBytesPerTrigger", "-5"),
        ("pushdown", ""),
    ],
)
def test_a_bad_value_names_its_option(option: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"option {option} of rmq_commitlog"):
        parse(**{option: value})


def test_an_unknown_option_is_named_and_the_known_ones_are_told() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'topics' of rmq_commitlog.*subscribe"):
        parse(topics="a")
    with pytest.raises(OptionError, match="unknown option 'key' of rmq_consumequeue"):
        consumequeue_options({"path": "/store", "key": "a"})
    with pytest.raises(OptionError, match="unknown option 'subscribe' of rmq_index"):
        index_options({"path": "/store", "subscribe": "a"})


def test_the_path_is_needed_and_made_absolute() -> None:
    with pytest.raises(OptionError, match="path is missing"):
        commitlog_options({})
    assert commitlog_options({"path": "s3://bucket/store/"}).path == "s3://bucket/store"
    assert commitlog_options({"path": "store"}).path.endswith("/store")
    assert commitlog_options({"path": "store"}).path.startswith("/")
    assert parse(path="/data/store/commitlog/").path == "/data/store"


def test_ways_to_subscribe_exclude_each_other() -> None:
    with pytest.raises(OptionError, match="assign and subscribe exclude"):
        parse(subscribe="a", assign='{"a":[0]}')


def test_offsets_need_a_subscription_to_their_queue() -> None:
    with pytest.raises(OptionError, match="need subscribe"):
        parse(startingOffsets='{"a":{"0":1}}')
    with pytest.raises(OptionError, match="queue 0 of 'b', which is not subscribed"):
        parse(subscribe="a", startingOffsets='{"b":{"0":1}}')
    with pytest.raises(OptionError, match="queue 3 of 'a'"):
        parse(assign='{"a":[0]}', endingOffsets='{"a":{"3":1}}')


def test_each_option_that_is_known_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = set()
    get = OptionParser.get

    def noted(given: OptionParser, name: str, parse: Callable[[str], _Value]) -> _Value | None:
        read.add(name)
        return get(given, name, parse)

    monkeypatch.setattr(OptionParser, "get", noted)
    parse(
        startingOffsets="earliest",
        endingOffsets="latest",
        startingOffsetsByTimestamp="{}",
        endingOffsetsByTimestamp="{}",
    )
    assert read == set(COMMITLOG_OPTIONS)


def test_the_page_has_each_option_of_each_source() -> None:
    tables = PAGE.read_text().split("\n## ")[1:4]
    common, queues, commitlog = (
        {word for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for word in re.findall(r"`(\w+)`", cell)}
        for table in tables
    )
    assert common == set(INDEX_OPTIONS)
    assert common | queues == set(CONSUMEQUEUE_OPTIONS)
    assert common | queues | commitlog == set(COMMITLOG_OPTIONS)
