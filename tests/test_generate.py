import json
import struct
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from rmq_formats.errors import OptionError, StoreError
from rmq_offline import generate
from rmq_offline.generate import generate_store

PEER = Path(__file__).parent / "interop" / "peer" / "peer.sh"
HEAD = struct.Struct(">iiiiiqqiq4siq4siiqi")
DEFAULTS = {"messages": 300, "body_bytes": 100, "topics": ["TopicTest", "Orders"], "queues": 3}


@dataclass
class Record:
    """A record as a reader sees it that knows nothing of ours."""

    position: int
    size: int
    fields: tuple
    body: bytes
    topic: str
    properties: dict


def read_file(data):
    """Records of one file, and where it stopped."""
    records, at = [], 0
    while True:
        size, magic = struct.unpack_from(">ii", data, at)
        if magic != -626843481:
            return records, at
        fields = HEAD.unpack_from(data, at)
        end = at + HEAD.size
        body, end = data[end : end + fields[-1]], end + fields[-1]
        topic, end = data[end + 1 : end + 1 + data[end]].decode(), end + 1 + data[end]
        (length,) = struct.unpack_from(">h", data, end)
        text = data[end + 2 : end + 2 + length].decode()
        assert end + 2 + length == at + size
        assert text.endswith("\2")
        properties = dict(entry.split("\1") for entry in text[:-1].split("\2"))
        records.append(Record(at, size, fields, body, topic, properties))
        at += size


def files_of(root):
    return sorted((Path(root) / "commitlog").iterdir())


def records_of(root):
    return [record for path in files_of(root) for record in read_file(path.read_bytes())[0]]


def generated(root, **options):
    arguments = {"keys": True, "tags": True, "commitlog_file_bytes": 1 << 20, **DEFAULTS, **options}
    return generate_store(str(root), **arguments)


def bytes_of(root):
    return {path.name: path.read_bytes() for path in Path(root).rglob("*") if path.is_file()}


