"""A CommitLog out of rows: offsets, order, files, what a store is continued with, and what is refused."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_formats.codecs import topics_json
from rmq_formats.codecs.layout import MAGIC_V2
from rmq_formats.codecs.record import StoredMessage, encode_record
from rmq_formats.errors import OptionError, RmqError, StoreError, StoreLayoutError, StoreLockedError, StoreSizeError
from rmq_formats.kernels.encode.rows import CRC_ALWAYS, CRC_NEVER
from rmq_formats.storage.segments import WRITE_DIRECTORY
from rmq_formats.storage.store_lock import store_lock
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.write.commitlog import WriteOptions, begin_write, commit_write
from rmq_offline.write.piece import write_pieces
from tests.support.processes import warm_processes
from tests.support.stores.rebuilt_stores import (
    built,
    by_codecs,
    commitlog_only,
    rebuild,
    small_store,
    snapshot,
    stored_messages,
)
from tests.support.stores.store_files import tree
from tests.support.stores.written_stores import FILE_BYTES, SMALL_DISPATCH, batches_of, lines, rows, write


def messages_of(store: Path) -> list[StoredMessage]:
    return list(stored_messages(store))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A store of 120 messages in six queues and some files."""
    return small_store(tmp_path / "source", 120, 4096)


def cut(batches: list[pa.RecordBatch], *bounds: int) -> list[pa.RecordBatch]:
    table = pa.Table.from_batches(batches).combine_chunks()
    (whole,) = table.to_batches()
    return [whole.slice(begin, end - begin) for begin, end in zip((0, *bounds), (*bounds, len(whole)), strict=True)]


def test_topic_and_body_are_enough(tmp_path: Path) -> None:
    write(tmp_path, [[rows(topic=["A", "B", "A"], body=[b"1", b"", b"3"])]])
    found = messages_of(tmp_path)
    assert [(m.topic, m.queue_id, m.queue_offset, m.body, m.properties) for m in found] == [
        ("A", 0, 0, b"1", {}), ("B", 0, 0, b"", {}), ("A", 0, 1, b"3", {}),
    ]  # fmt: skip
    assert found[0].store_host.text == "127.0.0.1:10911"
    assert found[0].store_timestamp_ms == found[0].born_timestamp_ms == found[2].store_timestamp_ms > 1_700_000_000_000


def test_columns_add_the_properties_that_the_map_lacks(tmp_path: Path) -> None:
    batch = rows(
        topic=["T"] * 4,
        body=[b"x"] * 4,
        tags=["a", "a", None, ""],
        keys=[["k1", "k2"], None, [], ["", "k3"]],
        uniq_key=["u", "u", None, None],
        properties=[None, [("TAGS", "map"), ("x", "y"), ("gone", None)], [], [("KEYS", "map keys")]],
    )
    write(tmp_path, [[batch]])
    assert [m.properties for m in messages_of(tmp_path)] == [
        {"UNIQ_KEY": "u", "TAGS": "a", "KEYS": "k1 k2"},
        {"TAGS": "map", "x": "y", "UNIQ_KEY": "u"},
        {},
        {"KEYS": "map keys"},
    ]


@pytest.mark.parametrize(("way", "ends"), [(CRC_ALWAYS, [True, True]), (CRC_NEVER, [False, False])])
def test_a_crc_is_written_or_omitted_by_option(tmp_path: Path, way: int, ends: list[bool]) -> None:
    given = [[("__CRC32#", "1234567890")], [("a", "b")]]
    write(tmp_path, [[rows(topic=["T", "T"], body=[b"x", b"y"], properties=given)]], crc_way=way)
    found = messages_of(tmp_path)  # whose walk checks the sums
    assert ["__CRC32#" in m.properties for m in found] == ends
    assert found[1].properties["a"] == "b"


