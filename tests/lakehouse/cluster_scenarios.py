"""Exports of a running cluster and of its broker's store into one table, at any cluster."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs import export_delta
from rmq_core.client import Message
from rmq_lakehouse.live.client import ClusterConnection
from tests.interop.test_namesrv_against_java import wait_for
from tests.spark.live.scenarios import fresh, make_topic, send


class ClusterExporter:
    """Runs the job on the cluster or on the broker's store, into one table."""

    def __init__(self, spark: SparkSession, namesrv: str, store: Path, work: Path) -> None:
        self.spark, self.namesrv, self.store, self.table = spark, namesrv, store, work / "table"
        self.topic = make_topic(namesrv, fresh("Exported"))

    def sql(self, statement: str) -> None:
        """Do something with the table."""
        self.spark.sql(statement.format(f"delta.`{self.table}`"))

    def send(self, begin: int, end: int) -> None:
        """Send messages whose bodies are numbers, and wait until the queues have them: Java acknowledges before."""
        send(self.namesrv, [Message(self.topic, b"%03d" % number) for number in range(begin, end)])
        with ClusterConnection(self.namesrv, None) as link:
            queues = link.queues(self.topic)
            wait_for(lambda: sum(high for _, high in link.bounds(queues).values()) == end)

    def run(self, *arguments: str) -> tuple[dict[str, Any], int]:
        """Export the cluster."""
        return self._run("--namesrv", self.namesrv, *arguments)

    def run_store(self, *arguments: str) -> tuple[dict[str, Any], int]:
        """Export the store of the broker, as one of several."""
        return self._run("--store", str(self.store.with_name("stor[e]")), *arguments)

    def _run(self, *arguments: str) -> tuple[dict[str, Any], int]:
        given = export_delta.parser().parse_args(
            [*arguments, "--table", str(self.table), "--topics", self.topic, "--partition-by", "topic"]
        )
        return export_delta.main(export_delta.check(given), self.spark)

    def rows(self) -> list[Any]:
        """The table's rows, by their bodies."""
        return self.spark.read.format("delta").load(str(self.table)).orderBy("body").collect()

    def bodies(self) -> list[int]:
        """Numbers that have landed, with repetitions."""
        return [int(row.body) for row in self.rows()]


@pytest.mark.long
def test_what_is_new_lands_once_and_exports_of_the_store_go_on_from_there_and_back(exporter: ClusterExporter) -> None:
    exporter.send(0, 20)
    report, code = exporter.run()
    assert (report["messages"], code) == (20, 0)
    assert exporter.run()[0]["messages"] == 0
    exporter.send(20, 30)
    assert exporter.run()[0]["messages"] == 10
    pulled = exporter.rows()
    exporter.send(30, 37)
    report, code = exporter.run_store()
    assert (report["messages"], code) == (7, 0)
    assert exporter.bodies() == list(range(37))
    exporter.send(37, 50)
    assert exporter.run()[0]["messages"] == 13
    assert exporter.run_store()[0]["messages"] == 0
    assert exporter.bodies() == list(range(50))
    assert exporter.rows()[:30] == pulled
    assert len({(row.topic, row.broker_name, row.queue_id, row.queue_offset) for row in exporter.rows()}) == 50
