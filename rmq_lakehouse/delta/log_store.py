"""Guards against lost Delta commits on S3: a log store with conditional puts, or a lease for one writer.

A commit creates the file of its version only if no other writer has. Delta's default log store for S3,
``S3SingleDriverLogStore``, checks first and puts then: one of two drivers overwrites the commit of the other.
``create`` of S3A without overwriting is a check and a put, too. So the log store of ``conditional_store`` replaces the
default. A lease admits one writer if S3A is too old, has the option switched off, or another unsafe log store was
chosen.

Source: ``io.delta.storage.S3SingleDriverLogStore``, ``S3AFileSystem#innerCreateFile`` of Hadoop 3.5.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from rmq_formats.errors import StoreError
from rmq_lakehouse.delta import conditional_store
from rmq_lakehouse.delta.location import first_line
from rmq_offline.tasks.object_lease import lease

_SUFFIX: Final = ".rmq-leases"  # beside the table: Delta makes none where there is something else
_SCHEMES: Final = frozenset({"s3", "s3a", "s3n"})
_SINGLE_DRIVER: Final = frozenset(
    {
        "io.delta.storage.S3SingleDriverLogStore",
        "org.apache.spark.sql.delta.storage.S3SingleDriverLogStore",
        # These leave it to the file system, which does not do it on S3.
        "io.delta.storage.GCSLogStore",
        "io.delta.storage.HDFSLogStore",
        "io.delta.storage.AzureLogStore",
    }
)

_log = logging.getLogger("rmq_lakehouse")


@contextmanager
def writer_lease(spark: SparkSession, tables: Iterable[str]) -> Iterator[Callable[[], None]]:
    """Hold the leases of the tables that are safe for one driver only; yield a function that raises if a lease is lost.

    Raises:
        StoreLockedError: another export writes to one of the tables.
        StoreError: the object store cannot be read or written.
    """
    with ExitStack() as stack:
        checks = []
        for table in sorted(set(tables)):
            if _has_room_for_one(spark, table):
                _log.warning(
                    "%s: its log store is safe for one driver at a time: no program but this may write there now", table
                )
                checks.append(stack.enter_context(lease(_Leases(spark, table), table, "export")))

        def check_lease() -> None:
            for check in checks:
                check()

        yield check_lease


def _has_room_for_one(spark: SparkSession, table: str) -> bool:
    """Return whether only a lease keeps two drivers apart; the log store that needs none is put in where it can be."""
    jvm: Any = spark._jvm
    scheme = str(jvm.org.apache.hadoop.fs.Path(table).toUri().getScheme())
    if scheme not in _SCHEMES:
        return False
    conf = jvm.org.apache.spark.SparkEnv.get().conf()  # Delta asks no session's
    log_store = conf.get(f"spark.delta.logStore.{scheme}.impl", None) or conf.get("spark.delta.logStore.class", None)
    if log_store is not None and log_store != conditional_store.CLASS:
        return log_store in _SINGLE_DRIVER
    with translate_errors(table):
        can = conditional_store.puts_conditionally(spark, table)
    return not (can and conditional_store.install(spark, scheme))


@contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Translate errors of the object store to StoreError."""
    try:
        yield
    except Py4JJavaError as error:
        raise StoreError(f"{path}: {first_line(error)}") from error


class _Leases:
    """Lease objects of one table in Hadoop's file system; implements ``Notes`` of ``object_lease``."""

    def __init__(self, spark: SparkSession, table: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._root = self._path(f"{table.rstrip('/')}{_SUFFIX}")
        with self.translate_errors():
            self._files = self._root.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def translate_errors(self) -> AbstractContextManager[None]:
        return translate_errors(str(self._root.toString()))

    def names(self) -> list[str]:
        with self.translate_errors():
            if not self._files.exists(self._root):
                return []
            return [str(status.getPath().getName()) for status in self._files.listStatus(self._root)]

    def read(self, name: str) -> str | None:
        path = self._path(self._root, name)
        with self.translate_errors():
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                return bytes(stream.readAllBytes()).decode("utf-8", "replace")
            finally:
                stream.close()

    def put(self, name: str, text: str) -> None:
        with self.translate_errors():
            stream = self._files.create(self._path(self._root, name), True)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()

    def delete(self, name: str) -> None:
        with self.translate_errors():
            self._files.delete(self._path(self._root, name), False)
