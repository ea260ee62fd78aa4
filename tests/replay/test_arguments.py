"""Arguments of a replay that are refused before anything is read or sent."""

from pathlib import Path

import pytest

from jobs import replay
from rmq_formats import Store
from rmq_formats.codecs.layout import FLAG_INNER_BATCH
from rmq_formats.errors import OptionError, StoreError, StoreLayoutError
from tests.replay.small_stores import make_log, make_replay, orders_message, run_dry
from tests.support.stores.store_files import write_commitlog
from tests.support.stores.store_with_queues import write_config
from tests.support.stores.verified_stores import FILE_BYTES


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with topics.json, in which the topic Orders has its default queues."""
    make_log(tmp_path / "store")
    write_config(tmp_path / "store", "Orders", "RMQ_SYS_TRANS_HALF_TOPIC")
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--queues", '{"Orders": [0, 99]}'], "--queues: .* has no queue 99 of 'Orders'"),
        (
            ["--topics", "Orders", "--starting-offsets", '{"Orders": {"99": 5}}'],
            "offsets are given for queue 99 of 'Orders', which is not there",
        ),
        (["--topics", "Orders,SCHEDULE_TOPIC_XXXX"], "topic SCHEDULE_TOPIC_XXXX: brokers let no client send to"),
        (["--queues", '{"RMQ_SYS_TRANS_HALF_TOPIC": [0]}'], "RMQ_SYS_TRANS_HALF_TOPIC: brokers let no client send to"),
        (["--to-topic", "SCHEDULE_TOPIC_XXXX"], "--to-topic SCHEDULE_TOPIC_XXXX: brokers let no client send to"),
        (["--topics", "Orders", "--ending-offsets", '{"Orders": {"99": 5}}'], "queue 99 of 'Orders'"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_before_anything_is_read(
    store: Path, more: list[str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        make_replay(store, *more)


def test_offsets_of_absent_queues_are_a_warning_without_fail_on_data_loss(store: Path) -> None:
    offsets = '{"Orders": {"0": 5, "99": 5}}'
    more = ["--topics", "Orders", "--starting-offsets", offsets, "--fail-on-data-loss", "false"]
    report, code = run_dry(store, *more)
    assert (code, report["messages"]) == (0, 195)


def test_a_checkpoint_belongs_to_the_ids_in_the_file_of_msg_ids(store: Path, tmp_path: Path) -> None:
    ids = tmp_path / "ids"
    more = ["--msg-ids", f"@{ids}", "--checkpoint", str(tmp_path / "checkpoint")]
    ids.write_text("U0003\nU0007\n")
    checkpoint = make_replay(store, *more).checkpoint
    assert checkpoint is not None
    checkpoint.save(0, 0)
    ids.write_text("U0007\nU0003\n")
    again = make_replay(store, *more).checkpoint
    assert again is not None
    assert again.load() is not None
    ids.write_text("U0007\nU0009\n")
    other = make_replay(store, *more).checkpoint
    assert other is not None
    with pytest.raises(StoreError, match="the checkpoint of another replay"):
        other.load()


def test_ids_that_no_message_has_are_counted_and_the_case_of_message_ids_is_none(store: Path, tmp_path: Path) -> None:
    first, second, *_ = (message.msg_id for message in Store(store).messages("Orders"))
    report, code = run_dry(store, "--msg-ids", f"{first},{second.lower()},U0007")
    assert (code, report["messages"], report["unknown_ids"]) == (0, 3, 0)
    more = ["--msg-ids", f"U0007,u0008,{first[:-1]}F"]
    report, code = run_dry(store, *more)
    assert (code, report["messages"], report["unknown_ids"]) == (1, 1, 2)
    checkpoint = make_replay(store, *more, "--checkpoint", str(tmp_path / "checkpoint")).checkpoint
    assert checkpoint is not None
    checkpoint.save(FILE_BYTES, 1)
    report, code = run_dry(store, *more, "--checkpoint", str(tmp_path / "checkpoint"))
    assert (code, report["messages"], report["unknown_ids"]) == (0, 0, 0)


def test_a_store_below_the_replayed_one_is_refused(store: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store)
    for target in (store / "copy", f"file://{tmp_path}/link/a/b"):
        parsed = replay.parser().parse_args(["--store", str(store), "--to-store", str(target)])
        with pytest.raises(OptionError, match="is inside of the replayed store"):
            replay.check(parsed)
    replay.check(replay.parser().parse_args(["--store", str(store), "--to-store", f"{store}-copy"]))


def test_an_inner_batch_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    messages = [orders_message(number, b"body", sys_flag=FLAG_INNER_BATCH * (number == 3)) for number in range(6)]
    offsets = write_commitlog(tmp_path / "store", messages, FILE_BYTES)
    with pytest.raises(StoreLayoutError, match=f"topic Orders has an inner batch at {offsets[3]}, which rmq does not"):
        run_dry(tmp_path / "store")
    report, _ = run_dry(tmp_path / "store", "--queues", '{"Orders": [0, 1, 2]}')
    assert report["messages"] == 5
