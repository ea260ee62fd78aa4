"""Log of a Delta table through Delta's Scala API: versions, properties and atomic commits.

Delta's writer can skip a transaction that was committed before. It cannot make a commit depend on what was committed
since rows were selected. Delta's own transactions can, in Scala only: this module calls them.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from pyspark.sql.types import StructType

from rmq_formats.errors import StoreError
from rmq_formats.lakehouse.changes import MergeRows
from rmq_formats.lakehouse.delta import keyed, s3a
from rmq_formats.lakehouse.delta.columns import (
    COLUMNS_PROPERTY,
    MAPPING_MODE,
    exported_columns,
    former_columns,
    physical_columns,
)
from rmq_formats.lakehouse.delta.commit_hook import commit_hook
from rmq_formats.lakehouse.delta.commit_lock import commit_lock
from rmq_formats.lakehouse.delta.directory import DeltaDirectory
from rmq_formats.lakehouse.delta.features import AUTO_COMPACT, is_plain
from rmq_formats.lakehouse.delta.files import DeltaFiles, newest_files, set_transaction
from rmq_formats.lakehouse.delta.location import DeltaLocation
from rmq_formats.lakehouse.delta.partitions import with_partition_checks
from rmq_formats.lakehouse.delta.snapshot import DeltaSnapshot
from rmq_formats.lakehouse.delta.torn_commits import quarantine_torn_commits
from rmq_formats.lakehouse.evolution import column, missing, quoted, text
from rmq_formats.lakehouse.parquet import Layout
from rmq_formats.lakehouse.progress import TableCommit
from rmq_formats.lakehouse.table_log import CommitAttempt, CommitResult, StartAttempt, TableSpec
from rmq_formats.spark.session import check_class, delta_package
from rmq_formats.tasks.publish import sync_file_system

CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
"""Another writer was faster: nothing was committed, and what was chosen has to be chosen anew."""


_NOT_EMPTY: Final = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"  # as is one whose first commit is under way
_MAKING_S: Final = 5.0  # what that may take
_POLL_S: Final = 0.1
_UNIFORM: Final = "delta.universalFormat.enabledFormats"


class DeltaTableLog:
    """Transaction log of one table; each call sees its newest version.

    Raises:
        OptionError: the session has no Delta, which ``spark-submit`` was not given.
    """

    conflicts: tuple[type[Exception], ...] = CONFLICTS

    def __init__(self, spark: SparkSession, table: str) -> None:
        check_class(spark, "org.apache.spark.sql.delta.DeltaLog", delta_package())
        self._spark = spark
        self._location = DeltaLocation(spark, table)
        self._jvm: Any = spark._jvm
        self._torn_commits_checked = False  # for what a loss of power has torn

    def exists(self) -> bool:
        return self._location.path() is not None and bool(self._snapshot().version() >= 0)

    def snapshot(self) -> DeltaSnapshot:
        delta_snapshot = None if self._location.path() is None else self._snapshot()
        return DeltaSnapshot(delta_snapshot, self.commit)

    def _lines(self, version: int) -> list[bytes] | None:
        """Read the actions of a commit of the log; None if it was cleaned up."""
        log = self._log()
        path = getattr(getattr(self._jvm.org.apache.spark.sql.delta.util, "FileNames$"), "MODULE$").unsafeDeltaFile(
            log.logPath(), version
        )
        files = path.getFileSystem(log.newDeltaHadoopConf())
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return bytes(stream.readAllBytes()).splitlines()
        finally:
            stream.close()

    def commit(self, version: int) -> TableCommit | None:
        """Read a commit of the log; None if it was cleaned up."""
        lines = self._lines(version)
        if lines is None:
            return None
        actions = [json.loads(line) for line in lines if line.startswith((b'{"commitInfo"', b'{"txn"'))]
        info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        versions = {action["txn"]["appId"]: int(action["txn"]["version"]) for action in actions if "txn" in action}
        operation = str(info.get("operation"))
        restored = self._restored_version(info.get("operationParameters", {})) if operation == "RESTORE" else None
        return TableCommit(operation, restored, versions, info.get("userMetadata"))

    def _restored_version(self, parameters: Mapping[str, Any]) -> int | None:
        """Find the table version that a RESTORE went back to, which may have been given as a time."""
        if parameters.get("version") is not None:
            return int(parameters["version"])
        timestamp = F.lit(parameters.get("timestamp")).cast("timestamp")
        jvm = self._jvm
        try:
            ((timestamp_ms,),) = self._spark.range(1).select(F.unix_millis(timestamp)).collect()
            if timestamp_ms is None:
                return None
            at = jvm.java.sql.Timestamp(timestamp_ms)
            return int(
                self._log().history().getActiveCommitAtTime(at, jvm.scala.Option.empty(), True, False, False).version()
            )
        except (PySparkException, Py4JJavaError):  # it was cleaned up
            return None

    def configuration(self) -> dict[str, str]:
        return _text_map(self._snapshot().metadata().configuration())

    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self._snapshot().metadata().schemaString()))

    def former_columns(self) -> dict[str, str | None]:
        """See ``TableLog``; without column mapping no column can be renamed or dropped."""
        properties = self.configuration()
        if properties.get(MAPPING_MODE, "none") == "none":
            return {}
        exported = exported_columns(properties.get(COLUMNS_PROPERTY), int(self._snapshot().version()), self._lines)
        return former_columns(self.schema(), exported)

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

    def missing_file(self) -> str | None:
        """See ``TableLog``: checks the first and the last file of the newest commit that added files."""
        files, directory = self._files(), str(self._log().dataPath())
        newest_paths = newest_files(self._lines, int(self._snapshot().version()))
        absolute = self._jvm.org.apache.spark.sql.delta.util.DeltaFileOperations.absolutePath
        paths = [absolute(directory, name) for name in (*newest_paths[:1], *newest_paths[-1:])]
        return next((str(path) for path in paths if not files.exists(path)), None)

    def other_table(self) -> str | None:
        return self._directory().other_table()

    def _directory(self) -> DeltaDirectory:
        """Return the table's directory. The Iceberg metadata that Delta writes itself (UniForm) are the table's own."""
        is_uniform = self.exists() and "iceberg" in self.configuration().get(_UNIFORM, "")
        return DeltaDirectory(self._jvm, self._files(), self._location.directory(), self.local_path(), is_uniform)

    def create(self, schema: StructType, table_spec: TableSpec, properties: Mapping[str, str]) -> None:
        self._directory().check_new(self._location.table)
        table_properties = dict(properties)
        if table_properties.get(MAPPING_MODE, "none") == "none":  # else Delta chooses what files call columns
            table_properties[COLUMNS_PROPERTY] = json.dumps(physical_columns(schema))
        if table_spec.stats:
            table_properties["delta.dataSkippingStatsColumns"] = ",".join(table_spec.stats)
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
            if not self._appears(_MAKING_S if _NOT_EMPTY in str(error) else 0.0):  # not because another was faster
                raise
            return
        # IF NOT EXISTS takes each place that is not empty for a table, and then does nothing.
        if not self._appears(_MAKING_S):
            raise StoreError(f"{self._location.table}: is not empty, and no table: empty it, or give another --table")

    def _appears(self, seconds: float) -> bool:
        """Return whether there is the table, or will be in so many seconds: another export may be making it."""
        end = time.monotonic() + seconds
        while not self.exists():
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_S)
        return True

    def add_columns(self, schema: StructType) -> None:
        columns = ", ".join(missing(self.schema(), schema))
        exported = self.configuration().get(COLUMNS_PROPERTY)
        with commit_hook(self._spark, self.commit_guard):
            self._spark.sql(f"ALTER TABLE {self._location.sql} ADD COLUMNS ({columns})")
        if exported is not None:
            value = text(json.dumps({**json.loads(exported), **physical_columns(self.schema())}))
            with commit_hook(self._spark, self.commit_guard):
                self._spark.sql(f"ALTER TABLE {self._location.sql} SET TBLPROPERTIES ('{COLUMNS_PROPERTY}' = {value})")

    def layout(self, table_spec: TableSpec, codec: str) -> Layout | None:
        """Return how tasks write files; None if the table, or its file system, needs Spark's writer."""
        if table_spec.clusters or not self.is_plain():
            return None
        path, connect = self.local_path(), None
        if path is None:
            connect = s3a.connection(self._files())
            if connect is None:
                return None
            path = str(self._log().dataPath().toString()).rstrip("/")
        return Layout(path, DeltaFiles(), table_spec.partitions, table_spec.stats, codec, connect=connect)

    def rows(self, version: int, columns: Sequence[str]) -> DataFrame:
        frame = self._spark.read.format("delta").option("versionAsOf", version).load(self._location.directory())
        return frame.select(*map(column, columns))

    def local_path(self) -> str | None:
        """Return the table's directory in this machine's file system; None if Hadoop has it in another one."""
        path = self._jvm.org.apache.hadoop.fs.Path(self._location.directory())
        files = path.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf())
        return str(path.toUri().getPath()) if files.getUri().getScheme() == "file" else None

    def _files(self) -> Any:
        """Return Hadoop's file system of the table."""
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
        sessions = self._jvm.org.apache.spark.sql.SparkSession
        sessions.setActiveSession(self._spark._jsparkSession)  # of this JVM thread
        self._snapshot()
        return DeltaTransaction(self._jvm, self._log().startTransaction(), self)

    def delete_older(self, time_column: str, days: int) -> None:
        with commit_hook(self._spark, self.commit_guard):
            self._location.open().delete(column(time_column) < F.current_timestamp() - F.make_dt_interval(F.lit(days)))
        self.fsync()

    def compact(self, time_column: str) -> None:
        """See ``TableLog``; a table that has clustering columns is clustered."""
        del time_column  # Delta has an order of its own
        with commit_hook(self._spark, self.commit_guard):
            self._location.open().optimize().executeCompaction()
        self.fsync()  # before files that no version has any more are deleted

    def vacuum(self, hours: int) -> None:
        self._directory().check_vacuum(self._location.table)
        with commit_hook(self._spark, self.commit_guard):  # its history has the begin and the end of it
            self._location.open().vacuum(hours)

    @contextmanager
    def commit_guard(self) -> Iterator[None]:
        """Sync the data files to disk, then hold the commit lock, for the duration of a commit."""
        self.fsync()
        path = self.local_path()
        with nullcontext() if path is None else commit_lock(Path(path)):
            yield

    def fsync(self) -> None:
        path = self.local_path()
        if path is not None and Path(path).is_dir():
            sync_file_system(Path(path))

    def _log(self) -> Any:
        if not self._torn_commits_checked:
            path = self.local_path()
            if path is not None:
                quarantine_torn_commits(Path(path))
            self._torn_commits_checked = True
        return self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
            self._spark._jsparkSession, self._location.directory()
        )

    def _snapshot(self) -> Any:
        # Delta has no Python call for transaction identifiers; its log is the only place that has them.
        nothing = self._jvm.scala.Option.empty()
        return self._log().update(False, nothing, nothing)


