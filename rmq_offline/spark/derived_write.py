"""Writers of ``rmq_consumequeue`` and ``rmq_index``; see ``rmq_offline.write.derived``."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

from rmq_formats.spark.options import schemas
from rmq_offline.spark.write_options import check_columns, consumequeue_write_options, index_write_options

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_offline.write.derived import DerivedWrite

# Kernels are imported where they are first needed, see ``commitlog.batch``.

_KEYS = StructType(
    [
        StructField("topic", StringType()),
        StructField("key", StringType()),
        schemas.INDEX["physical_offset"],
        schemas.INDEX["store_timestamp"],
    ]
)


class PiecesMessage(WriterCommitMessage):
    """Commit message of a task: what it wrote."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces


class DerivedWriter(DataSourceArrowWriter):
    """Begins the write when it is created, in the driver; the commit runs there too, in a process of its own."""

    def __init__(self, write: "DerivedWrite") -> None:
        self._write = write

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        """Spill the rows of one task beside the store."""
        from rmq_offline.write.derived import write_keys, write_units  # noqa: PLC0415

        task = write_units if self._write.options.consumequeue else write_keys
        return PiecesMessage(task(iterator, self._write))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit: build the files, and publish them."""
        from rmq_offline.write.derived import commit_derived  # noqa: PLC0415

        task_pieces = [message.pieces for message in messages if isinstance(message, PiecesMessage)]
        commit_derived(self._write, [piece for pieces in task_pieces for piece in pieces])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 # all of it goes
        """Abort: remove what the tasks wrote."""
        self._write.job.abort()


def consumequeue_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DerivedWriter:
    """Create a writer of units. Raises RmqError for what cannot be written."""
    from rmq_offline.write.derived import begin_derived  # noqa: PLC0415

    root, sizes, leftover = consumequeue_write_options(options)
    needed = [name for name in schemas.CONSUMEQUEUE.fieldNames() if name != "batch_size"]
    check_columns("rmq_consumequeue", schema, schemas.CONSUMEQUEUE, tuple(needed))
    return DerivedWriter(begin_derived(root, sizes, overwrite=overwrite, leftover=leftover))


def index_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DerivedWriter:
    """Create a writer of keys. Raises RmqError for what cannot be written."""
    from rmq_offline.write.derived import begin_derived  # noqa: PLC0415

    root, sizes, leftover = index_write_options(options)
    check_columns("rmq_index", schema, _KEYS, tuple(_KEYS.fieldNames()))
    return DerivedWriter(begin_derived(root, sizes, overwrite=overwrite, leftover=leftover))
