"""Exports of a running cluster: each message once, beside exports of its brokers' stores, and what is refused."""

import json
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs import export_delta
from rmq_core.client import Admin, Message
from rmq_core.remoting.loop import run
from rmq_formats.errors import ClusterError, OptionError, StoreError
from rmq_lakehouse.cluster.queues import PendingQueueMessages
from rmq_lakehouse.delta.table import DeltaTransaction
from rmq_lakehouse.exports import ExportCounts, ExportLoop
from rmq_lakehouse.live.client import ClusterConnection
from tests.interop.test_namesrv_against_java import wait_for
from tests.lakehouse.cluster_scenarios import *  # noqa: F403 # tests that Java's cluster passes too
from tests.lakehouse.cluster_scenarios import ClusterExporter
from tests.spark.live.scenarios import make_topic, send
from tests.spark.live.two_brokers import second_broker
from tests.support.processes.broker_processes import Standalone, configured, standalone

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
_CONF = "mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=2000\ndiskMaxUsedSpaceRatio=99\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """``rmq standalone``, with its store in ``store`` beside its log."""
    with configured(tmp_path_factory.mktemp("exported"), _CONF) as running:
        yield running


@pytest.fixture
def exporter(spark: SparkSession, broker: Standalone, tmp_path: Path) -> ClusterExporter:
    """The job, on a topic of its own."""
    return ClusterExporter(spark, broker.namesrv, broker.errors.parent / "store", tmp_path)


@pytest.mark.long
def test_what_dies_before_its_commit_or_after_it_and_races_land_each_message_once(
    exporter: ClusterExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise StoreError("killed")

    exporter.send(0, 9)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTransaction, "commit", die)
        with pytest.raises(StoreError, match="killed"):
            exporter.run()
    commit = DeltaTransaction.commit

    def commit_and_die(*arguments: Any) -> None:
        commit(*arguments)
        die()

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTransaction, "commit", commit_and_die)
        with pytest.raises(StoreError, match="killed"):
            exporter.run()
    assert exporter.run()[0]["messages"] == 0
    exporter.send(9, 15)
    tasks, others = PendingQueueMessages.tasks, [exporter.run_store, exporter.run]

    def meanwhile(*arguments: Any) -> Any:
        if others:
            others.pop()()  # of the cluster, and meanwhile of the store
        return tasks(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PendingQueueMessages, "tasks", meanwhile)
        assert exporter.run()[0]["messages"] == 0
    assert exporter.bodies() == list(range(15))


@pytest.mark.long
def test_rounds_end_with_what_was_there_and_streams_with_a_signal(
    exporter: ClusterExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter.send(0, 12)
    report, _ = exporter.run("--mode", "available-now", "--max-messages-per-trigger", "5")
    assert (report["messages"], report["batches"]) == (12, 3)
    export_round, rounds = ExportLoop.export_round, []

    def one_more(self: ExportLoop[Any, Any]) -> tuple[ExportCounts, bool]:
        outcome = export_round(self)
        rounds.append(sum(part.total.messages for part in self.source.parts))
        if rounds[-1] == 8:
            signal.raise_signal(signal.SIGTERM)
        elif len(rounds) == 1:
            exporter.send(12, 20)
        return outcome

    monkeypatch.setattr(ExportLoop, "export_round", one_more)
    assert threading.current_thread() is threading.main_thread()
    report, code = exporter.run("--mode", "stream", "--trigger-interval", "1 millisecond")
    assert (report["messages"], code) == (8, 0)
    assert exporter.bodies() == list(range(20))


@pytest.mark.long
def test_a_restored_table_a_topic_made_anew_and_options_of_stores_are_refused(exporter: ClusterExporter) -> None:
    exporter.send(0, 4)
    exporter.run()
    exporter.send(4, 8)
    exporter.run()
    exporter.sql("RESTORE TABLE {} TO VERSION AS OF 1")
    with pytest.raises(StoreError, match="table was restored: contains offsets below 4, last export committed 8"):
        exporter.run()
    assert exporter.run("--from-offset", "0")[0]["messages"] == 4
    assert exporter.run()[0]["messages"] == 0
    assert exporter.bodies() == list(range(8))

    async def make_anew() -> None:
        async with Admin(exporter.namesrv) as admin:
            await admin.delete_topic(exporter.topic)

    run(make_anew())
    make_topic(exporter.namesrv, exporter.topic)
    with pytest.raises(ClusterError, match="the topic was recreated"):
        exporter.run()
    for wrong, said in (("--checkpoint", "the tables have the progress"), ("--store", "one of --store and --namesrv")):
        with pytest.raises(OptionError, match=said):
            exporter.run(wrong, "somewhere")
    assert exporter.bodies() == list(range(8))


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.long
def test_messages_that_java_wrote_and_the_broker_deleted_are_an_error_or_counted(
    table_format: str,
    spark: SparkSession,
    golden: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(golden("mixed") / "store", tmp_path / "store")
    table = ["--table", str(tmp_path / "messages"), "--format", table_format, "--topics", "Orders"]
    limited = ["--mode", "available-now", "--max-messages-per-trigger", "6"]

    def export(namesrv: str, *arguments: str) -> tuple[dict[str, Any], int]:
        given = export_delta.parser().parse_args(["--namesrv", namesrv, *table, *arguments])
        return export_delta.main(export_delta.check(given), spark)

    export_round = ExportLoop.export_round
    with configured(tmp_path, _CONF) as running, monkeypatch.context() as patch:
        patch.setattr(ExportLoop, "export_round", lambda self: (export_round(self)[0], False))  # one round
        assert export(running.namesrv, *limited)[0]["messages"] == 6
    (tmp_path / "store" / "commitlog" / f"{0:020d}").unlink()
    with configured(tmp_path, _CONF) as running:
        with pytest.raises(ClusterError, match=r"Orders broker-a:0: offsets \d+ to \d+ are missing: deleted before"):
            export(running.namesrv)
        report, code = export(running.namesrv, "--fail-on-data-loss", "false")
        assert code == 1
        lines = (golden("mixed") / "expected" / "messages.jsonl").read_text().splitlines()
        orders = sum(json.loads(line)["topic"] == "Orders" for line in lines)
        assert (report["missing_messages"] > 0, report["failed"]) == (True, 0)
        assert 6 + report["messages"] + report["missing_messages"] == orders
        assert export(running.namesrv)[0]["messages"] == 0


@pytest.mark.long
def test_typed_tables_have_the_last_message_of_a_key_and_dead_letters_from_cluster_and_store(
    exporter: ClusterExporter,
) -> None:
    topic = {"topic": exporter.topic, "format": "json", "schema": "id INT, n INT", "key": ["id"], "table": "orders"}
    work = exporter.table.parent
    (work / "spec.json").write_text(json.dumps({"topics": [topic]}))
    typed = "--typed", str(work / "spec.json"), "--dlq-table", str(work / "dead")

    def orders(numbers: range) -> None:
        bodies = [json.dumps({"id": number % 3, "n": number}).encode() if number % 5 else b"bad" for number in numbers]
        send(exporter.namesrv, [Message(exporter.topic, body) for body in bodies])

    orders(range(12))
    report, code = exporter.run(*typed)
    assert (report["exports"], report["undecoded"], code) == ({"raw": 12, exporter.topic: 9}, 3, 0)
    orders(range(12, 20))
    assert exporter.run_store(*typed)[0]["exports"]["raw"] == 8  # the table of keys merges what it has again
    orders(range(20, 24))
    assert exporter.run(*typed)[0]["exports"] == {"raw": 4, exporter.topic: 3}
    found = {name: exporter.spark.read.format("delta").load(str(work / name)).collect() for name in ("orders", "dead")}
    assert sorted((row.id, row.n) for row in found["orders"]) == [(0, 21), (1, 22), (2, 23)]
    assert len({row.physical_offset for row in found["dead"]}) == len(found["dead"]) == 5


@pytest.mark.long
def test_exploded_messages_of_cluster_and_store_are_exported_once_in_turn_and_at_once(
    exporter: ClusterExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = {"topic": exporter.topic, "format": "json", "schema": "id INT", "explode": True, "table": "lines"}
    work = exporter.table.parent
    (work / "spec.json").write_text(json.dumps({"topics": [topic]}))
    typed = "--typed", str(work / "spec.json"), "--dlq-table", str(work / "dead")

    def lists(numbers: range) -> None:
        bodies = [b'[{"id":1},{"id":"x"}]' if n % 4 == 3 else b'[{"id":%d},{"id":%d}]' % (n, -n) for n in numbers]
        send(exporter.namesrv, [Message(exporter.topic, body) for body in bodies])

    lists(range(1, 9))
    report, code = exporter.run(*typed)
    assert (report["exports"], report["undecoded"], code) == ({"raw": 8, exporter.topic: 6}, 2, 0)
    lists(range(9, 13))
    assert exporter.run_store(*typed)[0]["exports"] == {"raw": 4, exporter.topic: 3}
    lists(range(13, 21))
    tasks, concurrent_exports = PendingQueueMessages.tasks, [exporter.run_store]

    def meanwhile(*arguments: Any) -> Any:
        if concurrent_exports:
            concurrent_exports.pop()(*typed)
        return tasks(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PendingQueueMessages, "tasks", meanwhile)
        exporter.run(*typed)
    assert exporter.run(*typed)[0]["exports"] == {"raw": 0, exporter.topic: 0}
    tables = {name: exporter.spark.read.format("delta").load(str(work / name)).collect() for name in ("lines", "dead")}
    ids = [n * sign for n in range(1, 21) if n % 4 != 3 for sign in (1, -1)]
    assert sorted((row.id, row.element_index) for row in tables["lines"]) == sorted((n, int(n < 0)) for n in ids)
    assert len({row.physical_offset for row in tables["dead"]}) == len(tables["dead"]) == 5


@pytest.mark.long
def test_two_brokers_land_in_one_commit_and_one_that_is_stopped_is_named(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    conf = tmp_path / "a.conf"
    conf.write_text(_CONF)
    with standalone(tmp_path / "a", "-c", str(conf), log=tmp_path / "a.log") as running:
        with second_broker(tmp_path, running.namesrv):
            exporter = ClusterExporter(spark, running.namesrv, tmp_path / "a", tmp_path)
            with ClusterConnection(running.namesrv, None) as link:
                wait_for(lambda: {queue.broker for queue in link.queues(exporter.topic)} == {"broker-a", "broker-b"})
            exporter.send(0, 16)  # to all queues in turn
            report, code = exporter.run()
            assert ([broker["messages"] > 0 for broker in report["brokers"]], code) == ([True, True], 0)
            assert (report["messages"], exporter.bodies()) == (16, list(range(16)))
            assert {row.broker_name for row in exporter.rows()} == {"broker-a", "broker-b"}
            assert exporter.spark.sql(f"DESCRIBE HISTORY delta.`{exporter.table}`").count() == 2  # made, and filled
        assert "does not name broker" not in caplog.text
        report, code = exporter.run()
        assert (report["messages"], code) == (0, 0)
        assert "does not name broker broker-b of cluster DefaultCluster now" in caplog.text