def test_a_record_that_had_a_sum_gets_its_own(tmp_path: Path) -> None:
    given = [[("__CRC32#", "1234567890"), ("a", "b")], [("a", "b")]]
    write(tmp_path, [[rows(topic=["T", "T"], body=[b"x", b"y"], properties=given)]])
    (first, second) = messages_of(tmp_path)
    assert first.properties["__CRC32#"] != "1234567890"
    assert first.properties_bytes.startswith(b"a\x01b\x02__CRC32#\x01")
    assert second.properties == {"a": "b"}


def test_a_long_topic_has_a_record_of_version_2(tmp_path: Path) -> None:
    write(tmp_path, [[rows(topic=["t" * 127, "t" * 128, "s"], body=[b"x"] * 3, version=[1, 1, 2])]])
    assert [m.magic == MAGIC_V2 for m in messages_of(tmp_path)] == [False, True, True]


def test_halves_of_transactions_have_no_queue_offset(tmp_path: Path) -> None:
    write(tmp_path, [[rows(topic=["T"] * 5, body=[b"x"] * 5, sys_flag=[0, 0x4, 0x8, 0xC, 0])]])
    assert [m.queue_offset for m in messages_of(tmp_path)] == [0, 0, 1, 0, 2]


def test_files_roll_as_the_original_rolls_them(source: Path, tmp_path: Path) -> None:
    batches = batches_of(source, "physical_offset", "queue_offset")
    write(tmp_path / "store", [batches], file_bytes=4096)
    assert tree(tmp_path / "store" / "commitlog") == tree(source / "commitlog")


@pytest.mark.parametrize("order", ["physical_offset", "queue_offset"])
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_sorted_by_their_offsets(source: Path, tmp_path: Path, order: str, seed: int) -> None:
    (whole,) = cut(batches_of(source, "queue_offset" if order == "physical_offset" else "physical_offset"))
    shuffled = whole.take(pa.array(np.random.default_rng(seed).permutation(len(whole))))
    parts = [shuffled.slice(begin, 17) for begin in range(0, len(shuffled), 17)]
    write(tmp_path / "store", [parts[:3], [], parts[3:4], parts[4:]], file_bytes=4096)
    if order == "physical_offset":
        assert tree(tmp_path / "store" / "commitlog") == tree(source / "commitlog")
    expected: dict[tuple[str, int], list[bytes]] = {}
    found: dict[tuple[str, int], list[bytes]] = {}
    for store, queues in ((source, expected), (tmp_path / "store", found)):
        for m in messages_of(store):
            assert m.queue_offset == len(queues.setdefault((m.topic, m.queue_id), []))
            queues[m.topic, m.queue_id].append(m.properties_bytes)
    assert found == expected


def test_pieces_in_wrong_order_need_no_merge(source: Path, tmp_path: Path) -> None:
    first, second, third = cut(batches_of(source), 30, 90)
    write(tmp_path / "store", [[third, first], [second]], file_bytes=4096)
    assert tree(tmp_path / "store" / "commitlog") == tree(source / "commitlog")


@pytest.mark.parametrize("at", [1, 40, 119])
def test_appending_the_rest_completes_the_store(source: Path, tmp_path: Path, at: int) -> None:
    store = tmp_path / "store"
    first, second = cut(batches_of(source), at)
    write(store, [[first]], file_bytes=4096, dispatch=SMALL_DISPATCH)
    before = messages_of(store)
    write(store, [[second]], file_bytes=None, dispatch=SMALL_DISPATCH)
    assert messages_of(store)[:at] == before
    assert tree(store / "commitlog") == tree(source / "commitlog")
    assert built(store) == by_codecs(store, SMALL_DISPATCH)
    assert not (store / WRITE_DIRECTORY).exists()


def test_appending_continues_a_queue_whose_records_were_deleted(source: Path, tmp_path: Path) -> None:
    rebuild(source)
    (source / "commitlog" / f"{0:020d}").unlink()  # as the original deletes old files
    ends: dict[tuple[str, int], int] = {}
    for m in messages_of(source):
        ends[m.topic, m.queue_id] = m.queue_offset + 1
    first_file_only = source / "consumequeue" / "Gone" / "0" / f"{800:020d}"
    first_file_only.parent.mkdir(parents=True)
    first_file_only.write_bytes(bytes(7) + b"\x01" + b"\0\0\0\x64" + bytes(388))
    write(source, [[rows(topic=["Topic1", "Gone", "New"], body=[b"x"] * 3, queue_id=[1, 0, 0])]], file_bytes=None)
    assert [m.queue_offset for m in messages_of(source)[-3:]] == [ends["Topic1", 1], 41, 0]


