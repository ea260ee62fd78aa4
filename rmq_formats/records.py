"""The records of a store as an Arrow dataset, which engines scan with their own projections and filters.

DuckDB, Polars and DataFusion pass the columns and the filter of a query to the ``scanner()`` of a
``pyarrow.dataset.Dataset``; from a mere Arrow stream they read all columns.
"""

import atexit
import importlib
import re
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from rmq_formats.arrow.conditions import conditions
from rmq_formats.arrow.schema import schema_of
from rmq_formats.errors import OptionError
from rmq_formats.read.filter_pushdown import push_down_conditions
from rmq_formats.read.plan import ReadPlan, plan_read
from rmq_formats.read.query import AccessPath, Query, Queue, QueueBounds, ReadOptions
from rmq_formats.read.task import read_tasks
from rmq_formats.storage.queue_logs import LogKind
from rmq_formats.storage.segments import open_storage
from rmq_formats.storage.store_files import StoreFiles

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars

SPLIT_BYTES: Final = 16 << 20  # of the log, that a thread reads ahead
BATCH_READAHEAD: Final = 4  # of Arrow's scanner, in batches of some 8 MiB each at most
_MAX_WAIT_S: Final = 2.0  # at the interpreter's end; a scan that a program references is never released
_CHEAPEST: Final = "size"  # column that is read to count rows
_WORD: Final = re.compile(r"\w+")
_BY_NUMBER: Final = "FieldPath"  # in texts of expressions that name a column by its number
_OF_FILES: Final = {"fragment_readahead", "fragment_scan_options", "cache_metadata"}  # options without effect here

Columns = Sequence[str] | Mapping[str, pc.Expression]


