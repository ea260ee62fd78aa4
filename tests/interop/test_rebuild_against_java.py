"""Rebuilds against the store that the real Apache RocketMQ makes of the same CommitLog."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rmq_cli.main import app
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.index import ALL_TAGS, NO_TAGS
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.tasks.store_sizes import StoreSizes
from tests.interop import peer
from tests.store.small_stores import config_of, start_without
from tests.support.stores.odd_queue_offsets import interleaved
from tests.support.stores.store_files import tree, write_commitlog
from tests.support.stores.verified_stores import patch

pytestmark = pytest.mark.peer

TAGS_FROM = ALL_TAGS if peer.is_from_5_4() else NO_TAGS
OPTIONS = RebuildOptions(True, True, StoreSizes(1 << 30, 400, 0, 50, 20, (1000, 5000), TAGS_FROM))


def message(number: int, properties: dict[str, str], sys_flag: int = 0) -> MessageToStore:
    host = Host.parse("127.0.0.1:10911")
    return MessageToStore(
        topic=f"Topic{number % 3}",
        queue_id=number % 2,
        flag=0,
        sys_flag=sys_flag,
        born_timestamp_ms=1_700_000_000_000,
        born_host=host,
        store_host=host,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=b"x" * (1 + number % 50),
        properties_bytes=encode_properties(properties),
    )


def check_equal_to_java(store: Path, tmp_path: Path) -> None:
    java = tmp_path / "java"
    (java / "commitlog").mkdir(parents=True)
    for path in (store / "commitlog").iterdir():
        shutil.copy(path, java / "commitlog" / path.name)
    peer.rebuild(
        java,
        mappedFileSizeCommitLog=16384,
        mappedFileSizeConsumeQueue=400,
        maxHashSlotNum=50,
        maxIndexNum=20,
        messageDelayLevel="1s 5s",
    )
    out = tmp_path / "out"
    out.mkdir()
    rebuild_store(str(store), str(out), OPTIONS, ProcessRunner(1))
    assert tree(out / "consumequeue") == tree(java / "consumequeue")
    check_broker_equal_to_java(store, tmp_path / "broker", tree(java / "consumequeue"))
    ours, theirs = tree(out / "index"), tree(java / "index")
    assert [ours[name] for name in sorted(ours)] == [theirs[name] for name in sorted(theirs)]


def check_broker_equal_to_java(store: Path, root: Path, queues: dict[str, bytes]) -> None:
    """A broker of ours that starts with the log alone makes Java's queues; after a crash it leaves them as they are."""
    config = config_of(root, index_entries=20, lmq_enabled=False)
    shutil.copytree(store / "commitlog", root / "commitlog")
    for without in [(), ("watermark", "abort"), ("watermark", "checkpoint")]:
        start_without(config, tuple(name for name in without if name == "abort" or (root / name).exists()))
        assert tree(root / "consumequeue") == queues


@pytest.mark.parametrize(
    ("keyed", "keyless_after"),
    [(0, 0), (0, 5), (19, 0), (19, 1), (38, 3), (40, 0)],
    ids=["empty", "no_keys", "one_full", "one_full_then_keyless", "two_full_then_keyless", "two_full_and_two"],
)
@pytest.mark.long
def test_index_files_are_made_when_java_makes_them(tmp_path: Path, keyed: int, keyless_after: int) -> None:
    messages = [message(number, {"KEYS": f"key{number}"}) for number in range(keyed)]
    messages += [message(number, {}) for number in range(keyless_after)]
    write_commitlog(tmp_path / "store", messages, 16384)
    check_equal_to_java(tmp_path / "store", tmp_path)


def test_odd_properties_dispatch_as_in_java(tmp_path: Path) -> None:
    variants = [
        {"TAGS": "", "KEYS": " a  b "},
        {"TAGS": "中文😀", "KEYS": "键 k", "UNIQ_KEY": "u"},
        {"TAGS": "x" * 40, "KEYS": "polygenelubricants"},
        {"KEYS": "   ", "UNIQ_KEY": "A" * 33},
    ]
    messages = [
        message(number, variants[number % 4], sys_flag=(0, 0x4, 0x8, 0xC, 0x2)[number % 5]) for number in range(120)
    ]
    write_commitlog(tmp_path / "store", messages, 16384)
    check_equal_to_java(tmp_path / "store", tmp_path)


@pytest.mark.long
def test_units_of_odd_queue_offsets_stand_where_java_puts_them(tmp_path: Path) -> None:
    """Gaps, repeats, and queues that begin again: at the begin, in the middle and at the end of a queue."""
    rounds = interleaved()
    messages = [replace(message(0, {"TAGS": f"t{number}"}), topic=topic) for number, (topic, _) in enumerate(rounds)]
    placed = write_commitlog(tmp_path / "store", messages, 16384)
    for physical_offset, (_, queue_offset) in zip(placed, rounds, strict=True):
        path = tmp_path / "store" / "commitlog" / f"{physical_offset // 16384 * 16384:020d}"
        patch(path, physical_offset % 16384 + 20, queue_offset.to_bytes(8, "big", signed=True))
    check_equal_to_java(tmp_path / "store", tmp_path)


@pytest.mark.long
def test_what_java_leaves_out_of_a_log_of_many_files_is_brought_back(tmp_path: Path) -> None:
    """From 5.4 on it looks at the last ten files only: the commands are those of docs/variants.md."""
    store, sizes = tmp_path / "store", ["--consumequeue-file-bytes", "400", "--index-slots=50", "--index-entries=1000"]
    messages = [message(number, {"KEYS": f"key{number}", "TAGS": "a"}) for number in range(1500)]
    write_commitlog(store, messages, 16384)
    assert len(list((store / "commitlog").iterdir())) > 11
    with peer.running(peer.NEWEST):
        peer.rebuild(
            store, mappedFileSizeCommitLog=16384, mappedFileSizeConsumeQueue=400, maxHashSlotNum=50, maxIndexNum=1000
        )
    before = tree(store / "consumequeue")
    found = CliRunner().invoke(app, ["verify", str(store), *sizes])
    assert found.exit_code == 1
    assert "consumequeue.begins_late" in found.output
    assert "index.begins_late" in found.output
    done = CliRunner().invoke(app, ["rebuild", str(store), *sizes])
    assert done.exit_code == 0, done.output
    found = CliRunner().invoke(app, ["verify", str(store), *sizes])
    assert found.exit_code == 0, found.output
    after = tree(store / "consumequeue")
    assert len(after) > len(before)
