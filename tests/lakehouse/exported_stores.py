"""Stores and exports for these tests: logs of a few records, jobs run within the tests' session."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession

from jobs import export_delta
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.record import MessageToStore
from tests.store_files import write_commitlog

FILE_BYTES = 4096
HOST = Host(bytes([127, 0, 0, 1]), 10911)


def write(store: Path, bodies: Sequence[tuple[str, bytes]], first_ms: int = 1_700_000_000_000) -> list[int]:
    """Write a log of (topic, body); the same beginning gives the same bytes. The physical offsets."""
    messages = [
        MessageToStore(topic=topic, queue_id=0, body=body, born_timestamp_ms=first_ms, born_host=HOST, store_host=HOST)
        for topic, body in bodies
    ]
    return write_commitlog(store, messages, FILE_BYTES, first_ms)


def plain(count: int) -> list[tuple[str, bytes]]:
    """Messages of two topics."""
    return [("Odd" if number % 2 else "Even", b"%d" % number * (1 + number % 40)) for number in range(count)]


class Exporter:
    """Runs the job on one store."""

    def __init__(self, spark: SparkSession, store: Path, work: Path) -> None:
        self.spark, self.store, self.work = spark, store, work
        self.table = work / "table"

    def run(self, *arguments: str, table: bool = True) -> tuple[dict[str, Any], int]:
        """The report and the exit code."""
        where = ["--table", str(self.table)] if table else []
        given = export_delta.parser().parse_args(["--store", str(self.store), *where, *arguments])
        export_delta.check(given)
        return export_delta.main(given, self.spark)

    def rows(self, name: str = "table") -> list[Row]:
        """A table's rows, by their physical offsets."""
        frame = self.spark.read.format("delta").load(str(self.work / name))
        return frame.orderBy("physical_offset").collect()

    def offsets(self) -> list[int]:
        """Physical offsets that have landed, with repetitions."""
        return [row.physical_offset for row in self.rows()]