class Records(ds.UnionDataset):  # type: ignore[misc] # pyarrow ships no types
    """Records of a store: an Arrow dataset and an Arrow stream, and an iterable of their batches.

    Each scan reads the messages that are written when the scan begins, in log order, in batches of some 8 MiB at most,
    by as many threads as Arrow has (``pyarrow.set_cpu_count``), and only the columns of the projection and the filter.
    In the mode PERMISSIVE the row of a damaged record has a ``record_error``. Checksums are verified only if that
    column, or the mode, shows a failure.
    """

    def __init__(self, root: str, options: ReadOptions, condition: pc.Expression | None = None) -> None:
        """Describe records.

        Args:
            root: of the store, a path or URI.
            options: columns, conditions and damage mode.
            condition: an expression over the columns, which holds for all rows.

        Raises:
            OptionError: an unknown column.
            StoreError: the URI cannot be opened.
        """
        self._storage, self.path = open_storage(root)
        self._options = options
        self._condition = condition
        schema = schema_of(options.columns)
        super().__init__(schema, [_unreadable(schema)])

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Records, (self.path, self._options, self._condition)

    def __repr__(self) -> str:
        return f"Records({self.path!r}, {self._options!r})"

    @property
    def _files(self) -> StoreFiles:
        """The current files of the store: a broker may have written since the last call."""
        return StoreFiles(self._storage, self.path)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Iterate over the batches of a scan; without rows, a single empty batch."""
        rows = 0
        for batch in self._batches(self._reading(None, self._condition)):
            kept = [batch]
            if self._condition is not None:
                kept = pa.Table.from_batches([batch]).filter(self._condition).to_batches()
            rows += sum(part.num_rows for part in kept)
            yield from kept
        if not rows:
            yield pa.RecordBatch.from_pylist([], self.schema)

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export a scan of all columns as an Arrow stream of the Arrow PyCapsule interface.

        A ``scanner()`` reads in a thread of Arrow, which would wait for ever for the interpreter's lock: an engine such
        as DataFusion retains the lock while it waits for a batch.
        """
        return pa.RecordBatchReader.from_batches(self.schema, iter(self)).__arrow_c_stream__(requested_schema)

    def scanner(
        self,
        columns: Columns | None = None,
        filter: pc.Expression | None = None,  # pyarrow's name
        *,
        batch_readahead: int = BATCH_READAHEAD,
        use_threads: bool = True,
        **options: Any,
    ) -> ds.Scanner:
        """Make a scan, which can be run once.

        Args:
            columns: names, or expressions by name; None is all.
            filter: an expression over the columns that selects rows. Conditions on topics, queues, offsets, times and
                ids narrow the read.
            batch_readahead: batches that are read ahead.
            use_threads: read with as many threads as Arrow has; else with one.
            options: others of ``pyarrow.dataset.Scanner.from_batches``.
        """
        condition = self._both(filter)
        if not isinstance(columns, Mapping):
            columns = self._names(columns)
        for name in _OF_FILES & set(options):
            del options[name]
        reading = self._reading(columns, condition)
        batches = _Scan(self._batches(reading, use_threads=use_threads))
        reader = pa.RecordBatchReader.from_batches(schema_of(reading.columns), batches)
        projection = dict(columns) if isinstance(columns, Mapping) else columns
        return ds.Scanner.from_batches(
            reader,
            columns=projection,
            filter=condition,
            batch_readahead=batch_readahead,
            use_threads=use_threads,
            **options,
        )

    def plan(self, columns: Columns | None = None, filter: pc.Expression | None = None) -> ReadPlan:
        """Plan a scan without running it: the access path, and the reason for the choice.

        Raises:
            StoreNotFoundError: no such store, or no CommitLog.
        """
        return self._plan(self._reading(columns, self._both(filter)))

    def filter(self, expression: pc.Expression) -> "Records":
        """Return the records for which an expression is true, too."""
        return Records(self.path, self._options, self._both(expression))

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """Count the rows for which an expression is true, or all rows; ``options`` as of ``scanner``."""
        return int(self.scanner([], filter, **options).count_rows())

    def __len__(self) -> int:
        """Count the rows; see ``count_rows``."""
        return self.count_rows()

    def __bool__(self) -> bool:
        """Return True always: finding out whether rows exist would scan the log."""
        return True

    def to_pandas(self, columns: Columns | None = None, filter: pc.Expression | None = None) -> "pandas.DataFrame":
        """Read rows into a DataFrame of pandas; see ``scanner``.

        Raises:
            OptionError: pandas is not installed.
        """
        _import("pandas")
        frame: pandas.DataFrame = self.to_table(columns, filter=filter).to_pandas()
        return frame

    def to_polars(self, columns: Columns | None = None, filter: pc.Expression | None = None) -> "polars.DataFrame":
        """Read rows into a DataFrame of Polars; see ``scanner``.

        Raises:
            OptionError: Polars is not installed.
        """
        frame: polars.DataFrame = _import("polars").from_arrow(self.to_table(columns, filter=filter))
        return frame

    def sql(self, query: str) -> "duckdb.DuckDBPyRelation":
        """Prepare a SQL query of DuckDB, in which the records are the table ``messages``.

        DuckDB reads the columns and rows of the query when the result is fetched, shown or converted. Times without a
        zone, and days and hours of times, are UTC.

        Args:
            query: as ``select topic, count(*) from messages group by topic``.

        Raises:
            OptionError: DuckDB is not installed.
            duckdb.Error: the query is wrong.
            StoreNotFoundError: no such store, or no CommitLog.
        """
        self._plan(self._options)  # DuckDB would wrap the error and a traceback in its own error
        connection = _import("duckdb").connect()
        connection.execute("SET TimeZone = 'UTC'")  # DuckDB's default is the machine's zone
        connection.register("messages", self)
        relation: duckdb.DuckDBPyRelation = connection.sql(query)
        return relation

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator["Fragment"]:
        """Yield the only fragment: the threads of a scan share the work."""
        yield Fragment(self if filter is None else self.filter(filter))

    @property
    def partition_expression(self) -> pc.Expression:
        """The condition of each row: none."""
        return pc.scalar(True)

    def _both(self, expression: pc.Expression | None) -> pc.Expression | None:
        if self._condition is None or expression is None:
            return self._condition if expression is None else expression
        return self._condition & expression

    def _names(self, columns: Columns | None) -> list[str]:
        names = self._options.columns if columns is None else column_names(columns)
        return list(schema_of(names).names) if names else []

    def _reading(self, columns: Columns | None, condition: pc.Expression | None) -> ReadOptions:
        """Return the columns and the query of a scan's projection and condition."""
        if isinstance(columns, Mapping):
            needed = {word for value in columns.values() for word in _WORD.findall(str(value))}
        else:
            needed = set(self._names(columns))
        query = self._options.query
        if condition is not None:
            needed |= set(_WORD.findall(str(condition)))  # its columns, and perhaps others
            query = push_down_conditions(query, conditions(condition, self.schema), self._stands_at)
        if _BY_NUMBER in needed:
            needed = set(self._options.columns)
        columns_of_log = self._options.columns
        cheapest = _CHEAPEST if _CHEAPEST in columns_of_log else columns_of_log[0]
        names = tuple(name for name in columns_of_log if name in needed) or (cheapest,)
        return replace(self._options, columns=names, query=query)

    def _stands_at(self, queue: Queue, queue_offset: int) -> bool:
        """Return whether a message with a queue offset stands at that place of its queue; False without units."""
        logs = self._options.logs
        if logs.kind in {LogKind.TIERED, LogKind.COMPACTED}:
            return True  # there, places are the recorded queue offsets
        topic, queue_id = queue
        bounds = {queue: QueueBounds(first_offset=queue_offset, end_offset=queue_offset + 1)}
        query = Query(queues={topic: frozenset([queue_id])}, bounds=bounds)
        reading = ReadOptions(("queue_offset",), query, logs=logs)
        plan = self._plan(reading)
        if plan.access_path is not AccessPath.CONSUMEQUEUE:
            return False
        batches = read_tasks(self.path, plan.tasks, reading, 1)
        return any(queue_offset in batch.column(0).to_pylist() for batch in batches)

    def _plan(self, reading: ReadOptions) -> ReadPlan:
        return plan_read(self._files, reading.query, split_bytes=SPLIT_BYTES, logs=reading.logs)

    def _batches(self, reading: ReadOptions, *, use_threads: bool = True) -> Generator[pa.RecordBatch, None, None]:
        tasks = self._plan(reading).tasks
        yield from read_tasks(self.path, tasks, reading, pa.cpu_count() if use_threads else 1)


