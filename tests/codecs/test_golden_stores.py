"""The codecs against the bytes that the real Apache RocketMQ wrote."""

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.consumequeue import Unit, delay_levels_ms
from rmq_formats.codecs.consumequeue_ext import ExtUnit, decode_ext_address
from rmq_formats.codecs.fastjson import loads
from rmq_formats.codecs.hashing import index_key_hash
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.codecs.paths import (
    commitlog_dir,
    consumequeue_dir,
    consumequeue_ext_dir,
    index_dir,
    is_index_file_name,
    is_safe_topic,
    parse_segment_name,
    queue_dir,
    segment_name,
)
from rmq_formats.codecs.record import StoredMessage, encode_record
from rmq_formats.codecs.topics_json import topic_configs
from tests.support.oracles.commitlog_walk import Blank, Frame, verify_crc_property, walk
from tests.support.oracles.consumequeue import (
    build_consumequeue,
    build_consumequeue_ext,
    dispatch_tags_code,
    goes_to_consumequeue,
)
from tests.support.oracles.index import build_index, find_key, index_keys


@dataclass(frozen=True)
class GoldenStore:
    """A golden store and its records in log order."""

    root: Path
    expected: Path
    settings: Any
    records: list[tuple[bytes, StoredMessage]]
    blanks: list[Blank]


@pytest.fixture(scope="module")
def store(golden: Callable[[str], Path], golden_name: str, golden_settings: dict) -> GoldenStore:
    directory = golden(golden_name)
    records: list[tuple[bytes, StoredMessage]] = []
    blanks = []
    for path in sorted(Path(commitlog_dir(f"{directory}/store")).iterdir()):
        data = path.read_bytes()
        for item in walk(data, parse_segment_name(path.name) or 0):
            if isinstance(item, Frame):
                records.append((data[item.position : item.position + item.size], item.decode()))
            else:
                assert isinstance(item, Blank), f"{path}: {item}"
                blanks.append(item)
    return GoldenStore(directory / "store", directory / "expected", golden_settings[golden_name], records, blanks)


def as_java_dumps(message: StoredMessage) -> dict[str, object]:
    """A record in the form of messages.jsonl."""
    return {
        "physical_offset": message.physical_offset,
        "size": message.size,
        "magic": message.magic,
        "body_crc": message.body_crc,
        "queue_id": message.queue_id,
        "flag": message.flag,
        "queue_offset": message.queue_offset,
        "recorded_physical_offset": message.recorded_physical_offset,
        "sys_flag": message.sys_flag,
        "born_timestamp": message.born_timestamp_ms,
        "born_host": message.born_host.text,
        "store_timestamp": message.store_timestamp_ms,
        "store_host": message.store_host.text,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "topic": message.topic,
        "body_base64": b64encode(message.body).decode(),
        "properties": message.properties,
        "msg_id": message.msg_id,
    }


def test_a_walk_finds_each_message_that_java_decodes(store: GoldenStore) -> None:
    lines = (store.expected / "messages.jsonl").read_text("utf-8").splitlines()
    expected = [json.loads(line) for line in lines]
    assert [as_java_dumps(message) for _, message in store.records] == expected


def test_each_file_but_the_last_ends_with_a_blank(store: GoldenStore) -> None:
    files = len(list((store.root / "commitlog").iterdir()))
    last = max(message.physical_offset for _, message in store.records)
    used_files = last // store.settings.commitlog_file_bytes + 1
    assert len(store.blanks) == used_files - 1 <= files - 1


def test_each_record_encodes_to_its_own_bytes(store: GoldenStore) -> None:
    for record, message in store.records:
        assert record == encode_record(
            message.to_store(),
            queue_offset=message.queue_offset,
            physical_offset=message.physical_offset,
            store_timestamp_ms=message.store_timestamp_ms,
            append_crc_property=store.settings.append_crc_property,
        )


def test_records_have_their_own_crc_where_the_broker_was_told_to(store: GoldenStore) -> None:
    expected = True if store.settings.append_crc_property else None
    assert {verify_crc_property(record) for record, _ in store.records} == {expected}


def test_message_ids_lead_back_to_their_records(store: GoldenStore) -> None:
    for _, message in store.records:
        assert decode_message_id(message.msg_id) == (message.store_host, message.physical_offset)
        assert is_safe_topic(message.topic)


def queues(store: GoldenStore) -> dict[tuple[str, int], list[StoredMessage]]:
    found: dict[tuple[str, int], list[StoredMessage]] = {}
    for _, message in store.records:
        if goes_to_consumequeue(message.sys_flag):
            found.setdefault((message.topic, message.queue_id), []).append(message)
    return found


