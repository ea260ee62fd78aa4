"""Log of a Delta table through Delta's Scala API: versions, properties and atomic commits.

Delta's writer can skip a transaction that was committed before. It cannot make a commit depend on what was committed
since rows were selected. Delta's own transactions can, in Scala only: this module calls them.
"""

import functools
import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from rmq_formats.errors import StoreError
from rmq_formats.spark.session import check_class, delta_package
from rmq_lakehouse.change_data import MergeRows
from rmq_lakehouse.delta import keyed, s3a
from rmq_lakehouse.delta.columns import (
    exported_columns,
    has_partition_directories,
    physical_columns,
    unwritable_partitions,
    with_partition_checks,
    writable_partitions_condition,
)
from rmq_lakehouse.delta.commit_hook import TableReplacedError, commit_hook
from rmq_lakehouse.delta.features import AUTO_COMPACT, column_without_bounds, is_plain, stats_property
from rmq_lakehouse.delta.files import (
    COLUMNS_PROPERTY,
    MAPPING_MODE,
    DeltaFiles,
    newest_files,
    parse_checksum,
    parse_commit,
    removed_columns,
    set_transaction,
    write_metrics,
)
from rmq_lakehouse.delta.local_commits import commit_lock, quarantine_torn_commits
from rmq_lakehouse.delta.location import DeltaDirectory, DeltaLocation
from rmq_lakehouse.evolution import column, ddl, missing, text
from rmq_lakehouse.exactly_once import ATTEMPTS
from rmq_lakehouse.java import java_class, read_file, scala_object
from rmq_lakehouse.parquet import Layout, WrittenFile
from rmq_lakehouse.progress import TableCommit
from rmq_lakehouse.spark_table_columns import SparkTableColumns
from rmq_lakehouse.table_fit import moved_columns
from rmq_lakehouse.table_log import NOT_A_TABLE, CommitAttempt, StartAttempt, TableSpec
from rmq_lakehouse.table_name import quoted
from rmq_offline.tasks.publish import sync_file_system

CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
    TableReplacedError,
)
"""Another writer was faster: nothing was committed, and the export begins another attempt."""
_log = logging.getLogger("rmq_lakehouse")
_NOT_EMPTY: Final = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"  # also of a table whose first commit is under way
_CREATION_TIMEOUT_S: Final = 5.0  # wait for a table that another export is creating
_POLL_S: Final = 0.1
_WIDENING: Final = "delta.enableTypeWidening"
_UNIFORM: Final = "delta.universalFormat.enabledFormats"


class DeltaSnapshot:
    """One version of a table.

    Delta knows a version's transactions once it has computed the version's state, by a job of Spark. Its checksum
    files have them without one.
    """

    def __init__(self, snapshot: Any, log: "DeltaTableLog") -> None:
        self.delta_snapshot = snapshot
        self._log = log

    @property
    def version(self) -> int:
        return -1 if self.delta_snapshot is None else int(self.delta_snapshot.version())

    def read_commit(self, version: int) -> TableCommit | None:
        """Read a commit of the log; None if it was cleaned up. That of this version is read once."""
        return self._commit if version == self.version else self._log.read_commit(version)

    @functools.cached_property
    def _commit(self) -> TableCommit | None:
        return self._log.read_commit(self.version)

    @functools.cached_property
    def transactions(self) -> dict[str, int]:
        if self.delta_snapshot is None:
            return {}
        checksum = None if self.expires_transactions() else self._log.read_checksum(self.version)
        if checksum is not None and self._commit is not None:
            versions = parse_checksum(checksum, self._commit.transaction_id)
            if versions is not None:
                return versions
        entries = self.delta_snapshot.transactions().iterator()
        versions = {}
        while entries.hasNext():
            entry = entries.next()
            versions[str(entry._1())] = int(entry._2())
        return versions

    def expires_transactions(self) -> bool:
        snapshot = self.delta_snapshot
        return snapshot is not None and bool(snapshot.minSetTransactionRetentionTimestamp().isDefined())