class DeltaTransaction:
    """Delta transaction that watches transaction versions, adds rows and sets versions atomically.

    The commit fails if another writer has set one of the versions watched.
    """

    def __init__(self, jvm: Any, transaction: Any, log: DeltaTableLog) -> None:
        self._jvm = jvm
        self._transaction = transaction
        self._table = log

    @property
    def snapshot(self) -> DeltaSnapshot:
        return DeltaSnapshot(self._transaction.snapshot(), self._table.commit)

    def watch(self, app_id: str) -> None:
        self._transaction.txnVersion(app_id)

    def append(self, frame: DataFrame, versions: Callable[[], Mapping[str, int]], metadata: str | None) -> CommitResult:
        """Write the rows; then commit them with ``versions``, by application id, and ``metadata`` as user metadata.

        Raises:
            one of CONFLICTS: another writer has committed meanwhile; the files written belong to no version.
        """
        table = self._table
        rows = with_partition_checks(frame, table.partition_columns(), table.configuration(), table.local_path())
        actions = self._transaction.writeFiles(rows._jdf)
        added = [actions.apply(at) for at in range(actions.size())]
        self.commit(actions, versions(), metadata)
        return CommitResult(sum(int(file.numLogicalRecords().get()) for file in added), len(added), committed=True)

    def append_files(
        self, files: Sequence[str], metrics: Mapping[str, int], versions: Mapping[str, int], metadata: str | None
    ) -> None:
        from_json = getattr(getattr(self._jvm.org.apache.spark.sql.delta.actions, "Action$"), "MODULE$").fromJson
        actions = self._jvm.java.util.ArrayList()
        for file in files:
            actions.append(from_json(file))
        session = self._transaction.spark()
        sql_metrics = self._jvm.java.util.HashMap()
        for name, value in metrics.items():
            metric = self._jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric(
                session.sparkContext(), name
            )
            metric.set(value)
            sql_metrics[name] = metric
        self._transaction.registerSQLMetrics(session, self._jvm.PythonUtils.toScalaMap(sql_metrics))
        self.commit(self._jvm.PythonUtils.toSeq(actions), versions, metadata)

    def commit(self, actions: Any, versions: Mapping[str, int], metadata: str | None) -> None:
        """Commit actions, a Scala sequence, with ``versions`` and ``metadata``; raises as ``append``."""
        delta, scala = self._jvm.org.apache.spark.sql.delta, self._jvm.scala
        nothing = scala.Option.empty()
        for app_id, version in versions.items():  # in front of the files; see ``torn_commits``
            actions = actions.prepended(set_transaction(self._jvm, app_id, version))
        append = self._jvm.org.apache.spark.sql.SaveMode.Append
        write = getattr(delta, "DeltaOperations$Write")
        user_metadata = nothing if metadata is None else scala.Some(metadata)
        with self._table.commit_guard():
            self._transaction.commit(actions, write(append, nothing, nothing, user_metadata, *[nothing] * 5))
        self._table.fsync()


def _text_map(entries: Any) -> dict[str, str]:
    pairs = entries.toSeq()
    return {str(pairs.apply(at)._1()): str(pairs.apply(at)._2()) for at in range(pairs.size())}
