"""The stores that the original wrote, opened here: all is served, and what is derived is what it would rebuild."""

import json
import random
import shutil
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_core.store.config import StoreConfig
from rmq_core.store.files.opening import refuse_layouts
from rmq_core.store.results import PutStatus
from rmq_formats.codecs import paths
from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.codecs.index import ALL_TAGS
from rmq_formats.codecs.layout import EXT_FILE_BYTES, LOST_UNIT_SIZE, UNIT_BYTES
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.codecs.record import decode_record
from rmq_offline.repair.job import repair_store
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.conftest import GOLDEN_SETTINGS, GoldenSettings
from tests.store.derived_from_log import check_rebuilt, first_difference, found
from tests.store.small_stores import log_records, opened, put, put_copy, read_all
from tests.support.oracles.consumequeue import goes_to_consumequeue
from tests.support.stores.store_files import tree
from tests.support.stores.verified_stores import patch


def config_for(root: Path, settings: GoldenSettings) -> StoreConfig:
    """Settings that a golden store was written with."""
    return StoreConfig(
        root=str(root),
        commitlog_file_bytes=settings.commitlog_file_bytes,
        consumequeue_file_bytes=settings.consumequeue_file_bytes,
        index_slots=settings.index_slots,
        index_entries=settings.index_entries,
        delay_levels=settings.delay_levels,
        append_crc_property=settings.append_crc_property,
        consumequeue_ext_enabled=settings.ext_file_bytes is not None,
        consumequeue_ext_file_bytes=settings.ext_file_bytes or EXT_FILE_BYTES,
    )


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
        got = store.message(decode_message_id(message["msg_id"])[1])
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
    check_rebuilt(config, directory)
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
    check_rebuilt(config, directory)


def test_the_same_messages_at_the_same_times_become_the_same_files(
    copied: tuple[Path, StoreConfig], golden_name: str, golden_settings: dict[str, GoldenSettings], tmp_path: Path
) -> None:
    _, config = copied
    index_tags = "yes" if golden_settings[golden_name].tags_from == ALL_TAGS else "auto"  # what a new store lacks
    ours = replace(config, root=str(tmp_path / "ours"), commitlog_path="", index_tags=index_tags)
    store = opened(ours)
    for offset, record in log_records(config):
        result = put_copy(store, decode_record(record, physical_offset=offset))
        assert (result.status, result.physical_offset) == (PutStatus.PUT_OK, offset)
    assert store.shutdown()
    assert first_difference_of(tree(Path(ours.commitlog_path)), tree(Path(config.commitlog_path))) is None
    assert opened(config).shutdown()  # the original forces and dispatches what was left when it was killed
    assert found(ours) == found(config)


@pytest.mark.parametrize("is_killed", [False, True])
def test_new_messages_follow_units_of_lost_messages(
    golden: Callable[[str], Path], tmp_path: Path, is_killed: bool
) -> None:
    root = shutil.copytree(golden("mixed") / "store", tmp_path / "store")
    directory = root / "consumequeue/SCHEDULE_TOPIC_XXXX/0"
    units = (directory / paths.segment_name(0)).read_bytes()[: 4 * UNIT_BYTES]
    log = sorted((root / "commitlog").iterdir())[1]
    begin = int.from_bytes(units[:8], "big") - int(log.name)
    patch(log, begin, random.Random(5).randbytes(4000))
    assert repair_store(str(root), VerifyOptions(), ProcessRunner(1), apply=True).is_clean
    lost_units = (directory / paths.segment_name(0)).read_bytes()[: 4 * UNIT_BYTES]
    assert [Unit.decode(lost_units, at).size for at in range(0, len(lost_units), UNIT_BYTES)] == [LOST_UNIT_SIZE] * 4
    for start in range(2):
        if is_killed:
            (root / "abort").write_text("1")
        store = opened(config_for(root, GOLDEN_SETTINGS["mixed"]))
        assert put(store, "SCHEDULE_TOPIC_XXXX", 0, b"new").queue_offset == 4 + start
        store.dispatch()
        bodies = [decode_record(record).body for record in read_all(store, "SCHEDULE_TOPIC_XXXX")]
        assert bodies.count(b"new") == start + 1
        assert store.shutdown()
    assert (directory / paths.segment_name(0)).read_bytes().startswith(lost_units)


def first_difference_of(ours: dict[str, bytes], theirs: dict[str, bytes]) -> tuple[str, int] | None:
    """The first file, and byte of it, in which two logs differ; files of zeros do not count."""
    for name in sorted({*ours, *theirs}):
        left, right = ours.get(name, b""), theirs.get(name, b"")
        if left != right and any(left + right):
            return name, first_difference(left, right)
    return None


@pytest.mark.parametrize(
    ("name", "layout"), [("tiered", "tiered storage"), ("compaction", "compacted topics"), ("crash", None)]
)
def test_logs_that_this_broker_neither_reads_nor_writes_are_logged(
    golden: Callable[[str], Path], caplog: pytest.LogCaptureFixture, name: str, layout: str | None
) -> None:
    refuse_layouts(str(golden(name) / "store"), light_queues=False)
    warnings = [record.getMessage() for record in caplog.records]
    if layout is None:
        assert warnings == []
    else:
        (warning,) = warnings
        assert f"the store has {layout}, which this broker neither reads nor writes" in warning
