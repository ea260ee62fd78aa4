"""Writing with ``rmq_commitlog``: rows as records of a store; see ``rmq_formats.offline.write_log``."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmq_formats.errors import OptionError
from rmq_formats.spark import schemas
from rmq_formats.spark.write_options import check_columns, commitlog_write_options

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_formats.offline.write_piece import WrittenTask

# Kernels are imported where they are first needed, see ``commitlog``.


class TaskMessage(WriterCommitMessage):
    """What one task wrote."""

    def __init__(self, task: "WrittenTask") -> None:
        self.task = task


class CommitLogWriter(DataSourceArrowWriter):
    """Begins when it is made, on the driver's side; the commit runs there too, in a process of its own."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        from rmq_formats.offline.write_log import begin_write  # noqa: PLC0415

        given = commitlog_write_options(options, overwrite)
        check_columns("rmq_commitlog", schema, schemas.COMMITLOG, ("topic", "body"))
        lacking = [name for name in ("physical_offset", "queue_offset") if name not in schema.fieldNames()]
        if given.keep_offsets and lacking:
            raise OptionError(f"option keepOffsets needs the column {lacking[0]}")
        self._write = begin_write(given)

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        """Encode the rows of one task."""
        from rmq_formats.offline.write_piece import write_pieces  # noqa: PLC0415

        return TaskMessage(write_pieces(iterator, self._write.job.pieces, self._write.encoding))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give all records their places, and publish."""
        from rmq_formats.offline.runner import ProcessRunner  # noqa: PLC0415
        from rmq_formats.offline.write_log import commit_write  # noqa: PLC0415

        tasks = [message.task for message in messages if isinstance(message, TaskMessage)]
        commit_write(self._write, tasks, ProcessRunner())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 # all of it goes
        """Remove what the tasks wrote."""
        self._write.job.abort()
