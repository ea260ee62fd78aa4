"""The stores that the original wrote, opened here: all is served, and what is derived is what it would rebuild."""

import json
import shutil
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_core.store.config import StoreConfig
from rmq_core.store.results import PutStatus
from rmq_formats.codecs.index import ALL_TAGS
from rmq_formats.codecs.layout import EXT_FILE_BYTES
from rmq_formats.codecs.record import decode_record
from tests.conftest import GoldenSettings
from tests.consumequeue_oracle import goes_to_consumequeue
from tests.store.derived_from_log import first_difference, found
from tests.store.small_stores import log_records, opened, read_all
from tests.store_files import tree


def config_for(root: Path, settings: GoldenSettings) -> StoreConfig:
    """Settings that a golden store was written with."""
    return StoreConfig(
        root=str(root), commitlog_file_bytes=settings.commitlog_file_bytes,
        consumequeue_file_bytes=settings.consumequeue_file_bytes, index_slots=settings.index_slots,
        index_entries=settings.index_entries, delay_levels=settings.delay_levels,
        append_crc_property=settings.append_crc_property, consumequeue_ext_enabled=settings.ext_file_bytes is not None,
        consumequeue_ext_file_bytes=settings.ext_file_bytes or EXT_FILE_BYTES,
    )  # fmt: skip


@pytest.fixture
def copied(
    golden: Callable[[str], Path], golden_name: str, golden_settings: dict[str, GoldenSettings], tmp_path: Path
) -> tuple[Path, StoreConfig]:
    """A golden store's directory, and the settings of a copy of its store."""
    shutil.copytree(golden(golden_name) / "store", tmp_path / "store")
    return golden(golden_name), config_for(tmp_path / "store", golden_settings[golden_name])


def expected_messages(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "expected" / "messages.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("crashed", [False, True])
def test_every_message_is_served(copied: tuple[Path, StoreConfig], crashed: bool) -> None:
    directory, config = copied
    if crashed:
        (Path(config.root) / "abort").write_text("1")
    wanted = expected_messages(directory)
    store = opened(config)
    assert store.recovery.damages + store.recovery.tail == ()
    assert store.max_physical_offset == wanted[-1]["physical_offset"] + wanted[-1]["size"]
    for message in wanted:
        got = store.message_by_id(message["msg_id"])
        assert got is not None
        assert (got.physical_offset, got.body) == (message["physical_offset"], b64decode(message["body_base64"]))
        for key in got.keys if got.uniq_key is None else (*got.keys, got.uniq_key):
            records = store.query(got.topic, key, 64).records
            offsets = {decode_record(record).physical_offset for record in records}
            assert got.physical_offset in offsets or len(records) == 64
    readable = sorted(decode_record(record).physical_offset for record in read_all(store))
    assert readable == [message["physical_offset"] for message in wanted if goes_to_consumequeue(message["sys_flag"])]
    assert store.shutdown()


def test_a_start_leaves_what_the_original_would_rebuild(copied: tuple[Path, StoreConfig]) -> None:
    directory, config = copied
    before = log_records(config)
    assert opened(config).shutdown()
    assert log_records(config) == before
    queues, index = found(config)
    expected_index = tree(directory / "expected" / "index")
    assert queues == tree(directory / "expected" / "consumequeue")
    assert index == [expected_index[name] for name in sorted(expected_index)]
    if config.consumequeue_ext_enabled:
        ext = tree(Path(config.root) / "consumequeue_ext")
        assert ext == tree(directory / "expected" / "consumequeue_ext")


def test_the_log_alone_is_enough(copied: tuple[Path, StoreConfig], tmp_path: Path) -> None:
    directory, config = copied
    for name in ("consumequeue", "consumequeue_ext", "index", "checkpoint", "abort"):
        path = Path(config.root) / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    store = opened(config)
    assert store.shutdown()
    queues, index = found(config)
    expected_index = tree(directory / "expected" / "index")
    assert queues == tree(directory / "expected" / "consumequeue")
    assert index == [expected_index[name] for name in sorted(expected_index)]


def test_the_same_messages_at_the_same_times_become_the_same_files(
    copied: tuple[Path, StoreConfig], golden_name: str, golden_settings: dict[str, GoldenSettings], tmp_path: Path
) -> None:
    _, config = copied
    index_tags = "yes" if golden_settings[golden_name].tags_from == ALL_TAGS else "auto"  # what a new store lacks
    ours = replace(config, root=str(tmp_path / "ours"), commitlog_path="", index_tags=index_tags)
    store = opened(ours)
    for offset, record in log_records(config):
        message = decode_record(record, physical_offset=offset)
        result = store.appender.put(
            message.topic, message.queue_id, message.body, message.properties_bytes, message.born_timestamp_ms,
            message.born_host.to_bytes(), message.store_timestamp_ms, flag=message.flag, sys_flag=message.sys_flag,
            reconsume_times=message.reconsume_times, store_host=message.store_host.to_bytes(),
            prepared_transaction_offset=message.prepared_transaction_offset,
        )  # fmt: skip
        assert (result.status, result.physical_offset) == (PutStatus.PUT_OK, offset)
    assert store.shutdown()
    assert first_difference_of(tree(Path(ours.commitlog_path)), tree(Path(config.commitlog_path))) is None
    assert opened(config).shutdown()  # the original forces and dispatches what was left when it was killed
    assert found(ours) == found(config)


def first_difference_of(ours: dict[str, bytes], theirs: dict[str, bytes]) -> tuple[str, int] | None:
    """The first file, and byte of it, in which two logs differ; files of zeros do not count."""
    for name in sorted({*ours, *theirs}):
        left, right = ours.get(name, b""), theirs.get(name, b"")
        if left != right and any(left + right):
            return name, first_difference(left, right)
    return None
