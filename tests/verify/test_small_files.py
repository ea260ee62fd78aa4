"""checkpoint, abort and config."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.index import IndexHeader
from tests.support.stores.verified_stores import FIRST_MS, codes, copied, message, only, sound_store, verify

COUNT = 60
LAST_MS = FIRST_MS + COUNT - 1


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("small") / "store"
    sound_store(root, COUNT)
    (root / "checkpoint").write_bytes(Checkpoint(LAST_MS, LAST_MS, LAST_MS - 1, 0, 0).encode())
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"Clicks":{},"Orders":{}}}')
    return root


@pytest.fixture
def store(base: Path, tmp_path: Path) -> Path:
    return copied(base, tmp_path / "store")


def log_end(store: Path) -> int:
    from tests.support.stores.rebuilt_stores import stored_messages

    last = list(stored_messages(store))[-1]
    return last.physical_offset + last.size


def test_a_checkpoint_up_to_the_last_message_is_sound(store: Path) -> None:
    assert codes(verify(store), informing=True) == {}
    (store / "checkpoint").write_bytes(Checkpoint(LAST_MS, LAST_MS, LAST_MS, 1 << 50, log_end(store)).encode())
    assert codes(verify(store), informing=True) == {}


@pytest.mark.parametrize(
    ("field", "name"),
    [(0, "physicMsgTimestamp"), (1, "logicsMsgTimestamp"), (2, "indexMsgTimestamp"), (4, "confirmPhyOffset")],
)
def test_a_checkpoint_later_than_the_log_is_told(store: Path, field: int, name: str) -> None:
    values = [LAST_MS, LAST_MS, LAST_MS, 0, 0]
    values[field] = log_end(store) + 1 if field == 4 else LAST_MS + 1
    (store / "checkpoint").write_bytes(Checkpoint(*values).encode())
    report = verify(store)
    assert codes(report) == {"checkpoint.later": 1}
    assert only(report, "checkpoint.later").detail.startswith(name)


def test_a_checkpoint_that_knows_too_little_of_the_index_is_information_and_other_times_may_be_too_early(
    store: Path,
) -> None:
    ends_ms = [
        IndexHeader.decode(path.read_bytes()[:40]).end_timestamp_ms for path in sorted((store / "index").iterdir())
    ]
    assert len(ends_ms) > 2
    for known_ms, later in ((ends_ms[-2], 0), (ends_ms[-2] - 1, 1), (0, len(ends_ms) - 1)):
        (store / "checkpoint").write_bytes(Checkpoint(1, 0, known_ms, 0, 0).encode())
        report = verify(store)
        assert codes(report, informing=True) == ({"checkpoint.earlier": 1} if later else {})
        assert report.is_clean
        if later:
            found = only(report, "checkpoint.earlier")
            assert (found.detail.split()[0], found.expected, found.actual) == (
                str(later), str(ends_ms[-2]), str(known_ms),
            )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", {"checkpoint.unreadable": 1}),
        (bytes(39), {"checkpoint.unreadable": 1}),
        (bytes(40), {"checkpoint.unreadable": 1}),
        (bytes(4096), {}),
        (bytes(4095) + b"\1", {"checkpoint.trailing": 1}),
        (b"\xff" * 8 + bytes(4088), {"checkpoint.unreadable": 1}),
    ],
    ids=["empty", "short", "cut", "zeros", "trailing", "negative"],
)
def test_a_checkpoint_that_is_none_is_told(store: Path, data: bytes, expected: dict[str, int]) -> None:
    (store / "checkpoint").write_bytes(data)
    assert codes(verify(store)) == expected


def test_a_checkpoint_that_is_a_directory_is_told(store: Path) -> None:
    (store / "checkpoint").unlink()
    (store / "checkpoint").mkdir()
    assert codes(verify(store)) == {"checkpoint.unreadable": 1}


def test_abort_is_information(store: Path) -> None:
    (store / "abort").write_text("4711")
    report = verify(store)
    assert codes(report, informing=True) == {"store.abort": 1}
    assert report.is_clean


@pytest.mark.parametrize("text", ["", "{", '{"a":1', "[]", "\0\0\0\0", "{a:1}"])
def test_config_that_does_not_parse_is_told_with_what_its_backup_does(store: Path, text: str) -> None:
    path = store / "config" / "subscriptionGroup.json"
    path.write_text(text)
    assert codes(verify(store)) == {"config.lost": 1}
    path.with_name(f"{path.name}.bak").write_text('{"subscriptionGroupTable":{}}')
    report = verify(store)
    assert codes(report) == {"config.unparsable": 1}
    assert only(report, "config.unparsable").path == str(path)
    path.with_name(f"{path.name}.bak").write_text(text)
    assert codes(verify(store)) == {"config.lost": 1}


@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json", "timermetrics"])
def test_config_that_cannot_be_read_is_told_with_what_its_backup_does(store: Path, name: str) -> None:
    path = store / "config" / name
    path.unlink(missing_ok=True)
    path.mkdir()
    report = verify(store)
    assert codes(report) == {"config.lost": 1}
    found = only(report, "config.lost")
    assert (found.path, found.detail) == (str(path), "it is a directory; and there is no .bak")
    path.with_name(f"{name}.bak").write_text('{"topicConfigTable":{"Clicks":{},"Orders":{}}}')
    assert codes(verify(store)) == {"config.unparsable": 1}


def test_config_that_cannot_be_opened_is_told(store: Path) -> None:
    path = store / "config" / "topics.json"
    path.unlink()
    os.mknod(path, stat.S_IFSOCK | 0o600)
    assert only(verify(store), "config.lost").detail == "it cannot be read; and there is no .bak"


@pytest.mark.parametrize(("text", "fault"), [("", "the file is empty"), ("{", "bad JSON"), (None, "it is a directory")])
def test_a_backup_alone_that_is_not_taken_is_told(store: Path, text: str | None, fault: str) -> None:
    path = store / "config" / "topics.json"
    path.unlink()
    backup = path.with_name("topics.json.bak")
    if text is None:
        backup.mkdir()
    else:
        backup.write_text(text)
    report = verify(store)
    assert codes(report) == {"config.lost": 1}
    found = only(report, "config.lost")
    assert found.path == str(path)
    assert found.detail.startswith(f"it is not there; nor is its .bak taken ({fault}")


def test_fastjsons_own_json_parses(store: Path) -> None:
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"Orders@g":{0:15,1:15}}}')
    assert codes(verify(store)) == {}


def test_consumers_ahead_of_their_queue_are_told(store: Path) -> None:
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"Orders@g":{0:15,1:16},"Gone@g":{0:5}}}')
    (store / "config" / "delayOffset.json").write_text('{"offsetTable":{1:0,2:0}}')
    report = verify(store)
    assert codes(report) == {"config.consumer_offset": 1}
    found = only(report, "config.consumer_offset")
    assert (found.topic, found.queue_id, found.expected, found.actual) == ("Orders", 1, "at most 15", "16")
    assert "group g" in found.detail


def test_an_offset_whose_queue_is_gone_is_told(store: Path) -> None:
    shutil.rmtree(store / "commitlog")
    shutil.rmtree(store / "consumequeue")
    sound_store(store, [message(number) for number in range(COUNT) if number % 4 != 3])
    (store / "checkpoint").unlink()
    (store / "config" / "consumerOffset.json").write_text(
        '{"offsetTable":{"Orders@g":{0:3,1:16,7:0},"Gone@g":{0:5},"%LMQ%x@g":{0:4}}}'
    )
    report = verify(store)
    expected = {"config.offset.no_queue": 1, "config.offset.deleted": 2, "checkpoint.missing": 1}
    assert codes(report, informing=True) == expected
    found = only(report, "config.offset.no_queue")
    assert (found.topic, found.queue_id, found.actual) == ("Orders", 1, "16")


def test_an_offset_below_its_queue_or_below_zero_is_told(store: Path) -> None:
    first = sorted((store / "commitlog").iterdir())[0]
    first.unlink()
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"Orders@g":{0:0,1:-1},"Orders@h":{9:-2}}}')
    report = verify(store)
    assert codes(report)["config.offset.negative"] == 2
    assert codes(report, informing=True)["config.offset.below"] == 1
    assert "messages that have expired" in only(report, "config.offset.below").detail


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_OP_HALF_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"])
def test_a_brokers_own_topic_is_never_deleted(tmp_path: Path, topic: str) -> None:
    sound_store(tmp_path, [*(message(number) for number in range(20)), *(message(1, topic=topic) for _ in range(3))])
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text('{"topicConfigTable":{"Clicks":{},"Orders":{}}}')
    (tmp_path / "config" / "consumerOffset.json").write_text(
        json.dumps({"offsetTable": {f"{topic}@CID_RMQ_SYS_TRANS": {"0": 3}}})
    )
    shutil.rmtree(tmp_path / "consumequeue" / topic)
    report = verify(tmp_path)
    assert codes(report) == {"consumequeue.topic.own": 3}
    assert only(report, "consumequeue.topic.own").count == 3


def test_a_brokers_own_queue_that_only_its_offsets_name_is_told(store: Path) -> None:
    (store / "config" / "consumerOffset.json").write_text(
        '{"offsetTable":{"RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:40}}}'
    )
    (store / "config" / "delayOffset.json").write_text('{"offsetTable":{1:0,3:7}}')
    report = verify(store)
    assert codes(report) == {"config.offset.no_queue": 2}
    assert "the broker's own queue has no files" in report.findings[0].detail


def test_names_with_backslashes_are_told_by_directory(store: Path) -> None:
    (store / "config\\topics.json").write_text("{}")
    (store / "consumequeue" / "Orders\\0").mkdir()
    report = verify(store)
    assert codes(report)["store.backslash"] == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("consumerOffset.json", '{"offsetTable":[]}'),
        ("consumerOffset.json", '{"offsetTable":{"x":{0:"a"}}}'),
        ("consumerOffset.json", '{"offsetTable":{"a@b":5}}'),
        ("consumerOffset.json", '{"offsetTable":{"T@g":{"q":1}}}'),
        ("delayOffset.json", '{"offsetTable":{"one":1}}'),
        ("topics.json", '{"topicConfigTable":{"Orders":7}}'),
        ("topics.json", '{"topicConfigTable":["Orders"]}'),
        ("subscriptionGroup.json", '{"subscriptionGroupTable":{"g":"x"}}'),
    ],
)
def test_json_that_a_broker_does_not_take_is_told(store: Path, name: str, text: str) -> None:
    path = store / "config" / name
    path.write_text(text)
    assert codes(verify(store)) == {"config.lost": 1}
    path.with_name(f"{name}.bak").write_text('{"topicConfigTable":{"Clicks":{},"Orders":{}}}')
    assert codes(verify(store)) == {"config.unparsable": 1}


def test_numbers_that_are_text_are_taken_as_fastjson_takes_them(store: Path) -> None:
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"Orders@g":{"0":"15"}}}')
    (store / "config" / "topics.json").write_text('{"topicConfigTable":{"Clicks":{"perm":"6"},"Orders":null}}')
    assert codes(verify(store)) == {}


def test_topics_that_are_not_there_are_told_but_in_their_backup(store: Path) -> None:
    path = store / "config" / "topics.json"
    text = path.read_text()
    path.unlink()
    report = verify(store)
    assert codes(report) == {"config.topics": 1}
    assert only(report, "config.topics").path == str(path)
    path.with_name("topics.json.bak").write_text(text)
    assert codes(verify(store), informing=True) == {}
    path.with_name("topics.json.bak").write_text('{"topicConfigTable":{"Orders":{}}}')
    assert codes(verify(store)) == {"consumequeue.topic.unknown": 1}


def test_files_that_no_broker_was_on_have_no_config(store: Path) -> None:
    shutil.rmtree(store / "config")
    assert codes(verify(store), informing=True) == {}