class DeltaTableLog(SparkTableColumns):
    """Transaction log of one table; each call sees its newest version. Raises OptionError: the session has no Delta."""

    conflicts: tuple[type[Exception], ...] = CONFLICTS
    accepts_any_partition_text = False
    null_breaks_members = True

    def __init__(self, spark: SparkSession, table: str) -> None:
        check_class(spark, "org.apache.spark.sql.delta.DeltaLog", delta_package())
        self._spark = spark
        self._location = DeltaLocation(spark, table)
        self._jvm: Any = spark._jvm
        self._delta_log: Any = java_class(spark._jvm, "org.apache.spark.sql.delta.DeltaLog")
        self._file_names: Any = scala_object(spark._jvm, "org.apache.spark.sql.delta.util.FileNames")
        self._nothing: Any = java_class(spark._jvm, "scala.Option").empty()
        self._torn_commits_checked = False  # as a loss of power may tear commits
        self._newest: DeltaSnapshot | None = None

    def exists(self) -> bool:
        return self._location.path() is not None and bool(self._snapshot().version() >= 0)

    def snapshot(self) -> DeltaSnapshot:
        return self.snapshot_of(None if self._location.path() is None else self._snapshot())

    def snapshot_of(self, snapshot: Any) -> DeltaSnapshot:
        """Wrap Delta's snapshot; the transactions of the newest snapshot are read once."""
        if self._newest is None or self._newest.delta_snapshot != snapshot:
            self._newest = DeltaSnapshot(snapshot, self)
        return self._newest

    def _read(self, path: Any) -> bytes | None:
        """Read a file of the log; None without one."""
        files = path.getFileSystem(self._log().newDeltaHadoopConf())
        return read_file(files, path) if files.exists(path) else None

    def _lines(self, version: int) -> list[bytes] | None:
        """Read the actions of a commit of the log; None if it was cleaned up."""
        content = self._read(self._file_names.unsafeDeltaFile(self._log().logPath(), version))
        return None if content is None else content.splitlines()

    def read_checksum(self, version: int) -> bytes | None:
        return self._read(self._file_names.checksumFile(self._log().logPath(), version))

    def read_commit(self, version: int) -> TableCommit | None:
        lines = self._lines(version)
        return None if lines is None else parse_commit(lines, self._restored_version)

    def _restored_version(self, parameters: Mapping[str, Any]) -> int | None:
        """Find the table version that a RESTORE by version or by time restored."""
        if parameters.get("version") is not None:
            return int(parameters["version"])
        timestamp = F.lit(parameters.get("timestamp")).cast("timestamp")
        try:
            ((timestamp_ms,),) = self._spark.range(1).select(F.unix_millis(timestamp)).collect()
            if timestamp_ms is None:
                return None
            at = java_class(self._jvm, "java.sql.Timestamp")(timestamp_ms)
            return int(self._log().history().getActiveCommitAtTime(at, self._nothing, True, False, False).version())
        except (PySparkException, Py4JJavaError):  # it was cleaned up
            return None

    def configuration(self) -> dict[str, str]:
        pairs = self._snapshot().metadata().configuration().toSeq()
        return {str(pairs.apply(at)._1()): str(pairs.apply(at)._2()) for at in range(pairs.size())}

    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self._snapshot().metadata().schemaString()))

    def former_columns(self) -> dict[str, str | None]:
        properties = self.configuration()
        # Without column mapping an owner drops columns only by writing the table anew.
        if properties.get(MAPPING_MODE, "none") == "none":
            return dict.fromkeys(removed_columns(properties, physical_columns(self.schema())))
        exported = exported_columns(properties.get(COLUMNS_PROPERTY), int(self._snapshot().version()), self._lines)
        return moved_columns(exported, physical_columns(self.schema()))

    def partition_columns(self) -> list[str]:
        names = self._snapshot().metadata().partitionColumns()
        return [str(names.apply(at)) for at in range(names.size())]

    def is_plain(self) -> bool:
        """Return whether tasks may write the table's files themselves; see ``is_plain``."""
        snapshot = self._snapshot()
        protocol = json.loads(snapshot.protocol().json())["protocol"]
        auto_compact = self._spark.conf.get(AUTO_COMPACT, "false") or "false"
        return is_plain(protocol, str(snapshot.metadata().schemaString()), self.configuration(), auto_compact)

    def storable_schema(self, schema: StructType) -> StructType:
        """Return the columns as they are: Delta has all of Spark's types."""
        return schema

    def has_partition_directories(self, properties: Mapping[str, str]) -> bool:
        return has_partition_directories(properties, self.local_path)

    def missing_file(self) -> str | None:
        """Check the first and the last file of the newest commit that added files."""
        files, directory = self._file_system(), str(self._log().dataPath())
        newest_paths = newest_files(self._lines, int(self._snapshot().version()))
        absolute = java_class(self._jvm, "org.apache.spark.sql.delta.util.DeltaFileOperations").absolutePath
        paths = [absolute(directory, name) for name in (*newest_paths[:1], *newest_paths[-1:])]
        return next((str(path) for path in paths if not files.exists(path)), None)

    def other_table(self) -> str | None:
        return self._directory().other_table()

    def _directory(self) -> DeltaDirectory:
        """Return the table's directory; Iceberg metadata that Delta writes itself (UniForm) belong to the table."""
        is_uniform = self.exists() and "iceberg" in self.configuration().get(_UNIFORM, "")
        return DeltaDirectory(self._jvm, self._file_system(), self._location.directory(), self.local_path, is_uniform)

    def create(self, schema: StructType, table_spec: TableSpec, properties: Mapping[str, str]) -> None:
        self._directory().check_new(self._location.table)
        table_properties = stats_property(table_spec.stats) | dict(properties)
        if table_properties.get(MAPPING_MODE, "none") == "none":  # else Delta chooses what files call columns
            table_properties[COLUMNS_PROPERTY] = json.dumps(physical_columns(schema))
        clauses = [f"COMMENT {text(table_spec.comment)}"] if table_spec.comment else []
        for clause, columns in (("PARTITIONED BY", table_spec.partitions), ("CLUSTER BY", table_spec.clusters)):
            if columns:
                clauses.append(f"{clause} ({', '.join(map(quoted, columns))})")
        listed = ", ".join(f"{text(name)} = {text(value)}" for name, value in table_properties.items())
        columns_ = ", ".join(missing(StructType([]), schema))
        create = f"CREATE TABLE IF NOT EXISTS {self._location.sql} ({columns_}) USING delta {' '.join(clauses)}"
        try:
            with commit_hook(self._spark, self.commit_guard):
                self._spark.sql(f"{create} TBLPROPERTIES ({listed})")
        except (PySparkException, *CONFLICTS) as error:
            timeout_s = _CREATION_TIMEOUT_S if _NOT_EMPTY in str(error) else 0.0
            if not self._appears(timeout_s):  # no other export has made the table
                raise
            return
        # With IF NOT EXISTS, Delta takes a directory that is not empty for a table, and does nothing.
        if not self._appears(_CREATION_TIMEOUT_S):
            raise StoreError(f"{self._location.table}: {NOT_A_TABLE}")

    def _appears(self, seconds: float) -> bool:
        """Wait for the table, which another export may be creating; return whether it exists."""
        end = time.monotonic() + seconds
        while not self.exists():
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_S)
        return True

    def add_columns(self, schema: StructType) -> None:
        columns = ", ".join(missing(self.schema(), schema))
        if not columns:  # another export was faster
            return
        exported = self.configuration().get(COLUMNS_PROPERTY)
        with commit_hook(self._spark, self.commit_guard):
            self._spark.sql(f"ALTER TABLE {self._location.sql} ADD COLUMNS ({columns})")
        if exported is not None:
            value = text(json.dumps({**json.loads(exported), **physical_columns(self.schema())}))
            with commit_hook(self._spark, self.commit_guard):
                self._spark.sql(f"ALTER TABLE {self._location.sql} SET TBLPROPERTIES ('{COLUMNS_PROPERTY}' = {value})")

    def widening_refusal(self, narrow: DataType, wide: DataType) -> str | None:  # noqa: ARG002 # Delta widens all of them
        if self.configuration().get(_WIDENING, "false").lower() == "true":
            return None
        return (
            f"to let exports widen it, run ALTER TABLE {self._location.sql} SET TBLPROPERTIES ('{_WIDENING}' = 'true')"
        )

    def widen_column(self, path: Sequence[str], kind: DataType) -> None:
        with commit_hook(self._spark, self.commit_guard):
            self._spark.sql(
                f"ALTER TABLE {self._location.sql} ALTER COLUMN {'.'.join(map(quoted, path))} TYPE {ddl(kind)}"
            )

    def layout(self, table_spec: TableSpec, codec: str, columns: Collection[str]) -> Layout | None:
        unbounded = column_without_bounds(self.configuration(), columns, table_spec.stats)
        if table_spec.clusters or unbounded is not None or not self.is_plain():
            return None
        path, connect = self.local_path, None
        if path is None:
            connect = s3a.connection(self._file_system())
            if connect is None:
                return None
            path = str(self._log().dataPath().toString()).rstrip("/")
        return Layout(path, DeltaFiles(), table_spec.partitions, table_spec.stats, codec, connect=connect)

    def rows(self, version: int, columns: Sequence[str]) -> DataFrame:
        frame = self._spark.read.format("delta").option("versionAsOf", version).load(self._location.directory())
        return frame.select(*map(column, columns))

    def visible_rows(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._location.directory())

    @functools.cached_property
    def local_path(self) -> str | None:
        """Return the table's directory in this machine's file system; None if Hadoop has it in another one."""
        path = java_class(self._jvm, "org.apache.hadoop.fs.Path")(self._location.directory())
        files = path.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf())
        return str(path.toUri().getPath()) if files.getUri().getScheme() == "file" else None

    def _file_system(self) -> Any:
        log = self._log()
        return log.dataPath().getFileSystem(log.newDeltaHadoopConf())

    def upsert(
        self,
        start: StartAttempt,
        rows: Callable[[CommitAttempt], DataFrame],
        merge: MergeRows,
        last_row: int | None,
        *,
        is_backfill: bool,
    ) -> None:
        keyed.upsert(
            self._spark, self, self._location, self.commit_guard, start, rows, merge, last_row, is_backfill=is_backfill
        )

    def begin_transaction(self) -> "DeltaTransaction":
        sessions = java_class(self._jvm, "org.apache.spark.sql.SparkSession")
        sessions.setActiveSession(self._spark._jsparkSession)  # of this JVM thread
        self._snapshot()
        return DeltaTransaction(self._jvm, self._log().startTransaction(), self)

    def delete_older(self, time_column: str, days: int) -> None:
        is_older = column(self.current_name(self._location.table, time_column)) < (
            F.current_timestamp() - F.make_dt_interval(F.lit(days))
        )

        def delete() -> None:
            writable = self._writable_partitions("--retention")
            self._location.open().delete(is_older if writable is None else is_older & F.expr(writable))

        self._maintain(delete)

    def compact(self, time_column: str) -> None:
        del time_column  # Delta has an order of its own, by the clustering columns of a clustered table

        def optimize() -> None:
            writable = self._writable_partitions("--optimize")
            builder = self._location.open().optimize()
            (builder if writable is None else builder.where(writable)).executeCompaction()

        self._maintain(optimize)

    def _maintain(self, change: Callable[[], None]) -> None:
        """Commit a change of Delta's own, again after a lost race. Raises StoreError."""
        for _ in range(ATTEMPTS):
            try:
                with commit_hook(self._spark, self.commit_guard):
                    change()
            except CONFLICTS:
                continue
            self.fsync()  # before files that no version has any more are deleted
            return
        raise StoreError(
            f"{self._location.table}: lost {ATTEMPTS} races against other writers; its files are as they were"
        )

    def _writable_partitions(self, option: str) -> str | None:
        """Return the condition that leaves out partitions that Spark's writer would lose; None without any."""
        files = DataFrame(self._snapshot().allFiles().toDF(), self._spark)
        has_directories = self.has_partition_directories(self.configuration())
        unwritable = unwritable_partitions(
            files, self.schema(), self.partition_columns(), has_directories=has_directories
        )
        for name, values in unwritable.items():
            text_ = "%s: %s leaves out partitions of %s whose texts Spark's writer does not keep: %s"
            listed = ", ".join(f"{value[:80]!r}" for value in values)
            _log.warning(text_, self._location.table, option, name, listed)
        return writable_partitions_condition(unwritable)

    def vacuum(self, hours: int) -> None:
        self._directory().check_vacuum(self._location.table)
        with commit_hook(self._spark, self.commit_guard):  # its history has the begin and the end of it
            self._location.open().vacuum(hours)

    @contextmanager
    def commit_guard(self) -> Iterator[None]:
        """Sync the data files to disk, and lock the table's log for the duration of a commit."""
        self.fsync()
        path = self.local_path
        with nullcontext() if path is None else commit_lock(Path(path)):
            yield

    def fsync(self) -> None:
        path = self.local_path
        if path is not None and Path(path).is_dir():
            sync_file_system(Path(path))

    def _log(self) -> Any:
        if not self._torn_commits_checked:
            path = self.local_path
            if path is not None:
                quarantine_torn_commits(Path(path))
            self._torn_commits_checked = True
        return self._delta_log.forTable(self._spark._jsparkSession, self._location.directory())

    def _snapshot(self) -> Any:
        # Delta has no Python call for transaction identifiers; its log is the only place that has them.
        return self._log().update(False, self._nothing, self._nothing)