def rebuilt_queues(store: GoldenStore) -> dict[str, bytes]:
    """ConsumeQueue files, and those of ConsumeQueueExt if the broker had it, by path below the root."""
    levels = delay_levels_ms(store.settings.delay_levels)
    files = {}
    for (topic, queue_id), found in queues(store).items():
        codes = [dispatch_tags_code(message, levels) for message in found]
        if store.settings.ext_file_bytes is not None:
            timestamps = [message.store_timestamp_ms for message in found]
            ext, codes = build_consumequeue_ext(zip(codes, timestamps, strict=True), store.settings.ext_file_bytes)
            directory = queue_dir(consumequeue_ext_dir(""), topic, queue_id)
            files |= {f"{directory}/{segment_name(start)}": image for start, image in ext.items()}
        units = [
            (message.queue_offset, Unit(message.physical_offset, message.size, code))
            for message, code in zip(found, codes, strict=True)
        ]
        directory = queue_dir(consumequeue_dir(""), topic, queue_id)
        built = build_consumequeue(units, store.settings.consumequeue_file_bytes)
        files |= {f"{directory}/{segment_name(start)}": image for start, image in built.items()}
    return files


def files_below(root: Path, *names: str) -> dict[str, bytes]:
    paths = [path for name in names for path in (root / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def test_rebuilt_queues_are_those_of_java_byte_for_byte(store: GoldenStore) -> None:
    expected = files_below(store.expected, "consumequeue", "consumequeue_ext")
    rebuilt = rebuilt_queues(store)
    assert rebuilt.keys() == expected.keys()
    assert [path for path in expected if rebuilt[path] != expected[path]] == []


def test_ext_addresses_lead_to_the_tags_code_of_the_message(
    golden: Callable[[str], Path], golden_settings: dict
) -> None:
    expected = golden("exotic_crc") / "expected"
    for path in (expected / "consumequeue").rglob("0" * 20):
        ext = (expected / "consumequeue_ext" / path.relative_to(expected / "consumequeue")).read_bytes()
        unit = Unit.decode(path.read_bytes())
        ext_unit = ExtUnit.decode(ext, decode_ext_address(unit.tags_code))
        assert ext_unit is not None
        assert ext_unit.store_timestamp_ms > 1_700_000_000_000


def rebuilt_index(store: GoldenStore) -> list[bytes]:
    entries: list[tuple[int | None, int, int]] = []
    for _, message in store.records:
        hashes = [index_key_hash(message.topic, key) for key in index_keys(message, store.settings.tags_from)]
        for key_hash in hashes or [None]:
            entries.append((key_hash, message.physical_offset, message.store_timestamp_ms))
    return build_index(entries, store.settings.index_slots, store.settings.index_entries)


def test_rebuilt_index_files_are_those_of_java_byte_for_byte(store: GoldenStore) -> None:
    names = sorted(path.name for path in Path(index_dir(str(store.expected))).iterdir())
    assert all(is_index_file_name(name) for name in names)
    expected = [(store.expected / "index" / name).read_bytes() for name in names]
    rebuilt = rebuilt_index(store)
    assert len(rebuilt) == len(expected)
    assert [number for number, image in enumerate(expected) if rebuilt[number] != image] == []


def test_each_message_can_be_found_by_its_keys(store: GoldenStore) -> None:
    images = rebuilt_index(store)
    slots, entries = store.settings.index_slots, store.settings.index_entries
    for _, message in store.records[:: max(1, len(store.records) // 200)]:
        for key in index_keys(message):
            key_hash = index_key_hash(message.topic, key)
            found = [offset for image in images for offset in find_key(image, slots, entries, key_hash)]
            assert message.physical_offset in found


def test_the_checkpoint_lies_within_the_log(store: GoldenStore) -> None:
    data = (store.root / "checkpoint").read_bytes()
    checkpoint = Checkpoint.decode(data)
    assert checkpoint.encode() == data
    first, last = (store.records[at][1].store_timestamp_ms for at in (0, -1))
    assert first <= checkpoint.physic_msg_timestamp_ms <= last
    assert first <= checkpoint.logics_msg_timestamp_ms <= last


@pytest.mark.parametrize("name", ["mixed", "crash"])
def test_each_config_file_of_the_broker_can_be_read(name: str, golden: Callable[[str], Path]) -> None:
    config = golden(name) / "store" / "config"
    for path in config.glob("*.json"):
        assert isinstance(loads(path.read_text("utf-8")), dict)
    topics = topic_configs((config / "topics.json").read_text("utf-8"))
    assert topics["Orders"] == replace(topics["Clicks"], topic_name="Orders")
    assert topics["BenchmarkTest"].read_queue_nums == 1024
    delays = loads((config / "delayOffset.json").read_text("utf-8"))
    assert isinstance(delays, dict)
    assert all(level.isdigit() for level in delays["offsetTable"])
