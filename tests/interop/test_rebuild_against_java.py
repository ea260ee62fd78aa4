"""Rebuilds against the store that the real Apache RocketMQ makes of the same CommitLog."""

import shutil
from pathlib import Path

import pytest

from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore
from rmq_formats.rebuild.job import rebuild_store
from rmq_formats.rebuild.options import RebuildOptions
from rmq_formats.tasks.runner import ProcessRunner
from rmq_formats.tasks.store_sizes import StoreSizes
from tests.interop import peer
from tests.store_files import tree, write_commitlog

pytestmark = pytest.mark.peer

OPTIONS = RebuildOptions(True, True, StoreSizes(1 << 30, 400, 0, 50, 20, (1000, 5000)))


def message(number: int, properties: dict[str, str], sys_flag: int = 0) -> MessageToStore:
    host = Host.parse("127.0.0.1:10911")
    return MessageToStore(
        topic=f"Topic{number % 3}", queue_id=number % 2, flag=0, sys_flag=sys_flag, born_timestamp_ms=1_700_000_000_000,
        born_host=host, store_host=host, reconsume_times=0, prepared_transaction_offset=0,
        body=b"x" * (1 + number % 50), properties_bytes=encode_properties(properties),
    )  # fmt: skip


def check_equal_to_java(store: Path, tmp_path: Path) -> None:
    java = tmp_path / "java"
    (java / "commitlog").mkdir(parents=True)
    for path in (store / "commitlog").iterdir():
        shutil.copy(path, java / "commitlog" / path.name)
    peer.rebuild(
        java, mappedFileSizeCommitLog=16384, mappedFileSizeConsumeQueue=400, maxHashSlotNum=50, maxIndexNum=20,
        messageDelayLevel="1s 5s",
    )  # fmt: skip
    out = tmp_path / "out"
    out.mkdir()
    rebuild_store(str(store), str(out), OPTIONS, ProcessRunner(1))
    assert tree(out / "consumequeue") == tree(java / "consumequeue")
    ours, theirs = tree(out / "index"), tree(java / "index")
    assert [ours[name] for name in sorted(ours)] == [theirs[name] for name in sorted(theirs)]


@pytest.mark.parametrize(
    ("keyed", "keyless_after"),
    [(0, 0), (0, 5), (19, 0), (19, 1), (38, 3), (40, 0)],
    ids=["empty", "no_keys", "one_full", "one_full_then_keyless", "two_full_then_keyless", "two_full_and_two"],
)
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