class DeltaTransaction:
    """Delta transaction whose commit fails if another writer has set one of the watched versions."""

    def __init__(self, jvm: Any, transaction: Any, log: DeltaTableLog) -> None:
        self._jvm = jvm
        self._transaction = transaction
        self._table = log
        self._written_actions: dict[str, Any] = {}  # of files that Delta's writer has written, by path

    @property
    def snapshot(self) -> DeltaSnapshot:
        return self._table.snapshot_of(self._transaction.snapshot())

    def watch(self, app_id: str) -> None:
        # Delta's own ``txnVersion`` reads the version, too, and computes the table's state for that.
        self._transaction.readTxn().append(app_id)

    def write(self, frame: DataFrame) -> list[WrittenFile]:
        """Write rows by Delta's own writer, which checks constraints and computes generated columns."""
        table = self._table
        rows = with_partition_checks(frame, table.partition_columns(), table.configuration(), table.local_path)
        actions = self._transaction.writeFiles(rows._jdf)
        files = [actions.apply(at) for at in range(actions.size())]
        self._written_actions = {file.path(): file for file in files}
        return [
            WrittenFile(file.json(), file.path(), rows=file.numLogicalRecords().get(), bytes=file.size())
            for file in files
        ]

    def commit(self, adds: Sequence[WrittenFile] | None, versions: Mapping[str, int], metadata: str | None) -> None:
        jvm = self._jvm
        nothing = java_class(jvm, "scala.Option").empty()
        self._register_metrics(write_metrics(adds))
        from_json = scala_object(jvm, "org.apache.spark.sql.delta.actions.Action").fromJson
        written = self._written_actions  # read from JSON, these would get empty tags
        to_seq = java_class(jvm, "org.apache.spark.api.python.PythonUtils").toSeq
        actions = to_seq([written.get(add.path) or from_json(add.action) for add in adds or ()])
        for app_id, version in versions.items():  # in front of the files; see ``local_commits``
            actions = actions.prepended(set_transaction(jvm, app_id, version))
        append = java_class(jvm, "org.apache.spark.sql.SaveMode").Append
        write = java_class(jvm, "org.apache.spark.sql.delta.DeltaOperations$Write")
        user_metadata = nothing if metadata is None else java_class(jvm, "scala.Some")(metadata)
        with self._table.commit_guard():
            self._transaction.commit(actions, write(append, nothing, nothing, user_metadata, *[nothing] * 5))
        self._table.fsync()

    def _register_metrics(self, metrics: Mapping[str, int]) -> None:
        """Register counts for the commit's entry in the table's history."""
        session = self._transaction.spark()
        sql_metrics = java_class(self._jvm, "java.util.HashMap")()
        make_metric = java_class(self._jvm, "org.apache.spark.sql.execution.metric.SQLMetrics").createMetric
        for name, value in metrics.items():
            metric = make_metric(session.sparkContext(), name)
            metric.set(value)
            sql_metrics[name] = metric
        to_scala_map = java_class(self._jvm, "org.apache.spark.api.python.PythonUtils").toScalaMap
        self._transaction.registerSQLMetrics(session, to_scala_map(sql_metrics))
