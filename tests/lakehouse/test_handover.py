"""A store and its running broker take turns in one table while a producer sends, and while history is deleted."""

import asyncio
import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq_core.client import Message, Producer
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.loop import run
from rmq_formats.errors import ClusterError, StoreError
from rmq_lakehouse.cluster.sources import ClusterQueues
from rmq_lakehouse.live.options import ClusterQueue
from tests.interop.test_namesrv_against_java import ask, wait_for
from tests.lakehouse.cluster_scenarios import ClusterExporter
from tests.support.processes.broker_processes import Standalone, configured

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
_CONF = "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\ndiskMaxUsedSpaceRatio=99\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """``rmq standalone``, with its store in ``store`` beside its log."""
    with configured(tmp_path_factory.mktemp("handover"), _CONF) as running:
        yield running


@pytest.fixture
def exporter(spark: SparkSession, broker: Standalone, tmp_path: Path) -> ClusterExporter:
    """The job, on a topic of its own."""
    return ClusterExporter(spark, broker.namesrv, broker.errors.parent / "store", tmp_path)


@contextmanager
def sending(namesrv: str, topic: str) -> Iterator[list[int]]:
    """A producer that sends all the time; the number of messages that the broker has taken, in a list."""
    taken, ends = [0], threading.Event()

    async def send() -> None:
        async with Producer(namesrv, "handover") as producer:
            while not ends.is_set():
                numbers = range(taken[0], taken[0] + 16)
                bodies = [json.dumps({"n": number}).encode() for number in numbers]
                await asyncio.gather(*(producer.send(Message(topic, body), timeout_s=30) for body in bodies))
                taken[0] += 16
                await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: run(send()))
    thread.start()
    try:
        yield taken
    finally:
        ends.set()
        thread.join()


@pytest.mark.long
def test_each_message_lands_once_while_store_and_cluster_take_turns_and_a_producer_sends(
    exporter: ClusterExporter,
) -> None:
    topic = {"topic": exporter.topic, "format": "json", "schema": "n INT", "table": "numbers"}
    spec = exporter.table.parent / "spec.json"
    spec.write_text(json.dumps({"topics": [topic]}))
    turns = [exporter.run_store, exporter.run] * 2
    with sending(exporter.namesrv, exporter.topic) as taken:
        wait_for(lambda: taken[0] >= 200)
        landed = [turn("--typed", str(spec))[0]["exports"] for turn in turns]
    assert all(counts["raw"] and counts[exporter.topic] for counts in landed)
    for turn in turns[:2]:
        landed.append(turn("--typed", str(spec))[0]["exports"])
    sent = list(range(taken[0]))
    assert sorted(json.loads(row.body)["n"] for row in exporter.rows()) == sent
    typed = exporter.spark.read.format("delta").load(str(spec.with_name("numbers")))
    assert sorted(row.n for row in typed.collect()) == sent
    assert sum(counts["raw"] for counts in landed) == len(sent)


def delete_history(exporter: ClusterExporter, broker: Standalone) -> None:
    """Have the broker delete all segments but the last one, as it does with old ones once they are forced."""
    files = sorted((exporter.store / "commitlog").iterdir())
    segments = [path for path in files if any(path.read_bytes()[:4])]  # not one that is made ahead

    def is_deleted() -> bool:
        for segment in segments[:-1]:
            with suppress(FileNotFoundError):  # the broker deletes them meanwhile
                os.utime(segment, (0, 0))
        ask(broker.broker, RequestCode.DELETE_EXPIRED_COMMITLOG)
        return not segments[-2].exists()

    wait_for(is_deleted)


@pytest.mark.long
@pytest.mark.parametrize("from_store", [True, False], ids=["store-cluster", "cluster-store"])
def test_history_that_is_deleted_between_the_turns_is_an_error_or_counted(
    exporter: ClusterExporter, broker: Standalone, from_store: bool
) -> None:
    turns = [exporter.run_store, exporter.run] if from_store else [exporter.run, exporter.run_store]
    exporter.send(0, 50)
    assert turns[0]()[0]["messages"] == 50
    exporter.send(50, 999)
    delete_history(exporter, broker)
    with pytest.raises((ClusterError, StoreError), match="deleted before the export"):
        turns[1]()
    assert exporter.bodies() == list(range(50))
    report, code = turns[1]("--fail-on-data-loss", "false")
    assert (code, report["missing_bytes" if "missing_bytes" in report else "missing_messages"] > 0) == (1, True)
    for turn in turns:
        assert turn("--fail-on-data-loss", "false")[0]["messages"] == 0
    bodies = exporter.bodies()
    assert bodies[:50] == list(range(50))
    assert bodies[50:] == list(range(bodies[50], 999))


@pytest.mark.long
def test_what_the_queues_do_not_have_yet_when_the_store_has_landed_it_lands_once(
    exporter: ClusterExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter.send(0, 10)
    assert exporter.run_store()[0]["messages"] == 10
    bounds = ClusterQueues.bounds

    def before(self: ClusterQueues, queues: Iterable[ClusterQueue]) -> dict[ClusterQueue, tuple[int, int]]:
        """As a broker says that has still to dispatch a record of each queue."""
        return {queue: (low, high - 1) for queue, (low, high) in bounds(self, queues).items()}

    with monkeypatch.context() as patch:
        patch.setattr(ClusterQueues, "bounds", before)
        assert exporter.run()[0]["messages"] == 0
    assert exporter.run()[0]["messages"] == 0
    exporter.send(10, 12)
    assert exporter.run()[0]["messages"] == 2
    assert exporter.bodies() == list(range(12))


@pytest.mark.long
def test_a_table_of_the_store_that_was_restored_goes_on_after_a_backfill_from_the_cluster(
    exporter: ClusterExporter,
) -> None:
    for end in (10, 20):
        exporter.send(end - 10, end)
        assert exporter.run_store()[0]["messages"] == 10
    exporter.sql("RESTORE {} TO VERSION AS OF 1")
    for turn in (exporter.run_store, exporter.run):
        with pytest.raises(StoreError, match="table was restored"):
            turn()
    assert exporter.run("--from-offset", "0")[0]["messages"] == 10
    exporter.send(20, 25)
    assert exporter.run()[0]["messages"] == 5
    exporter.send(25, 30)
    assert exporter.run_store()[0]["messages"] == 5
    assert exporter.bodies() == list(range(30))


@pytest.mark.long
def test_undecoded_messages_that_store_and_cluster_both_read_count_once(exporter: ClusterExporter) -> None:
    spec = exporter.table.with_name("spec.json")
    topic = {"topic": exporter.topic, "format": "json", "schema": "n INT", "table": "numbers"}
    spec.write_text(json.dumps({"topics": [topic]}))
    exporter.send(0, 3)  # none is an object
    dead_letters = ("--dlq-table", str(exporter.table.with_name("dead")))
    for turn in (exporter.run, exporter.run_store, exporter.run):
        report, code = turn("--typed", str(spec))
        assert (report["pending_undecoded"], code) == (3, 1)
    for turn in (exporter.run_store, exporter.run):
        report, code = turn("--typed", str(spec), *dead_letters)
        assert (report["pending_undecoded"], code) == (0, 0)
    letters = exporter.spark.read.format("delta").load(dead_letters[1]).collect()
    assert sorted(bytes(row.body) for row in letters) == [b"000", b"001", b"002"]
