"""Writers of ``rmq_commitlog``, ``rmq_consumequeue`` and ``rmq_index``, with their options; see ``rmq_offline.write``.

``commitlogFileBytes``, ``consumequeueFileBytes``, ``consumequeueExtFileBytes``, ``indexSlots``, ``indexEntries``
and ``delayLevels`` are the broker's settings, as in ``jobs/rebuild.py``.

- ``dispatch``: build ConsumeQueue and Index beside the log.
- ``crcProperty``: ``asgiven`` (records that had a ``__CRC32#`` get a new one), ``always`` or ``never``.
- ``indexTags``: whether ``dispatch`` indexes TAGS, as brokers from 5.4 on do: ``yes``, ``no`` (of a new store) or
  ``auto`` (what the store's Index has).
- ``keepOffsets``: records keep the ``physical_offset`` and ``queue_offset`` of their rows.
- ``leftover``: what is done about an interrupted write that somebody else may have left: ``refuse``, ``resume`` or
  ``start-anew``.

Kernels are imported where they are first needed, see ``commitlog.batch``.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.codecs.index import parse_index_tags
from rmq_formats.codecs.layout import CONSUMEQUEUE_FILE_BYTES, DEFAULT_DELAY_LEVELS, INDEX_ENTRIES, INDEX_SLOTS
from rmq_formats.errors import OptionError
from rmq_formats.spark.options import schemas, values
from rmq_formats.spark.options.read import OptionParser
from rmq_offline.tasks.origin import InterruptedRunPolicy

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_offline.rebuild.options import RebuildOptions
    from rmq_offline.write.commitlog import WriteOptions
    from rmq_offline.write.derived import DerivedWrite

_CONSUMEQUEUE: Final = ("consumequeueFileBytes", "consumequeueExtFileBytes", "delayLevels")
_INDEX: Final = ("indexSlots", "indexEntries")
_INDEX_TAGS: Final = ("auto", "yes", "no")
COMMITLOG_OPTIONS: Final = (
    "path",
    "commitlogFileBytes",
    "keepOffsets",
    "crcProperty",
    "dispatch",
    *_CONSUMEQUEUE,
    *_INDEX,
    "indexTags",
    "leftover",
)
_CRC_WAYS: Final = ("asgiven", "always", "never")  # indexed by the kernel's CRC_AS_GIVEN and so on
_KEYS: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("key", StringType()),
        schemas.INDEX["physical_offset"],
        schemas.INDEX["store_timestamp"],
    ]
)


class TaskMessage(WriterCommitMessage):
    """Commit message of a task: a ``WrittenTask``, or the paths of the files that the task wrote."""

    def __init__(self, written: Any) -> None:
        self.written = written


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
        return TaskMessage(self._write.job.write_task(iterator, self._write.encoding))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        from rmq_offline.tasks.runner import ProcessRunner  # noqa: PLC0415
        from rmq_offline.write.commitlog import commit_write  # noqa: PLC0415

        tasks = [message.written for message in messages if isinstance(message, TaskMessage)]
        commit_write(self._write, tasks, ProcessRunner())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 # all of it goes
        self._write.job.abort()


class DerivedWriter(DataSourceArrowWriter):
    """Begins the write when it is created, in the driver; the commit runs there too, in a process of its own."""

    def __init__(self, write: "DerivedWrite") -> None:
        self._write = write

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        from rmq_offline.write.derived import write_keys, write_units  # noqa: PLC0415

        task = write_units if self._write.options.consumequeue else write_keys
        return TaskMessage(task(iterator, self._write))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        from rmq_offline.write.derived import commit_derived  # noqa: PLC0415

        tasks = [message.written for message in messages if isinstance(message, TaskMessage)]
        commit_derived(self._write, [path for paths in tasks for path in paths])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 # all of it goes
        self._write.job.abort()


_DERIVED: Final = {"consumequeue": (("consumequeueFileBytes",), schemas.CONSUMEQUEUE), "index": (_INDEX, _KEYS)}


def derived_writer(what: str, options: Mapping[str, str], schema: StructType, overwrite: bool) -> DerivedWriter:
    """Create a writer of ``consumequeue`` or ``index``. Raises RmqError."""
    from rmq_offline.write.derived import begin_derived  # noqa: PLC0415

    source = f"rmq_{what}"
    size_options, columns = _DERIVED[what]
    parser = OptionParser(f"{source} as a sink", options, ("path", *size_options, "leftover"))
    root = store_root(parser)
    sizes = rebuild_options(parser, what, "")
    leftover = leftover_option(parser)
    check_columns(source, schema, columns, tuple(name for name in columns.fieldNames() if name != "batch_size"))
    return DerivedWriter(begin_derived(root, sizes, overwrite=overwrite, leftover=leftover))


def commitlog_write_options(options: Mapping[str, str], overwrite: bool) -> "WriteOptions":
    """Parse the options of a write with ``rmq_commitlog``. Raises OptionError."""
    from rmq_offline.write.commitlog import WriteOptions  # noqa: PLC0415

    parser = OptionParser("rmq_commitlog as a sink", options, COMMITLOG_OPTIONS)
    root = store_root(parser)
    dispatch = rebuild_options(parser, "all", "" if overwrite else root)
    return WriteOptions(
        root,
        overwrite,
        parser.get("commitlogFileBytes", values.size),
        parser.get_or("crcProperty", _crc_way, 0),
        parser.get_or("keepOffsets", values.boolean, False),
        dispatch if parser.get_or("dispatch", values.boolean, False) else None,
        leftover_option(parser),
    )


def leftover_option(parser: OptionParser) -> InterruptedRunPolicy:
    """Parse the option ``leftover``. Raises OptionError."""
    return parser.get_or("leftover", _leftover, InterruptedRunPolicy.REFUSE)


def _leftover(text: str) -> InterruptedRunPolicy:
    try:
        return InterruptedRunPolicy(text)
    except ValueError:
        raise ValueError(f"give {', '.join(InterruptedRunPolicy)}") from None


def store_root(parser: OptionParser) -> str:
    """Return the root of the store that is written. Raises OptionError."""
    root = parser.get("path", values.path)
    if root is None:
        raise OptionError("option path is missing: give the store's root to save()")
    return root


def rebuild_options(parser: OptionParser, what: str, store: str) -> "RebuildOptions":
    """Parse the rebuild options of a write, with the ConsumeQueueExt size of ``store``. Raises OptionError."""
    from rmq_offline.rebuild.options import options_from_arguments  # noqa: PLC0415
    from rmq_offline.verify.phases.plan import VerifyOptions  # noqa: PLC0415

    sizes = VerifyOptions(
        consumequeue_file_bytes=parser.get_or("consumequeueFileBytes", values.size, CONSUMEQUEUE_FILE_BYTES),
        consumequeue_ext_file_bytes=parser.get_or("consumequeueExtFileBytes", values.natural, None if store else 0),
        index_slots=parser.get_or("indexSlots", values.positive, INDEX_SLOTS),
        index_entries=parser.get_or("indexEntries", values.positive, INDEX_ENTRIES),
        delay_levels_ms=parser.get_or("delayLevels", delay_levels_ms, delay_levels_ms(DEFAULT_DELAY_LEVELS)),
        tags_from=parse_index_tags(parser.get_or("indexTags", _index_tags, "auto" if store else "no")),
    )
    return options_from_arguments(what, sizes, store)


def check_columns(source: str, schema: StructType, full: StructType, needed: tuple[str, ...]) -> None:
    """Refuse a schema that lacks a column, has an unknown one, or one of another type. Raises OptionError."""
    names = schema.fieldNames()
    for name in needed:
        if name not in names:
            raise OptionError(f"{source} needs the column {name!r}; the rows have {', '.join(names)}")
    column_names = full.fieldNames()
    for field in schema:
        if field.name not in column_names:
            raise OptionError(f"{source} has no column {field.name!r}; there are {', '.join(column_names)}")
        if names.count(field.name) > 1:
            raise OptionError(f"column {field.name!r} comes twice")
        if not _fits(field.dataType, full[field.name].dataType):
            expected_type = full[field.name].dataType.simpleString()
            raise OptionError(f"column {field.name!r} is {field.dataType.simpleString()}, not {expected_type}")


def _fits(column_type: DataType, expected_type: DataType) -> bool:
    if isinstance(expected_type, TimestampType):
        return isinstance(column_type, TimestampType | TimestampNTZType)
    if isinstance(column_type, ArrayType) and isinstance(expected_type, ArrayType):
        return column_type.elementType == expected_type.elementType
    if isinstance(column_type, MapType) and isinstance(expected_type, MapType):
        return column_type.keyType == expected_type.keyType and column_type.valueType == expected_type.valueType
    return column_type == expected_type


def _index_tags(text: str) -> str:
    if text not in _INDEX_TAGS:
        raise ValueError(f"expected one of {', '.join(_INDEX_TAGS)}")
    return text


def _crc_way(text: str) -> int:
    if text.lower() not in _CRC_WAYS:
        raise ValueError(f"expected one of {', '.join(_CRC_WAYS)}")
    return _CRC_WAYS.index(text.lower())
