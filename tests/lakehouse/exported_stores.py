"""The export job, run within the tests' session."""

from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession

from jobs import export_delta


class Exporter:
    """Runs the job on one store."""

    def __init__(self, spark: SparkSession, store: Path, work: Path) -> None:
        self.spark, self.store, self.work = spark, store, work
        self.table = work / "table"

    def run(self, *arguments: str, table: bool = True) -> tuple[dict[str, Any], int]:
        """The report and the exit code."""
        where = ["--table", str(self.table)] if table else []
        given = export_delta.parser().parse_args(["--store", str(self.store), *where, *arguments])
        return export_delta.main(export_delta.check(given), self.spark)

    def rows(self, name: str = "table") -> list[Row]:
        """A table's rows, by their physical offsets."""
        frame = self.spark.read.format("delta").load(str(self.work / name))
        return frame.orderBy("physical_offset").collect()

    def offsets(self) -> list[int]:
        """Physical offsets that have landed, with repetitions."""
        return [row.physical_offset for row in self.rows()]
