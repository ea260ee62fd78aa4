"""Dead letters of an export: messages that its table cannot have, with the reason, each once."""

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from rmq_formats.arrow.schema import BROKER_NAME, CLUSTER
from rmq_formats.spark.options import schemas
from rmq_lakehouse.comments import with_comments
from rmq_lakehouse.exactly_once import commit_with_retry
from rmq_lakehouse.selection import ExportSelection
from rmq_lakehouse.spark_table import SparkExactlyOnceTable
from rmq_lakehouse.table_log import CommitAttempt, CommitResult, SparkTableLog, StartAttempt
from rmq_lakehouse.undecoded import DEAD_LETTER_TABLE, MESSAGE_COLUMNS, REASON


class DeadLetters:
    """Table of dead letters, which several exports of a run may have in common."""

    def __init__(self, path: str, log: SparkTableLog, selection: ExportSelection) -> None:
        self.path = path
        message = [schemas.COMMITLOG[name] for name in MESSAGE_COLUMNS]
        broker_names = () if selection.broker is None else (CLUSTER, BROKER_NAME)
        brokers = [schemas.with_brokers(schemas.COMMITLOG)[name] for name in broker_names]
        self.columns = StructType([*message, StructField(REASON, StringType()), *brokers])
        self.table = SparkExactlyOnceTable(path, log, selection, DEAD_LETTER_TABLE)

    def check(self) -> None:
        """Refuse a table of another store, or of other columns. Raises StoreError."""
        self.table.check(self.columns)

    def prepare(self) -> None:
        self.table.prepare(with_comments(self.columns))

    def commit(
        self, messages: DataFrame, start: StartAttempt, belongs_to_attempt: Callable[[CommitAttempt], Column]
    ) -> int:
        """Commit the pending messages; return the number of files.

        Args:
            messages: all dead letters, with a reason each.
            belongs_to_attempt: returns the condition that a message is pending.
        """
        dead = messages.select(*self.columns.fieldNames())

        def write(attempts: Mapping[int, CommitAttempt]) -> CommitResult:
            return self.table.append(attempts[0], dead.where(belongs_to_attempt(attempts[0])))

        return commit_with_retry(self.path, self.table.log, [start], write).files
