"""Guards against lost Delta commits on S3: a log store with conditional puts, or a lease for one writer.

A commit creates the file of its version only if no other writer has. Delta's default log store for S3,
``S3SingleDriverLogStore``, checks first and puts then: one of two drivers overwrites the commit of the other.
``create`` of S3A without overwriting is a check and a put, too. So a log store that creates the file by a conditional
put replaces the default: S3A supports such puts since Hadoop 3.4.2, by an option of the file, and Delta 4.4 has no such
log store. A log store is a Java class: its source is beside this module, and Janino, Spark's own compiler of queries,
compiles it in the driver. A lease admits one writer if S3A is too old, has the option switched off, or another unsafe
log store was chosen.

Source: ``io.delta.storage.S3SingleDriverLogStore``, ``LogStoreProvider`` and ``DelegatingLogStore`` of Delta;
``S3AFileSystem#innerCreateFile``, ``org.apache.hadoop.fs.Options.CreateFileOptionKeys`` of Hadoop 3.5.
"""

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from rmq_formats.errors import StoreError
from rmq_lakehouse.delta.location import first_line
from rmq_lakehouse.java import java_class, read_file
from rmq_offline.tasks.object_lease import lease

_CONDITIONAL_CLASS: Final = "rmq_formats.ConditionalLogStore"
_CAPABILITY: Final = "fs.option.create.conditional.overwrite"
_SOURCE: Final = "ConditionalLogStore.java"
_SUFFIX: Final = ".rmq-leases"  # beside the table: Delta makes none where there is something else
_SCHEMES: Final = frozenset({"s3", "s3a", "s3n"})
_SINGLE_DRIVER: Final = (
    "io.delta.storage.S3SingleDriverLogStore",
    "org.apache.spark.sql.delta.storage.S3SingleDriverLogStore",
    # These rely on the file system, whose commits are not safe on S3.
    "io.delta.storage.GCSLogStore",
    "io.delta.storage.HDFSLogStore",
    "io.delta.storage.AzureLogStore",
)

_log = logging.getLogger("rmq_lakehouse")


@contextmanager
def writer_lease(spark: SparkSession, tables: Iterable[str]) -> Iterator[Callable[[], None]]:
    """Acquire the leases of tables that are safe for one driver only; yield a function that raises for a lost lease.

    Raises:
        StoreLockedError: another export writes to one of the tables.
        StoreError: the object store cannot be read or written.
    """
    with ExitStack() as stack:
        checks = []
        for table in sorted(set(tables)):
            if _needs_lease(spark, table):
                text = "%s: its log store is safe for one driver at a time: no program but this may write there now"
                _log.warning(text, table)
                checks.append(stack.enter_context(lease(_Leases(spark, table), table, "export")))

        def check_lease() -> None:
            for check in checks:
                check()

        yield check_lease


def _needs_lease(spark: SparkSession, table: str) -> bool:
    """Return whether the table needs a lease of its writer; if possible, install the log store that needs no lease."""
    jvm: Any = spark._jvm
    scheme = str(java_class(jvm, "org.apache.hadoop.fs.Path")(table).toUri().getScheme())
    if scheme not in _SCHEMES:
        return False
    conf = java_class(jvm, "org.apache.spark.SparkEnv").get().conf()  # Delta asks no session's
    log_store = conf.get(f"spark.delta.logStore.{scheme}.impl", None) or conf.get("spark.delta.logStore.class", None)
    if log_store is not None and log_store != _CONDITIONAL_CLASS:
        return log_store in _SINGLE_DRIVER
    with translate_errors(table):
        can = _puts_conditionally(spark, table)
    return not (can and _install_conditional_store(spark, scheme))


def _puts_conditionally(spark: SparkSession, table: str) -> bool:
    """Return whether Hadoop's file system of a table can create a file only if it is absent, as one request.

    Hadoop before 3.4.2 does not, nor where ``fs.s3a.create.conditional.enabled`` is false.
    """
    path = java_class(spark._jvm, "org.apache.hadoop.fs.Path")(table)
    file_system = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    return bool(file_system.hasPathCapability(path, _CAPABILITY))


def _install_conditional_store(spark: SparkSession, scheme: str) -> bool:
    """Make Delta use the log store for a scheme, in all sessions of this driver; return False if that fails."""
    jvm: Any = spark._jvm
    try:
        _define_conditional_store(jvm)
    except Py4JError:  # no compiler, or class loaders that take no more
        return False
    conf = java_class(jvm, "org.apache.spark.SparkEnv").get().conf()
    conf.set(f"spark.delta.logStore.{scheme}.impl", _CONDITIONAL_CLASS)
    java_class(jvm, "org.apache.spark.sql.delta.DeltaLog").clearCache()  # open logs have the former store
    return True


def _define_conditional_store(jvm: Any) -> None:
    """Compile the class into the loader of Spark's jars, once. Raises Py4JError."""
    loader = _loader(jvm)
    find = java_class(jvm, "java.lang.Class").forName
    with suppress(Py4JError):
        find(_CONDITIONAL_CLASS, True, loader)
        return
    compiler = java_class(jvm, "org.codehaus.janino.SimpleCompiler")()
    compiler.setParentClassLoader(loader)
    compiler.cook(_SOURCE, java_class(jvm, "java.io.StringReader")((files(__package__) / _SOURCE).read_text("utf-8")))
    with tempfile.TemporaryDirectory() as directory:
        for name, code in compiler.getBytecodes().items():
            path = Path(directory, *name.split(".")).with_suffix(".class")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(code)
        loader.addURL(java_class(jvm, "java.io.File")(directory).toURI().toURL())
        find(_CONDITIONAL_CLASS, True, loader)


def _loader(jvm: Any) -> Any:
    """Return the class loader that all sessions share, with the jars of ``spark-submit``."""
    shared_loader, loader = None, java_class(jvm, "java.lang.Thread").currentThread().getContextClassLoader()
    while loader is not None:
        if str(loader.getClass().getName()).startswith("org.apache.spark.util."):
            shared_loader = loader
        loader = loader.getParent()
    if shared_loader is None:
        raise Py4JError("this driver was not started by Spark")
    return shared_loader


@contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Translate errors of the object store to StoreError."""
    try:
        yield
    except Py4JJavaError as error:
        raise StoreError(f"{path}: {first_line(error)}") from error


class _Leases:
    """``LeaseObjectStore`` of one table, in a file system of Hadoop's."""

    def __init__(self, spark: SparkSession, table: str) -> None:
        jvm: Any = spark._jvm
        self._path = java_class(jvm, "org.apache.hadoop.fs.Path")
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
            return read_file(self._files, path).decode("utf-8", "replace") if self._files.exists(path) else None

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
