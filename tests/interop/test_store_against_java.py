"""Stores that this engine wrote, opened by the real Apache RocketMQ; and stores that both have worked on."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_cli.dump.json_lines import message_line
from rmq_core.store.config import FlushDiskType, StoreConfig
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.hashing import index_key_hash
from rmq_formats.codecs.index import IndexHeader
from rmq_formats.codecs.layout import FLAG_TRANSACTION_PREPARED
from rmq_formats.codecs.record import decode_record
from tests.interop import peer
from tests.store import small_stores
from tests.store.derived_from_log import check_derived, found
from tests.store.killed_writer import write_until_killed
from tests.store.small_stores import cut_log, fill, log_records, opened, put, read_all
from tests.support.oracles.index import find_key, index_keys

pytestmark = pytest.mark.peer

SIZES = {
    "mappedFileSizeCommitLog": 16384, "mappedFileSizeConsumeQueue": 400, "maxHashSlotNum": 50, "maxIndexNum": 100,
    "messageDelayLevel": "1s 5s", "diskMaxUsedSpaceRatio": 99,
}  # fmt: skip


def config_of(root: Path, **changes: Any) -> StoreConfig:
    """Settings with small files, and the Index that the original makes."""
    return small_stores.config_of(root, index_tags=peer.index_tags(), **changes)


def check_dump(config: StoreConfig) -> None:
    """Java decodes each record as we do."""
    ours = [
        json.loads(message_line(decode_record(record, physical_offset=offset)))
        for offset, record in log_records(config)
    ]
    assert peer.dump(Path(config.root)) == ours


def open_with_java(root: Path, **more: object) -> None:
    """Start and stop the original on a store."""
    report = peer.rebuild(root, **SIZES | more)
    assert report["loaded"]


def copy_of(config: StoreConfig, root: Path) -> StoreConfig:
    """Settings of a copy of a store."""
    shutil.copytree(config.root, root)
    return replace(config, root=str(root), commitlog_path="")


def check_untouched(config: StoreConfig, before: StoreConfig) -> None:
    """The original has neither cut the log nor changed what was made of it."""
    assert log_records(config) == log_records(before)
    check_derived(config)
    assert found(config) == found(before)


def test_the_original_opens_a_store_after_a_clean_stop_and_changes_nothing(tmp_path: Path) -> None:
    config = config_of(tmp_path / "store")
    store = opened(config)
    assert len(list(fill(store, 400))) == 400
    assert store.shutdown()
    check_dump(config)
    java = copy_of(config, tmp_path / "java")
    open_with_java(tmp_path / "java")
    check_untouched(java, config)


def test_the_original_makes_our_queues_and_index_of_our_log(tmp_path: Path) -> None:
    config = config_of(tmp_path / "store")
    store = opened(config)
    assert len(list(fill(store, 400, seed=2))) == 400
    assert store.shutdown()
    java = config_of(tmp_path / "java")
    shutil.copytree(config.commitlog_path, java.commitlog_path)
    open_with_java(tmp_path / "java", **peer.recover_all())
    check_untouched(java, config)


@pytest.mark.parametrize("flush", list(FlushDiskType))
@pytest.mark.long
def test_the_original_recovers_a_store_after_a_kill_and_cuts_nothing(tmp_path: Path, flush: FlushDiskType) -> None:
    config = config_of(tmp_path / "store", flush_disk_type=flush, flush_consumequeue_interval_ms=20)
    acknowledged = write_until_killed(config, 3, after_s=0.3)
    before = log_records(config)
    assert before[-1][0] + len(before[-1][1]) >= acknowledged > 0
    check_dump(config)
    java = copy_of(config, tmp_path / "java")
    open_with_java(tmp_path / "java", **peer.recover_all())
    assert log_records(java) == before
    ours = opened(config)
    assert ours.shutdown()
    check_untouched(java, config)


@pytest.mark.long
def test_the_original_finds_each_key_after_a_kill(tmp_path: Path) -> None:
    config = config_of(
        tmp_path / "store",
        flush_consumequeue_interval_ms=20,
        flush_index_interval_ms=20,
        flush_interval_ms=20,
    )
    write_until_killed(config, 4, after_s=1.0)
    before = log_records(config)
    checkpoint = Checkpoint.decode((Path(config.root) / "checkpoint").read_bytes())
    assert checkpoint.index_msg_timestamp_ms > 0, "an IndexFile was full, and forced"
    open_with_java(tmp_path / "store", **peer.recover_all())
    assert log_records(config) == before
    check_derived(config, index=False)
    index = [(IndexHeader.decode(image), image) for image in found(config)[1]]
    for offset, record in before:
        images = [
            image for header, image in index if header.begin_physical_offset <= offset <= header.end_physical_offset
        ]
        message = decode_record(record, physical_offset=offset)
        for key in index_keys(message):
            key_hash = index_key_hash(message.topic, key)
            offsets = [find_key(image, config.index_slots, config.index_entries, key_hash) for image in images]
            assert any(offset in own for own in offsets), (offset, key)


@pytest.mark.long
def test_both_work_on_a_store_in_turn(tmp_path: Path) -> None:
    config = config_of(tmp_path / "store")
    for seed in range(3):
        store = opened(config)
        assert store.recovery.damages == store.recovery.tail == ()
        assert len(list(fill(store, 100, seed))) == 100
        put(store, properties=b"")
        assert store.shutdown()
        ours = log_records(config)
        open_with_java(tmp_path / "store")
        assert log_records(config) == ours
        check_derived(config)
    store = opened(config)
    assert len(read_all(store)) == store._queues.unit_total
    assert store.shutdown()


@pytest.mark.parametrize("cut", [60, 10_000])
def test_the_original_agrees_where_a_log_with_a_torn_end_ends(tmp_path: Path, cut: int) -> None:
    config = config_of(tmp_path / "store", flush_disk_type=FlushDiskType.SYNC)
    write_until_killed(config, 5, after_s=0.1)
    records = log_records(config)
    offset, record = records[-1]
    cut_log(config, offset + min(cut, len(record) - 1))
    store = opened(config)
    assert store.max_physical_offset == offset
    # Of several half messages at the log's end the original indexes the last again, see below.
    put(store, properties=b"WAIT\x01true\x02")
    assert store.shutdown()
    java = copy_of(config, tmp_path / "java")
    open_with_java(tmp_path / "java")
    assert log_records(java)[:-1] == records[:-1]
    check_untouched(java, config)


@pytest.mark.parametrize("half_messages", [1, 2])
def test_the_original_indexes_the_last_of_several_half_messages_at_the_end_again(
    tmp_path: Path, half_messages: int
) -> None:
    config = config_of(tmp_path / "store")
    store = opened(config)
    put(store, properties=b"WAIT\x01true\x02")
    for number in range(half_messages):
        put(store, properties=b"KEYS\x01half%d\x02" % number, sys_flag=FLAG_TRANSACTION_PREPARED)
    assert store.shutdown()
    java = copy_of(config, tmp_path / "java")
    open_with_java(tmp_path / "java")
    queues, (index,) = found(config)
    queues_of_java, (index_of_java,) = found(java)
    assert queues == queues_of_java
    entries = [int.from_bytes(image[36:40], "big") - 1 for image in (index, index_of_java)]
    assert entries == [half_messages, half_messages + (half_messages > 1)]