def test_appending_nothing_changes_no_message(source: Path) -> None:
    before = tree(source / "commitlog")
    assert write(source, [[]], file_bytes=None) == 0
    assert tree(source / "commitlog") == before


def test_an_empty_table_becomes_an_empty_log(tmp_path: Path) -> None:
    write(tmp_path, [], dispatch=SMALL_DISPATCH)
    assert tree(tmp_path / "commitlog") == {f"{0:020d}": bytes(FILE_BYTES)}


@pytest.mark.parametrize("full", [False, True])
def test_a_file_that_a_broker_made_ahead_is_made_anew(source: Path, full: bool) -> None:
    files = sorted((source / "commitlog").iterdir())
    if full:
        files.pop().unlink()  # then the log ends with a BLANK, where the empty file begins
    begin = len(files) * 4096
    (source / "commitlog" / f"{begin:020d}").write_bytes(bytes(4096))
    (source / "commitlog" / f"{begin + 4096:020d}").write_bytes(bytes(4096))
    before = messages_of(source)
    end = begin if full else before[-1].physical_offset + before[-1].size
    assert write(source, [[]], file_bytes=None) == 0
    write(source, [[rows(topic=["New"], body=[b"x"])]], file_bytes=None)
    assert messages_of(source)[:-1] == before
    assert messages_of(source)[-1].physical_offset == end
    assert [path.name for path in sorted((source / "commitlog").iterdir())] == [
        f"{start:020d}" for start in range(0, end + 1, 4096)
    ]


@pytest.mark.parametrize("start", [0, 3 * FILE_BYTES])
def test_an_empty_log_is_continued_where_it_begins(tmp_path: Path, start: int) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{start:020d}").write_bytes(bytes(FILE_BYTES))
    write(tmp_path, [[]], file_bytes=None)
    assert tree(tmp_path / "commitlog") == {f"{start:020d}": bytes(FILE_BYTES)}
    for number in range(2):
        write(tmp_path, [[rows(topic=["T"], body=[b"x"])]], file_bytes=None)
        assert messages_of(tmp_path)[number].queue_offset == number
    assert messages_of(tmp_path)[0].physical_offset == start


def test_an_empty_log_accepts_rows_with_their_own_offsets(source: Path, tmp_path: Path) -> None:
    write(tmp_path / "store", [], file_bytes=4096)
    write(tmp_path / "store", [batches_of(source)], keep_offsets=True, file_bytes=4096)
    assert tree(tmp_path / "store" / "commitlog") == tree(source / "commitlog")


def test_units_of_records_that_a_crash_lost_do_not_count(source: Path) -> None:
    rebuild(source)
    last = max((source / "commitlog").iterdir())
    last.write_bytes(bytes(4096))
    left = messages_of(source)
    assert len(left) < 120
    end = max(m.queue_offset for m in left if (m.topic, m.queue_id) == ("Topic1", 1)) + 1
    beyond = source / "consumequeue" / "Gone" / "0" / f"{800:020d}"  # of which the log has nothing: it keeps its end
    beyond.parent.mkdir(parents=True)
    beyond.write_bytes((1 << 40).to_bytes(8, "big") + b"\0\0\0\x64" + bytes(388))
    write(source, [[rows(topic=["Topic1", "Gone"], body=[b"x"] * 2, queue_id=[1, 0])]], file_bytes=None)
    assert [m.queue_offset for m in messages_of(source)[-2:]] == [end, 41]


def test_overwriting_retains_the_size_of_the_files(source: Path) -> None:
    write(source, [[rows(topic=["New"], body=[b"x"])]], overwrite=True, file_bytes=None)
    assert {name: len(data) for name, data in tree(source / "commitlog").items()} == {f"{0:020d}": 4096}


