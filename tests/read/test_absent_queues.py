"""Queues that the bounds of a read name and a store does not have."""

import logging
from pathlib import Path

import pytest

from rmq_formats.errors import OptionError
from rmq_formats.read.queue_choice import refuse_absent_queues
from rmq_formats.spark.commitlog.batch import plans_of
from rmq_formats.spark.options.read import commitlog_options
from tests.support.stores.store_with_queues import write_config, write_log, write_queue

OFFSETS = '{"Orders":{"0":1,"16":0}}'


def make_store(path: Path) -> str:
    """Write a store with three messages in queue Orders/0."""
    units = write_log(path, range(3))
    write_queue(path, dict(enumerate(units)))
    return str(path)


def test_a_queue_that_config_or_files_have_is_there(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    write_config(tmp_path, "Clicks")
    refuse_absent_queues({store: [("Orders", 0), ("Clicks", 15), ("%LMQ%any", 0)]}, fails=True)


@pytest.mark.parametrize("queue", [("Orders", 1), ("Clicks", 16), ("Nothing", 0)])
def test_a_queue_that_neither_has_is_refused(tmp_path: Path, queue: tuple[str, int]) -> None:
    store = make_store(tmp_path)
    write_config(tmp_path, "Clicks")
    with pytest.raises(OptionError) as refused:
        refuse_absent_queues({store: [("Orders", 0), queue]}, fails=True)
    assert str(refused.value) == (
        f"{store}: offsets are given for queue {queue[1]} of {queue[0]!r}, which is not there. "
        "Leave it out, or give failOnDataLoss=false"
    )


def test_a_store_that_tells_no_queues_refuses_none(tmp_path: Path) -> None:
    write_log(tmp_path, range(3))
    refuse_absent_queues({str(tmp_path): [("Orders", 9)]}, fails=True)


def test_of_several_stores_one_has_to_have_the_queue(tmp_path: Path) -> None:
    first, second = make_store(tmp_path / "a"), make_store(tmp_path / "b")
    write_config(tmp_path / "b", "Clicks")
    refuse_absent_queues({first: [("Clicks", 3)], second: [("Clicks", 3)]}, fails=True)
    with pytest.raises(OptionError, match="queue 3 of 'Clicks'"):
        refuse_absent_queues({first: [("Clicks", 3)], second: []}, fails=True)


def test_a_batch_fails_or_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"path": make_store(tmp_path), "subscribe": "Orders", "startingOffsets": OFFSETS}
    with pytest.raises(OptionError, match="queue 16 of 'Orders', which is not there"):
        plans_of(commitlog_options(options))
    with caplog.at_level(logging.WARNING):
        (planned,) = plans_of(commitlog_options({**options, "failOnDataLoss": "false"}))
    assert planned.plan is not None
    assert "queue 16 of 'Orders', which is not there" in caplog.text


def test_names_that_no_store_has_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = make_store(tmp_path)
    write_config(tmp_path, "Clicks")
    selections = [
        {"subscribe": "Orders,Orderz"}, {"assign": '{"Orders":[0,7]}'}, {"subscribe": "Clicks,%LMQ%a"},
        {"subscribe": "Gone", "include": "unqueued"},
    ]  # fmt: skip
    for options in selections:
        plans_of(commitlog_options({"path": store, **options}))
    warning = "{}: neither the queues nor topics.json have {}, which the read names"
    assert [record.getMessage() for record in caplog.records] == [
        warning.format(store, "topic 'Orderz'"), warning.format(store, "queue 7 of 'Orders'"),
    ]  # fmt: skip