def test_every_record_is_what_a_broker_stores_for_a_clients_send(tmp_path):
    store = generated(tmp_path)
    records = records_of(tmp_path)
    assert len(records) == store.messages == 300
    assert sum(record.size for record in records) == store.bytes
    position = 0
    for number, record in enumerate(records):
        (size, _, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms, *rest) = record.fields
        born_address, born_port, store_ms, store_address, store_port, reconsumed, prepared, body_bytes = rest
        assert (size, physical_offset, position) == (record.size, position, record.position)
        assert crc == zlib.crc32(record.body) & 0x7FFFFFFF
        assert (record.topic, queue_id, queue_offset) == (
            DEFAULTS["topics"][number % 2],
            number // 2 % 3,
            number // 6,
        )
        assert (flag, sys_flag, reconsumed, prepared, body_bytes) == (0, 0, 0, 0, 100)
        assert (born_address, born_port) == (b"\x7f\0\0\1", 38752)
        assert (store_address, store_port) == (b"\x7f\0\0\1", 10911)
        assert (born_ms, store_ms) == (1735689600000 + number // 10, 1735689600001 + number // 10)
        assert list(record.properties) == (["MSG_REGION", "UNIQ_KEY", "CLUSTER", "TAGS", "KEYS", "WAIT", "TRACE_ON"])
        assert record.properties["KEYS"] == f"order-{number:010d}"
        position += size


def test_property_values_are_a_default_brokers(tmp_path):
    generated(tmp_path)
    records = records_of(tmp_path)
    fixed = {"MSG_REGION": "DefaultRegion", "CLUSTER": "DefaultCluster", "WAIT": "true", "TRACE_ON": "true"}
    assert all(fixed.items() <= record.properties.items() for record in records)
    uniq_keys = {record.properties["UNIQ_KEY"] for record in records}
    assert len(uniq_keys) == 300
    assert all(len(bytes.fromhex(key)) == 16 and key == key.upper() for key in uniq_keys)
    by_queue = {}
    for record in records:
        by_queue.setdefault((record.topic, record.fields[3]), set()).add(record.properties["TAGS"])
    assert len(by_queue) == 6
    assert all(tags == {"TagA", "TagB", "TagC", "TagD", "TagE"} for tags in by_queue.values())


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("tags", [False, True])
def test_keys_and_tags_are_there_only_when_asked_for(tmp_path, keys, tags):
    generated(tmp_path, keys=keys, tags=tags)
    for record in records_of(tmp_path):
        assert ("KEYS" in record.properties, "TAGS" in record.properties) == (keys, tags)
        assert len(record.properties["UNIQ_KEY"]) == 32


@pytest.mark.parametrize("queues", [1, 4])
@pytest.mark.parametrize("topics", [["A"], ["A", "%RETRY%group", "x" * 127]])
def test_queue_offsets_count_up_by_queue(tmp_path, topics, queues):
    generated(tmp_path, topics=topics, queues=queues, messages=100)
    offsets = {}
    for record in records_of(tmp_path):
        offsets.setdefault((record.topic, record.fields[3]), []).append(record.fields[5])
    assert set(offsets) == {(topic, queue) for topic in topics for queue in range(queues)}
    assert all(found == list(range(len(found))) for found in offsets.values())


@pytest.mark.parametrize("body_bytes", [3, 10, 11, 64, 1000, 5000])
def test_bodies_are_printable_and_all_different(tmp_path, body_bytes):
    generated(tmp_path, body_bytes=body_bytes, commitlog_file_bytes=1 << 21)
    bodies = [record.body for record in records_of(tmp_path)]
    assert len(set(bodies)) == 300
    assert all(len(body) == body_bytes and body.decode("ascii").isprintable() for body in bodies)


def test_bodies_share_nothing_that_a_compressor_could_find(tmp_path):
    generated(tmp_path, body_bytes=1024, messages=1000, commitlog_file_bytes=1 << 21)
    text = b"".join(record.body for record in records_of(tmp_path))
    assert len(zlib.compress(text, 9)) > 0.6 * len(text)  # 5 random bits a byte


def test_a_record_of_the_largest_body_fits(tmp_path):
    store = generated(tmp_path, body_bytes=4 << 20, messages=3, commitlog_file_bytes=5 << 20)
    assert store.files == 3
    records = records_of(tmp_path)
    assert [record.fields[2] for record in records] == [zlib.crc32(record.body) & 0x7FFFFFFF for record in records]


@pytest.mark.parametrize(("spare", "in_first_file"), [(-1, 4), (0, 5), (1, 5)])
def test_a_file_takes_a_message_only_if_a_blank_still_fits_behind_it(tmp_path, spare, in_first_file):
    generated(tmp_path / "one-file", messages=5)
    five_bytes = sum(record.size for record in records_of(tmp_path / "one-file"))
    file_bytes = five_bytes + 8 + spare
    generated(tmp_path / "store", messages=12, commitlog_file_bytes=file_bytes)
    files = files_of(tmp_path / "store")
    first = files[0].read_bytes()
    records, at = read_file(first)
    assert len(records) == in_first_file
    assert struct.unpack_from(">ii", first, at) == (file_bytes - at, -875286124)
    assert not any(first[at + 8 :])
    assert [path.name for path in files] == [f"{n * file_bytes:020d}" for n in range(len(files))]


def test_small_files_roll_and_records_know_their_place(tmp_path):
    store = generated(tmp_path, commitlog_file_bytes=4096)
    files = files_of(tmp_path)
    assert store.files == len(files) > 20
    messages = 0
    for path in files:
        data = path.read_bytes()
        assert len(data) == 4096
        records, at = read_file(data)
        assert [record.fields[6] for record in records] == [int(path.name) + r.position for r in records]
        if path != files[-1]:
            assert struct.unpack_from(">ii", data, at) == (4096 - at, -875286124)
            at += 8
        assert not any(data[at:])
        messages += len(records)
    assert messages == 300


def test_the_same_arguments_give_the_same_bytes(tmp_path):
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        generated(tmp_path / name, seed=seed)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    assert bytes_of(tmp_path / "a") != bytes_of(tmp_path / "c")


def test_chunks_leave_no_trace_in_the_bytes(tmp_path, monkeypatch):
    generated(tmp_path / "whole", commitlog_file_bytes=20_000)
    monkeypatch.setattr(generate, "CHUNK_BYTES", 900)
    generated(tmp_path / "chunks", commitlog_file_bytes=20_000)
    assert bytes_of(tmp_path / "whole") == bytes_of(tmp_path / "chunks")


def test_progress_goes_up_to_the_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "CHUNK_BYTES", 5000)
    reports = []
    store = generated(tmp_path, on_progress=lambda messages, done: reports.append((messages, done)))
    assert len(reports) > 10
    assert reports == sorted(set(reports))
    assert reports[-1] == (store.messages, store.bytes)


def test_topics_json_names_each_topic_with_its_queues(tmp_path):
    generated(tmp_path)
    table = json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]
    assert list(table) == ["TopicTest", "Orders"]
    assert table["Orders"] == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 3,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "Orders",
        "topicSysFlag": 0,
        "writeQueueNums": 3,
    }


