"""Location of a Delta table: a path, or a name in a catalog of Spark's, such as a Hive metastore.

Its directory may have other tables, whose files a VACUUM would delete.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rmq_formats.errors import StoreError
from rmq_formats.spark.versions import unfit_library
from rmq_lakehouse.directories import DELTA_LOG, METADATA, check_new_table, check_vacuum, table_around, table_within
from rmq_lakehouse.java import java_class
from rmq_lakehouse.table_name import in_catalog, quoted

_LEVELS: Final = 2  # limit: levels of an object store's directories that are searched for other tables


class DeltaLocation:
    """Location of one table, a path or ``catalog.schema.table``."""

    def __init__(self, spark: SparkSession, table: str) -> None:
        self._spark, self.table = spark, table
        self._names = in_catalog(table)
        self._path = table if self._names is None else ""

    @property
    def sql(self) -> str:
        return f"delta.{quoted(self.table)}" if self._names is None else ".".join(map(quoted, self._names))

    def path(self) -> str | None:
        """Return the path of the table; None if its catalog lacks the table.

        Raises StoreError: the catalog does not answer, lacks the schema, or has another object of that name.
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


@dataclass(frozen=True, slots=True)
class DeltaDirectory:
    """Directory of one table.

    Attributes:
        files: Hadoop's file system of the directory.
        local_path: path in this machine's file system; None if Hadoop has it in another file system.
        is_uniform: whether Delta itself writes Iceberg metadata there.
    """

    jvm: Any
    files: Any
    path: str
    local_path: str | None
    is_uniform: bool

    def other_table(self) -> str | None:
        """Describe an Iceberg table of this very directory; None without one."""
        return None if self.is_uniform else self._matching(f"{METADATA}/*.metadata.json*", "an Iceberg table")

    def check_new(self, name: str) -> None:
        around = None if self.local_path is None else table_around(Path(self.local_path))
        check_new_table(name, around, self.other_table())

    def check_vacuum(self, name: str) -> None:
        check_vacuum(name, self.other_table() or self._table_within())

    def _table_within(self) -> str | None:
        if self.local_path is not None:
            return table_within(Path(self.local_path), ignored=(METADATA,) if self.is_uniform else ())
        patterns = (f"{'*/' * depth}{DELTA_LOG}" for depth in range(1, _LEVELS + 1))
        return next(filter(None, (self._matching(pattern, "a Delta table") for pattern in patterns)), None)

    def _matching(self, pattern: str, kind: str) -> str | None:
        """Describe a table by the first path below the directory that matches a pattern of Hadoop's."""
        make_path = java_class(self.jvm, "org.apache.hadoop.fs.Path")
        escaped = re.sub(r"([*?\[\]{}\\^])", r"\\\1", self.path)  # of what has a meaning in patterns
        matches = self.files.globStatus(make_path(make_path(escaped), pattern))
        return f"{kind} ({matches[0].getPath()})" if matches else None
