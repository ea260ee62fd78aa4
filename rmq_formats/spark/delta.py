"""What a job needs of a Delta table beyond reading and writing rows."""

from typing import Any

from pyspark.sql import SparkSession


class DeltaTableLog:
    """The transaction log of one table; each call sees its newest version."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path

    def exists(self) -> bool:
        """Whether a Delta table is there."""
        return bool(self._snapshot().version() >= 0)

    def transaction_version(self, app_id: str) -> int:
        """The last ``txnVersion`` that was committed for ``app_id``; -1 if none was."""
        found = self._snapshot().transactions().get(app_id)
        return int(found.get()) if found.isDefined() else -1

    def configuration(self) -> dict[str, str]:
        """The table's properties."""
        properties = self._snapshot().metadata().configuration()
        entries = properties.toSeq()
        return {str(entries.apply(at)._1()): str(entries.apply(at)._2()) for at in range(entries.size())}

    def partition_columns(self) -> list[str]:
        """Names of the columns that the table is partitioned by."""
        names = self._snapshot().metadata().partitionColumns()
        return [str(names.apply(at)) for at in range(names.size())]

    def _snapshot(self) -> Any:
        # Delta has no Python call for transaction identifiers; its log is the only place that has them.
        jvm: Any = self._spark._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self._path)
        nothing = jvm.scala.Option.empty()
        return log.update(False, nothing, nothing)
