"""Location of a Delta table: a path, or a name in a catalog of Spark's, such as a Hive metastore."""

from typing import Any

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rmq_formats.errors import StoreError
from rmq_formats.spark.versions import unfit_library
from rmq_lakehouse.evolution import quoted
from rmq_lakehouse.table_name import in_catalog


class DeltaLocation:
    """Location of one table.

    Args:
        table: a path, or ``catalog.schema.table``.
    """

    def __init__(self, spark: SparkSession, table: str) -> None:
        self._spark, self.table = spark, table
        self._names = in_catalog(table)
        self._path = table if self._names is None else ""

    @property
    def sql(self) -> str:
        return f"delta.{quoted(self.table)}" if self._names is None else ".".join(map(quoted, self._names))

    def path(self) -> str | None:
        """Return the path of the table; None if its catalog has none of that name.

        Raises:
            StoreError: the catalog does not answer, lacks the schema, or has another object of that name.
        """
        if not self._path:
            try:
                self._path = self._catalog_path()
            except (PySparkException, Py4JError) as error:
                raise StoreError(f"{self.table}: {first_line(error)}") from error
        return self._path or None

    def _catalog_path(self) -> str:
        assert self._names is not None  # else its path is known
        schema = ".".join(map(quoted, self._names[:2]))
        if not self._spark.catalog.databaseExists(schema):
            raise StoreError(f"{self.table}: there is no schema {schema}; CREATE SCHEMA makes it")
        if not self._spark.catalog.tableExists(self.sql):
            return ""
        detail = self._spark.sql(f"DESCRIBE DETAIL {self.sql}").first()
        if detail is None or detail["format"] != "delta":
            raise StoreError(f"{self.table}: is no Delta table; give another --table")
        return str(detail["location"])

    def open(self) -> DeltaTable:
        return DeltaTable.forPath(self._spark, self.directory())

    def directory(self) -> str:
        """Return the directory of the table, which need not exist yet. Raises as ``path``."""
        path = self.path()
        if path is not None:
            return path
        assert self._names is not None  # a table that has a path has it before it exists
        *schema, name = self._names
        described: Any = self._spark.catalog.getDatabase(".".join(map(quoted, schema)))
        return f"{described.locationUri.rstrip('/')}/{name}"


def first_line(error: Exception) -> str:
    """Return the first line of an error of Spark, or of Java below it."""
    java = getattr(error, "java_exception", None)
    if java is None:
        return str(error).strip().splitlines()[0]
    text = java.toString()
    return unfit_library(text) or (java.getMessage() or text).strip().splitlines()[0]