def test_topics_of_pop_s_retries_are_topics(tmp_path: Path) -> None:
    topics = ["%RETRY%group+Topic", "%RETRY%group_Topic"]
    write(tmp_path, [[rows(topic=topics, body=[b"x"] * 2)]])
    assert [m.topic for m in messages_of(tmp_path)] == topics


def test_overwriting_leaves_nothing_of_the_old_log(source: Path) -> None:
    rebuild(source)
    (source / "checkpoint").write_bytes(bytes(4096))
    (source / "config").mkdir()
    (source / "config" / "consumerOffset.json").write_text("{}")
    write(source, [[rows(topic=["New"], body=[b"x"])]], overwrite=True)
    assert [m.topic for m in messages_of(source)] == ["New"]
    assert {path.name for path in source.iterdir()} == {"commitlog", "config", "lock"}
    assert (source / "config" / "consumerOffset.json").exists()


def test_a_log_whose_offsets_a_timerlog_has_is_not_overwritten(source: Path) -> None:
    (source / "timerlog").mkdir()
    write(source, [[rows(topic=["New"], body=[b"x"])]], overwrite=True)
    (source / "timerlog" / f"{0:020d}").write_bytes(bytes(52))
    before = tree(source)
    with pytest.raises(StoreLayoutError, match="timerlog: timer messages refer to offsets"):
        write(source, [[rows(topic=["New"], body=[b"x"])]], overwrite=True)
    assert tree(source) == before
    write(source, [[rows(topic=["New"], body=[b"y"])]], file_bytes=None)
    assert [m.body for m in messages_of(source)] == [b"x", b"y"]


def test_topics_are_added_to_topics_json(source: Path) -> None:
    (source / "config").mkdir()
    (source / "config" / "topics.json").write_text(
        '{"dataVersion":{"counter":7},"topicConfigTable":{"Topic1":{"topicName":"Topic1","perm":4,'
        '"readQueueNums":1,"writeQueueNums":9},"Other":{"topicName":"Other"}}}'
    )
    write(source, [[rows(topic=["Topic1", "New"], body=[b"x", b"y"], queue_id=[3, 0])]], file_bytes=None)
    configs = topics_json.topic_configs((source / "config" / "topics.json").read_text())
    assert {name: (c.read_queue_nums, c.write_queue_nums, c.perm) for name, c in configs.items()} == {
        "Topic1": (4, 9, 4), "Other": (16, 16, 6), "New": (1, 1, 6),
    }  # fmt: skip
    assert (source / "config" / "topics.json.bak").exists()


@pytest.mark.parametrize("data", [None, b"", b"\0" * 100])
def test_topics_of_the_bak_stay_where_topics_json_is_not_readable(source: Path, data: bytes | None) -> None:
    path = source / "config" / "topics.json"
    path.parent.mkdir()
    former = '{"topicConfigTable":{"Other":{"topicName":"Other","perm":4}}}'
    path.with_name("topics.json.bak").write_text(former)
    if data is not None:
        path.write_bytes(data)
    write(source, [[rows(topic=["New"], body=[b"y"])]], file_bytes=None)
    configs = topics_json.topic_configs(path.read_text())
    assert {name: config.perm for name, config in configs.items()} == {"Other": 4, "New": 6}
    assert path.with_name("topics.json.bak").read_text() == former


def test_a_row_of_damage_is_no_record(tmp_path: Path) -> None:
    write(tmp_path, [[rows(topic=["A", None, "B"], body=[b"1", None, b"2"], record_error=[None, "magic", None])]])
    assert [m.topic for m in messages_of(tmp_path)] == ["A", "B"]


