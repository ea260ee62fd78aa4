"""What a job needs of a Delta table beyond reading and writing rows.

Delta's writer can skip a transaction that was committed already; it cannot commit one only if nobody else has
committed since rows were chosen. Its own transactions can, and only Scala has them: this module calls those.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

_PLAIN_VERSIONS = {(1, 1), (1, 2), (1, 7)}  # of readers and writers; 7 names its features
_PLAIN_FEATURES = frozenset({"appendOnly", "invariants"})
# What columns may ask of a writer: no nulls, a length, a condition, a value that is made of others'.
_ASKED = ('"nullable":false', "__CHAR_VARCHAR_TYPE_STRING", "delta.invariants", "delta.generationExpression")
_AUTO_COMPACT = "spark.databricks.delta.autoCompact.enabled"

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


@dataclass(frozen=True, slots=True)
class Appended:
    """What a transaction has added.

    Attributes:
        rows: of the table.
        files: of the table.
        committed: False where there was nothing to do.
    """

    rows: int = 0
    files: int = 0
    committed: bool = False


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
        return _text_map(self._snapshot().metadata().configuration())

    def schema(self) -> StructType:
        """The table's columns."""
        return StructType.fromJson(json.loads(self._snapshot().metadata().schemaString()))

    def partition_columns(self) -> list[str]:
        """Names of the columns that the table is partitioned by."""
        names = self._snapshot().metadata().partitionColumns()
        return [str(names.apply(at)) for at in range(names.size())]

    def is_plain(self) -> bool:
        """Whether a file of rows is all that the table asks of a writer: no checks, no columns by other names."""
        snapshot = self._snapshot()
        protocol = json.loads(snapshot.protocol().json())["protocol"]
        features = set(protocol.get("readerFeatures", [])) | set(protocol.get("writerFeatures", []))
        versions = protocol["minReaderVersion"], protocol["minWriterVersion"]
        known = versions in _PLAIN_VERSIONS and features <= _PLAIN_FEATURES
        columns = str(snapshot.metadata().schemaString())
        return known and not any(mark in columns for mark in _ASKED) and not self._is_compacted()

    def _is_compacted(self) -> bool:
        """Whether Delta's own writer would make few files of many after its commits."""
        asked = [value for name, value in self.configuration().items() if name.startswith("delta.autoOptimize")]
        return any(value != "false" for value in [*asked, self._spark.conf.get(_AUTO_COMPACT, "false")])

    def local_path(self) -> str | None:
        """The table's directory in this machine's file system; None if Hadoop has it in another one."""
        log = self._log()
        path = log.dataPath()
        files = path.getFileSystem(log.newDeltaHadoopConf())
        return str(path.toUri().getPath()) if files.getUri().getScheme() == "file" else None

    def begin_append(self) -> "AppendTransaction":
        """A transaction on the newest version; commit it, or let it go."""
        jvm: Any = self._spark._jvm
        jvm.org.apache.spark.sql.SparkSession.setActiveSession(self._spark._jsparkSession)  # of this JVM thread
        self._snapshot()
        return AppendTransaction(jvm, self._log().startTransaction())

    def _log(self) -> Any:
        jvm: Any = self._spark._jvm
        return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self._path)

    def _snapshot(self) -> Any:
        # Delta has no Python call for transaction identifiers; its log is the only place that has them.
        jvm: Any = self._spark._jvm
        nothing = jvm.scala.Option.empty()
        return self._log().update(False, nothing, nothing)


class AppendTransaction:
    """Reads transaction identifiers, appends rows and sets identifiers, all or nothing.

    It commits only if none of the identifiers that were read has been set by another since.
    """

    def __init__(self, jvm: Any, transaction: Any) -> None:
        self._jvm = jvm
        self._transaction = transaction

    @property
    def table_version(self) -> int:
        """The table's version that the transaction sees."""
        return int(self._transaction.readVersion())

    def transaction_version(self, app_id: str) -> int:
        """The last version that was committed for ``app_id``, -1 if none was; from now on it must stay so."""
        return int(self._transaction.txnVersion(app_id))

    def app_ids(self) -> list[str]:
        """All that have a transaction version in the table."""
        keys = self._transaction.snapshot().transactions().keysIterator()
        found = []
        while keys.hasNext():
            found.append(str(keys.next()))
        return found

    def append(self, frame: DataFrame, versions: Mapping[str, int]) -> Appended:
        """Write the rows and commit them with ``versions``, by application id.

        Raises:
            one of CONFLICTS: another has committed meanwhile; the files that were written belong to no version.
        """
        actions = self._transaction.writeFiles(frame._jdf)
        added = [actions.apply(at) for at in range(actions.size())]
        self.commit(actions, versions)
        return Appended(sum(int(file.numLogicalRecords().get()) for file in added), len(added), committed=True)

    def append_files(self, files: Sequence[str], told: Mapping[str, int], versions: Mapping[str, int]) -> None:
        """Commit files that are there already.

        Args:
            files: each an action of the table's log, as JSON.
            told: figures for the table's history, by Delta's names.
            versions: by application id.

        Raises:
            one of CONFLICTS: see ``append``.
        """
        from_json = getattr(getattr(self._jvm.org.apache.spark.sql.delta.actions, "Action$"), "MODULE$").fromJson
        actions = self._jvm.java.util.ArrayList()
        for file in files:
            actions.append(from_json(file))
        session = self._transaction.spark()
        metrics = self._jvm.java.util.HashMap()
        for name, value in told.items():
            metric = self._jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric(
                session.sparkContext(), name
            )
            metric.set(value)
            metrics[name] = metric
        self._transaction.registerSQLMetrics(session, self._jvm.PythonUtils.toScalaMap(metrics))
        self.commit(self._jvm.PythonUtils.toSeq(actions), versions)

    def commit(self, actions: Any, versions: Mapping[str, int]) -> None:
        """Commit actions, a Scala sequence, with ``versions``; raises as ``append``."""
        delta, nothing = self._jvm.org.apache.spark.sql.delta, self._jvm.scala.Option.empty()
        for app_id, version in versions.items():
            actions = actions.appended(delta.actions.SetTransaction(app_id, version, nothing))
        append = self._jvm.org.apache.spark.sql.SaveMode.Append
        write = getattr(delta, "DeltaOperations$Write")
        self._transaction.commit(actions, write(append, *[nothing] * 8))


def _text_map(entries: Any) -> dict[str, str]:
    pairs = entries.toSeq()
    return {str(pairs.apply(at)._1()): str(pairs.apply(at)._2()) for at in range(pairs.size())}