def test_an_old_topics_json_is_kept_as_bak(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text("{}")
    generated(tmp_path)
    assert (tmp_path / "config" / "topics.json.bak").read_text() == "{}"


def test_no_messages_make_an_empty_log_in_place_of_an_empty_one(tmp_path):
    (tmp_path / "commitlog").mkdir()
    store = generated(tmp_path, messages=0)
    assert (store.messages, store.bytes, store.files) == (0, 0, 0)
    assert files_of(tmp_path) == []


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index"])
def test_a_root_that_holds_a_store_is_refused(tmp_path, name):
    (tmp_path / name / "something").mkdir(parents=True)
    with pytest.raises(StoreError, match=f"already holds a store: {name} is not empty"):
        generated(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_root_with_a_timerlog_is_refused(tmp_path):
    (tmp_path / "timerlog" / "00000000000000000000").mkdir(parents=True)
    with pytest.raises(StoreError, match="timer messages refer to offsets"):
        generated(tmp_path)


def test_a_root_with_an_abort_file_is_refused(tmp_path):
    (tmp_path / "abort").touch()
    with pytest.raises(StoreError, match="abort"):
        generated(tmp_path)


def test_a_root_that_cannot_be_written_is_a_store_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot write the store .*: Not a directory"):
        generated(tmp_path / "file" / "store")


def test_a_commitlog_that_is_a_link_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "commitlog").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="Not a directory"):
        generated(tmp_path / "store")
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["commitlog"]


def test_a_run_that_stops_leaves_no_log_and_a_killed_runs_remains_do_not_matter(tmp_path):
    def stop(messages, done):
        raise KeyboardInterrupt

    (tmp_path / "commitlog.generating" / "left").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt):
        generated(tmp_path, on_progress=stop)
    assert list(tmp_path.iterdir()) == []
    assert generated(tmp_path).messages == len(records_of(tmp_path))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"messages": -1}, "messages must be"),
        ({"messages": 10**10 + 1}, "messages must be"),
        ({"body_bytes": 0}, "body_bytes must be"),
        ({"body_bytes": (4 << 20) + 1}, "body_bytes must be"),
        ({"queues": 0}, "queues must be"),
        ({"topics": []}, "at least one name"),
        ({"topics": ["A", "A"]}, "only once"),
        ({"topics": [""]}, "not a topic's name"),
        ({"topics": ["A", "no spaces"]}, "not a topic's name: 'no spaces'"),
        ({"topics": ["A\n"]}, "not a topic's name"),
        ({"topics": ["x" * 128]}, "not a topic's name"),
        ({"topics": ["Ünïcode"]}, "not a topic's name"),
        ({"commitlog_file_bytes": 1 << 31}, "commitlog_file_bytes must be"),
        ({"commitlog_file_bytes": 300}, "a CommitLog file of 300 bytes cannot hold a record"),
    ],
)
def test_bad_options_are_refused_with_their_name(tmp_path, options, words):
    with pytest.raises(OptionError, match=words):
        generated(tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


def peer(*arguments):
    done = subprocess.run([PEER, *map(str, arguments)], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.peer
@pytest.mark.long
def test_java_reads_every_message_and_rebuilds_the_rest(tmp_path):
    file_bytes = 64 << 10  # eight files: normal recovery used to look at the last three only
    store = generated(tmp_path, messages=1000, body_bytes=300, commitlog_file_bytes=file_bytes)
    assert store.files > 6
    records = records_of(tmp_path)
    log = bytes_of(tmp_path / "commitlog")
    peer("build")

    dumped = peer("dump", tmp_path)
    assert [(d["topic"], d["body_crc"], d["properties"]) for d in dumped] == [
        (record.topic, record.fields[2], record.properties) for record in records
    ]

    settings = ["mappedFileSizeConsumeQueue=4000", "maxHashSlotNum=1000", "maxIndexNum=4000"]
    (report,) = peer("rebuild", tmp_path, f"mappedFileSizeCommitLog={file_bytes}", *settings)
    last = records[-1]
    assert (report["loaded"], report["bytes"]) == (True, last.fields[6] + last.size)  # nothing truncated
    assert bytes_of(tmp_path / "commitlog") == log
    units = {}
    for record in records:
        units.setdefault((record.topic, record.fields[3]), []).append((record.fields[6], record.size))
    for (topic, queue_id), expected in units.items():
        paths = sorted((tmp_path / "consumequeue" / topic / str(queue_id)).iterdir())
        found = [unit[:2] for path in paths for unit in struct.iter_unpack(">qiq", path.read_bytes())]
        assert [unit for unit in found if unit != (0, 0)] == expected
