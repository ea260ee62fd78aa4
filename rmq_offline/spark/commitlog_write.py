"""Writer of ``rmq_commitlog``: rows become records of a store; see ``rmq_offline.write.commitlog``."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmq_formats.errors import OptionError
from rmq_formats.spark.options import schemas
from rmq_offline.spark.write_options import check_columns, commitlog_write_options

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_offline.write.piece import WrittenTask

# Kernels are imported where they are first needed, see ``commitlog.batch``.


class TaskMessage(WriterCommitMessage):
    """Commit message of a task: what it wrote."""

    def __init__(self, task: "WrittenTask") -> None:
        self.task = task


class CommitLogWriter(DataSourceArrowWriter):
    """Begins the write when it is created, in the driver; the commit runs there too, in a process of its own."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        from rmq_offline.write.commitlog import begin_write  # noqa: PLC0415

        write_options = commitlog_write_options(options, overwrite)
        check_columns("rmq_commitlog", schema, schemas.COMMITLOG, ("topic", "body"))
        lacking = [name for name in ("physical_offset", "queue_offset") if name not in schema.fieldNames()]
        if write_options.keep_offsets and lacking:
            raise OptionError(f"option keepOffsets needs the column {lacking[0]}")
        self._write = begin_write(write_options)

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        """Encode the rows of one task."""
        return TaskMessage(self._write.job.write_task(iterator, self._write.encoding))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Assign offsets to all records and publish the store."""
        from rmq_offline.tasks.runner import ProcessRunner  # noqa: PLC0415
        from rmq_offline.write.commitlog import commit_write  # noqa: PLC0415

        tasks = [message.task for message in messages if isinstance(message, TaskMessage)]
        commit_write(self._write, tasks, ProcessRunner())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 # all of it goes
        """Abort: remove what the tasks wrote."""
        self._write.job.abort()