BAD_ROWS: dict[str, dict[str, Any]] = {
    "it has no topic": {"topic": [None], "body": [b"x"]},
    "it has no body": {"topic": ["T"], "body": [None]},
    "cannot name a directory": {"topic": ["../T"], "body": [b"x"]},
    "topic 'bad topic; $(x)' has other characters than": {"topic": ["bad topic; $(x)"], "body": [b"x"]},
    "topic 'T+U' has other characters than": {"topic": ["T+U"], "body": [b"x"]},
    "queue_id -1 is negative": {"topic": ["T"], "body": [b"x"], "queue_id": [-1]},
    "which separate properties": {"topic": ["T"], "body": [b"x"], "properties": [[("a\x01", "b")]]},
    "separate properties": {"topic": ["T"], "body": [b"x"], "properties": [[("a", "b\x02")]]},
    "\\u0002": {"topic": ["T"], "body": [b"x"], "tags": ["a\x02b"]},
    "more than 32767 bytes": {"topic": ["T"], "body": [b"x"], "properties": [[("a", "b" * 32767)]]},
    "a CommitLog file holds 16376": {"topic": ["T"], "body": [b"x" * FILE_BYTES]},
    "not a host and port": {"topic": ["T"], "body": [b"x"], "born_host": ["nowhere:80"]},
}


@pytest.mark.parametrize(("told", "columns"), BAD_ROWS.items(), ids=BAD_ROWS)
def test_a_row_that_fits_no_store_is_named(source: Path, told: str, columns: dict[str, Any]) -> None:
    before = tree(source / "commitlog")
    with pytest.raises(StoreError, match=re.escape(told)):
        write(source, [[rows(**columns)]], overwrite=True)
    assert tree(source / "commitlog") == before


def test_hosts_of_all_kinds_come_back(tmp_path: Path) -> None:
    hosts = ["10.0.0.1:65535", "[fd00::1]:80", None, "255.255.255.255:0", "[fd00::1]:81"]
    write(tmp_path, [[rows(topic=["T"] * 5, body=[b"x"] * 5, born_host=hosts, store_host=hosts)]])
    found = messages_of(tmp_path)
    assert [m.born_host.text for m in found] == [host or "127.0.0.1:0" for host in hosts]
    assert [m.store_host.text for m in found] == [host or "127.0.0.1:10911" for host in hosts]
    assert [m.sys_flag for m in found] == [0, 0x30, 0, 0, 0x30]


def refused(error: type[RmqError], told: str, root: Path, **options: Any) -> None:
    """The write is refused before anything of the store has changed."""
    before = snapshot(root)
    with pytest.raises(error, match=told):
        begin_write(WriteOptions(str(root), **{"overwrite": False, **options}))
    assert snapshot(root) == before


def test_a_store_whose_broker_runs_is_left_alone(source: Path) -> None:
    holder = warm_processes.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfrom rmq_formats.storage.store_lock import store_lock\n"
            "with store_lock(sys.argv[1]): print('held', flush=True); sys.stdin.read()",
            str(source),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        refused(StoreLockedError, "a running broker has locked this store", source)
        refused(StoreLockedError, "a running broker has locked this store", source, overwrite=True)
    finally:
        holder.communicate()


def test_a_torn_tail_is_for_the_recovery(source: Path) -> None:
    last = sorted((source / "commitlog").iterdir())[-1]
    used = len(last.read_bytes().rstrip(b"\0"))
    with last.open("r+b") as file:
        file.seek(used + 8)
        file.write(b"half a record")
    refused(StoreError, "bytes after the last sound record", source)
    write(source, [[rows(topic=["T"], body=[b"x"])]], overwrite=True)


