"""The export job, run within the tests' session."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import Row, SparkSession

from jobs import export_delta


def _as_spark(value: Any, kind: pa.DataType) -> Any:
    """A value as Spark's ``collect`` has it: times are naive, structs rows."""
    if value is None:
        return None
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return value.astimezone().replace(tzinfo=None)
    if pa.types.is_struct(kind):
        return Row(**{field.name: _as_spark(value[field.name], field.type) for field in kind})
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_as_spark(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return {key: _as_spark(each, kind.item_type) for key, each in value.items()}
    return value


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
        """A table's rows, by their physical offsets; read without Spark, which takes a second, where that can be."""
        table = DeltaTable(str(self.work / name))
        if table.protocol().min_reader_version > 1:
            return self.spark_rows(name)
        rows = table.to_pyarrow_table().sort_by("physical_offset")
        kind = pa.struct(list(rows.schema))
        return [_as_spark(values, kind) for values in rows.to_pylist(maps_as_pydicts="strict")]

    def spark_rows(self, name: str) -> list[Row]:
        """The same, as Spark reads them."""
        return self.spark.read.format("delta").load(str(self.work / name)).orderBy("physical_offset").collect()

    def offsets(self) -> list[int]:
        """Physical offsets that have landed, with repetitions."""
        return [row.physical_offset for row in self.rows()]