class _Scan:
    """The batches of a scan, for a thread of Arrow."""

    def __init__(self, batches: Generator[pa.RecordBatch, None, None]) -> None:
        self._batches = batches

    def __del__(self) -> None:
        self._batches.close()  # ends our threads before this scan leaves _SCANS

    def __iter__(self) -> "_Scan":
        return self

    def __next__(self) -> pa.RecordBatch:
        if _PROGRAM_ENDS.is_set():
            raise StopIteration
        _SCANS.add(self)
        return next(self._batches)


_SCANS: Final[WeakSet[_Scan]] = WeakSet()  # that have begun
_PROGRAM_ENDS: Final = threading.Event()


@atexit.register
def _end_scans() -> None:
    """End the scans of Arrow's threads: a thread that reads after the interpreter's end aborts the process."""
    _PROGRAM_ENDS.set()
    until_s = time.monotonic() + _MAX_WAIT_S
    while _SCANS and time.monotonic() < until_s:
        time.sleep(0.005)


def column_names(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the names of columns. Raises OptionError for a plain string: give a list."""
    if isinstance(columns, str):
        raise OptionError(f"columns {columns!r}: give a list of names")
    return tuple(columns)


def _import(engine: str) -> Any:
    try:
        return importlib.import_module(engine)
    except ImportError as error:
        raise OptionError(f"{engine}: is not installed. Run pip install {engine}") from error


class Fragment:
    """All records of a dataset as its only fragment, for engines that scan fragments, such as DataFusion."""

    def __init__(self, records: Records) -> None:
        self._records = records

    @property
    def physical_schema(self) -> pa.Schema:
        """The schema of the records."""
        return self._records.schema

    @property
    def partition_expression(self) -> pc.Expression:
        """The condition of each row: none."""
        return self._records.partition_expression

    def scanner(self, schema: pa.Schema | None = None, **options: Any) -> ds.Scanner:  # noqa: ARG002
        """Make a scan of the records; ``schema`` is ignored."""
        return self._records.scanner(**options)


def _unreadable(schema: pa.Schema) -> ds.Dataset:
    """Return a dataset whose scan raises an error with advice.

    Joins and other operations of pyarrow read a dataset's children without its ``scanner()``: without this child of
    ``Records`` they would read invalid memory.
    """
    kind = ds.IpcFileFormat()
    advice = "/pyarrow cannot do that with a store: it is read by its scanner() alone; take its to_table() first"
    return ds.FileSystemDataset([kind.make_fragment(advice, LocalFileSystem())], schema, kind)