def test_sizes_that_do_not_fit_are_refused(source: Path, tmp_path: Path) -> None:
    refused(StoreSizeError, "has 4096 bytes, not 8192", source, commitlog_file_bytes=8192)
    refused(OptionError, "CommitLog file size 50: must be 100 to", source, overwrite=True, commitlog_file_bytes=50)
    rebuild(source)
    other = replace(SMALL_DISPATCH, sizes=replace(SMALL_DISPATCH.sizes, consumequeue_file_bytes=800))
    refused(StoreSizeError, "ConsumeQueue files here have 400 bytes", source, dispatch=other)
    refused(OptionError, "offsets can be kept only in a new one", source, keep_offsets=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is no directory"):
        begin_write(WriteOptions(str(tmp_path / "file"), True))


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_log_with_an_empty_file_is_refused_in_a_line_that_names_it(source: Path, number: int) -> None:
    path = sorted((source / "commitlog").iterdir())[number]
    path.write_bytes(b"")
    for wanted in (None, 4096):
        refused(StoreSizeError, f"{path.name}: the file is empty", source, commitlog_file_bytes=wanted)


def test_an_empty_file_alone_is_overwritten_with_files_of_the_default_size(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    path = tmp_path / "store" / "commitlog" / ("0" * 20)
    path.write_bytes(b"")
    refused(StoreSizeError, "the file is empty", tmp_path / "store")
    write(tmp_path / "store", [], overwrite=True, file_bytes=None)
    assert path.stat().st_size == 1 << 30


def test_offsets_with_a_gap_cannot_be_retained(source: Path, tmp_path: Path) -> None:
    first, _, last = cut(batches_of(source), 50, 51)
    with pytest.raises(StoreError, match=r"the record at physical offset \d+ cannot keep it: the log ends at \d+"):
        write(tmp_path / "store", [[first, last]], keep_offsets=True, file_bytes=4096)
    assert not (tmp_path / "store" / "commitlog").exists()
    with pytest.raises(StoreError, match="column physical_offset: null in a row"):
        write(
            tmp_path / "store",
            [[rows(topic=["T"], body=[b"x"], physical_offset=[None], queue_offset=[0])]],
            keep_offsets=True,
        )


def test_of_two_writes_the_later_one_counts(source: Path) -> None:
    slow = begin_write(WriteOptions(str(source), False))
    write(source, [[rows(topic=["New"], body=[b"x"])]], file_bytes=None)
    with pytest.raises(StoreError, match="another write into this store has begun"):
        write_pieces([rows(topic=["Slow"], body=[b"x"])], slow.job.pieces, slow.encoding)
    with pytest.raises(StoreError, match="another write into this store has begun"):
        commit_write(slow, [], ProcessRunner(1))
    assert messages_of(source)[-1].topic == "New"


def test_a_broker_that_starts_meanwhile_loses_no_store(source: Path) -> None:
    begun = begin_write(WriteOptions(str(source), True))
    task = write_pieces([rows(topic=["New"], body=[b"x"])], begun.job.pieces, begun.encoding)
    before = lines(source)
    child = os.fork()  # a lock is a process's
    if child == 0:
        try:
            with store_lock(str(source)):
                commit = os.fork()
                if commit == 0:
                    try:
                        commit_write(begun, [task], ProcessRunner(1))
                    except StoreLockedError:
                        os._exit(0)
                    os._exit(1)
                os._exit(os.waitstatus_to_exitcode(os.waitpid(commit, 0)[1]))
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lines(source) == before


def test_a_log_alone_is_continued_without_queues(source: Path, tmp_path: Path) -> None:
    store = commitlog_only(source, tmp_path / "store")
    write(store, [[rows(topic=["Topic1"], body=[b"x"])]], file_bytes=None)
    assert not (store / "consumequeue").exists()
    assert len(messages_of(store)) == 121


def test_encoding_is_that_of_the_codec(tmp_path: Path, source: Path) -> None:
    write(tmp_path / "store", [batches_of(source)], file_bytes=1 << 20)
    for m in messages_of(tmp_path / "store"):
        image = (tmp_path / "store" / "commitlog" / f"{0:020d}").read_bytes()
        assert image[m.physical_offset : m.physical_offset + m.size] == encode_record(
            m.to_store(),
            queue_offset=m.queue_offset,
            physical_offset=m.physical_offset,
            store_timestamp_ms=m.store_timestamp_ms,
        )


def test_a_key_with_a_blank_would_become_two_and_is_refused(tmp_path: Path) -> None:
    batch = rows(topic=["T", "T"], body=[b"x", b"y"], keys=[["a", "b"], ["c d"]])
    with pytest.raises(StoreError, match="column keys: 'c d' has a blank, which separates keys"):
        write(tmp_path / "store", [[batch]])
