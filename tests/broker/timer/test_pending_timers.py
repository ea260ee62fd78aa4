"""Timer messages that wait, as a table."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq_core.broker.config import BrokerConfig
from rmq_formats.codecs.topics import TIMER_TOPIC
from rmq_formats.errors import StoreNotFoundError
from rmq_formats.pending_timers import PENDING, pending_timers
from rmq_formats.spark.tables import timers as spark_view
from tests.broker.conftest import Asker, Clock
from tests.broker.timer.test_delivery import SECOND_MS, pulled, taken_in
from tests.broker.timer.test_recall import recall, sent


@pytest.fixture
def config() -> BrokerConfig:
    return BrokerConfig(listen_port=0, recall_message_enable=True)


async def test_what_waits_is_a_row(asker: Asker, clock: Clock) -> None:
    await sent(asker, "Came", "U0", 60)
    for number, delay_s in enumerate((900, 600, 3 * 86_400 - 5), 1):
        handle = await sent(asker, "T", f"U{number}", delay_s)
        if delay_s == 600:
            await recall(asker, handle)
    await taken_in(asker, 5)
    clock.ahead_ms += 100 * SECOND_MS
    await pulled(asker, "Came")
    root = asker.broker.store.config.root
    await asker.broker.close()
    found = (await asyncio.to_thread(pending_timers, root)).to_pylist()
    await asker.broker.start()
    assert [(one["uniq_key"], one["is_recalled"], one["rolls"]) for one in found] == [
        ("U2", True, False), ("U1", False, False), ("U3", False, True),
    ]  # fmt: skip
    assert {(one["topic"], one["queue_id"], one["is_taken_in"]) for one in found} == {("T", 0, True)}


async def test_what_a_client_wrote_itself_and_files_of_others_break_nothing(asker: Asker) -> None:
    await sent(asker, "T", "U1")
    await taken_in(asker, 1)
    asker.broker._stop_periodic_work()  # so that it is not taken in, and left out
    for number, (name, value) in enumerate(
        [("TIMER_OUT_MS", "x"), ("TIMER_OUT_MS", "9" * 18), ("REAL_QID", "x"), ("REAL_QID", "9" * 18), ("A", "9" * 40)]
    ):
        properties = {"REAL_TOPIC": "T", "REAL_QID": "7", "TIMER_OUT_MS": "5000", "UNIQ_KEY": f"V{number}", name: value}
        await asker.send(TIMER_TOPIC, properties=properties)
    root = Path(asker.broker.store.config.root)
    await asker.broker.close()
    (root / "timerlog" / "notes").write_bytes(b"x" * 100)
    (root / "timerlog" / f"{1 << 40:020}").write_bytes(b"")
    found = {one["uniq_key"]: one for one in (await asyncio.to_thread(pending_timers, str(root))).to_pylist()}
    assert (found["U1"]["is_taken_in"], found["U1"]["queue_id"]) == (True, 0)
    given = {key: (one["deliver_timestamp"] is None, one["queue_id"]) for key, one in found.items() if key != "U1"}
    expected = {"V0": (True, 7), "V1": (True, 7), "V2": (False, None), "V3": (False, None), "V4": (False, 7)}
    assert given == expected
    await asker.broker.start()


def test_a_golden_store_has_none_that_wait(golden: Callable[[str], Path]) -> None:
    table = pending_timers(str(golden("mixed") / "store"))
    assert table.schema == PENDING
    assert table.num_rows == 0


def without_checkpoint(mixed: Path, directory: Path) -> Path:
    """A golden store that has nothing but its log and queues."""
    store = directory / "store"
    store.mkdir()
    for name in ("commitlog", "consumequeue"):
        (store / name).symlink_to(mixed / "store" / name)
    return store


def test_what_is_behind_the_checkpoint_is_not_taken_in_yet(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """Without a checkpoint all four that the original has delivered count as waiting."""
    store = without_checkpoint(golden("mixed"), tmp_path)
    found = pending_timers(str(store)).to_pylist()
    assert [(one["topic"], one["is_taken_in"], one["physical_offset"]) for one in found] == [
        ("Timed", False, 1512481), ("Timed", False, 1512852), ("Timed", False, 1513224), ("Timed", False, 1513601),
    ]  # fmt: skip
    assert found[0]["deliver_timestamp"].timestamp() == 1795230326


def test_a_store_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        pending_timers(str(tmp_path / "absent"))


@pytest.mark.spark
@pytest.mark.long
def test_what_waits_is_a_view_in_spark(spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path) -> None:
    store = without_checkpoint(golden("mixed"), tmp_path)
    spark_view.pending_timers(spark, str(store), view="pending")
    found = spark.sql(
        "SELECT topic, count(*) AS n, min(physical_offset) AS first FROM pending GROUP BY topic"
    ).collect()
    assert [(row.topic, row.n, row.first) for row in found] == [("Timed", 4, 1512481)]
