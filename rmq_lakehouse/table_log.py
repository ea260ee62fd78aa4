"""Port between exports and table formats: snapshots of a table, transactions, and attempts to commit.

Delta's and Iceberg's logs implement the port. ``exactly_once`` commits rows exactly once through it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from rmq_formats.errors import StoreError
from rmq_lakehouse.live.plan import Span
from rmq_lakehouse.parquet import Layout, WrittenFile
from rmq_lakehouse.progress import TableCommit

if TYPE_CHECKING:  # the port serves exports without Spark, too
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    from rmq_lakehouse.change_data import MergeRows

UNDECODED: Final = (":undecoded", ":undecoded-first", ":undecoded-end")
"""Suffixes of application ids: number of undecoded messages of a selection, and the physical offsets around them."""
PendingRange = tuple[int, int, tuple[object, ...]]
"""Identity of the rows of an attempt: physical offsets where the attempt begins and ends, or ranges of queues."""


class NeedsWriterError(Exception):
    """Tasks cannot write the rows of an attempt; ``files`` of dead letters were committed before."""

    def __init__(self, files: int = 0) -> None:
        super().__init__(files)
        self.files = files


@dataclass(frozen=True, slots=True)
class TableSpec:
    """Partitions, clustering and properties of a table when it is created.

    Attributes:
        clusters: columns that OPTIMIZE clusters the table by; a clustered table has no partitions.
        properties: table properties, beyond the owner's; an existing table must have these values.
        initial_properties: further properties of a new table; an existing table may have others.
        adopts: whether a table that no export made is accepted with its owner's columns, partitions and properties.
        stats: columns whose minimum and maximum in each file are in Delta's log.
    """

    partitions: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    stats: tuple[str, ...] = ()
    initial_properties: tuple[tuple[str, str], ...] = ()
    comment: str = ""
    adopts: bool = False


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Rows and files that a transaction has added; ``committed`` is False if nothing was pending."""

    rows: int = 0
    files: int = 0
    committed: bool = False


@dataclass(frozen=True, slots=True)
class RowRange:
    """Range of a column's values, inclusive, of times in ms, and values of other columns."""

    column: str
    first: int
    last: int | None = None
    is_time: bool = False
    texts: Mapping[str, str] = field(default_factory=dict)


NOT_A_TABLE: Final = "the directory is not empty and contains no table. Empty it, or give another --table"


class TableSnapshot(Protocol):
    """One version of a table."""

    @property
    def version(self) -> int:
        """Number that grows with each version; -1 if there is no table."""

    @property
    def transactions(self) -> Mapping[str, int]:
        """Last committed transaction version of each application id, without expired versions."""

    def expires_transactions(self) -> bool:
        """Return whether transaction versions expire."""

    def read_commit(self, version: int) -> TableCommit | None:
        """Read a commit that led to this version; None if it was cleaned up."""


class TableTransaction(Protocol):
    """Transaction that adds files and sets transaction versions atomically; it fails if another writer was faster."""

    @property
    def snapshot(self) -> TableSnapshot:
        """Table version that the transaction reads."""

    def watch(self, app_id: str) -> None:
        """Fail the commit if another writer changes the version of ``app_id`` meanwhile."""

    def commit(self, adds: Sequence[WrittenFile] | None, versions: Mapping[str, int], metadata: str | None) -> None:
        """Commit data files, transaction versions and metadata atomically; None of files only sets versions.

        Raises:
            one of the log's ``conflicts``: another writer has committed meanwhile; the files belong to no version.
            StoreError: the table cannot be written.
        """


class SparkTransaction(TableTransaction, Protocol):
    """Transaction that Spark writes rows for."""

    def write(self, frame: "DataFrame") -> list[WrittenFile]:
        """Write rows as files that no version of the table contains yet. Raises StoreError."""


@dataclass(frozen=True, slots=True)
class CommitAttempt:
    """Attempt to commit the pending rows of one store or broker, from ``begin`` to the exclusive ``end``.

    Attributes:
        needs_dedup: whether the table may already contain some of the rows: from the export of another selection, or
            because the export is a backfill.
        app_id: application id of the transaction version that is the progress of the export.
        versions: transaction versions to commit, by application id.
        metadata: fingerprint of the log, or the offsets of the queues; None if the log has no bytes before ``end``.
        broker_id: identifier of the broker in the metadata of a commit; None if the table has one store.
        spans: pending offset ranges of queues, for exports by queue offsets; ``begin`` and ``end`` are 0 then.
        watermark: committed high watermark, if the export is a backfill; ``WATERMARK_LOST`` if its row is missing.
        lost_watermarks: transaction versions that record the missing watermark rows of other selections.
        undecoded_versions: transaction versions that count the undecoded messages of the selection.
    """

    transaction: TableTransaction
    begin: int
    end: int
    needs_dedup: bool
    app_id: str
    versions: Mapping[str, int]
    metadata: str | None
    broker_id: str | None
    spans: tuple[Span, ...] = ()
    watermark: int | None = None
    lost_watermarks: Mapping[str, int] = field(default_factory=dict)
    undecoded_versions: Mapping[str, int] = field(default_factory=dict)

    @property
    def has_pending_rows(self) -> bool:
        """Whether there may be rows to commit."""
        return self.begin < self.end or bool(self.spans)

    @property
    def pending_range(self) -> PendingRange:
        return self.begin, self.end, self.spans


StartAttempt = Callable[[TableTransaction], CommitAttempt | None]
"""Starts the attempt of one store or broker in a transaction; returns None if nothing is pending."""


class TableLog(Protocol):
    """Log of one table; each call sees its newest version."""

    conflicts: tuple[type[Exception], ...]
    """Errors of a commit when another writer was faster: nothing was committed."""
    accepts_any_partition_text: bool
    """Whether each text is a value of a partition, see ``decode.partition_texts``."""
    null_breaks_members: bool
    """Whether a struct that is null breaks NOT NULL of its members."""

    def exists(self) -> bool:
        """Return whether the table exists. Raises StoreError."""

    def snapshot(self) -> TableSnapshot:
        """Return the newest version."""

    def configuration(self) -> dict[str, str]:
        """Return the table's properties."""

    def partition_columns(self) -> list[str]:
        """Return the names of the partition columns."""

    def has_partition_directories(self, properties: Mapping[str, str]) -> bool:
        """Return whether a table with these properties has the values of partitions in the names of directories."""

    def missing_file(self) -> str | None:
        """Return a data file of the newest version that does not exist; None if the few checked files exist.

        The cost does not grow with the table. Raises StoreError.
        """

    def other_table(self) -> str | None:
        """Describe another table in the directory of this table; None without one. Raises StoreError."""

    def check_columns(self, path: str, schema: Any, identity_columns: Sequence[str]) -> None:
        """Refuse columns of Spark, or of Arrow, that cannot be written, see ``evolution``. Raises StoreError."""

    def add_missing_columns(self, path: str, schema: Any) -> None:
        """Add the columns that the table lacks, also within structs."""

    def has_rows(self, version: int, row_range: RowRange, count: int = 1) -> bool:
        """Return whether a version has at least ``count`` rows of a range."""

    def create(self, schema: Any, table_spec: TableSpec, properties: Mapping[str, str]) -> None:
        """Create the table, unless another writer was faster. Raises StoreError."""

    def begin_transaction(self) -> TableTransaction:
        """Begin a transaction on the newest version. A transaction that is not committed changes nothing."""

    def vacuum(self, hours: int) -> None:
        """Delete files that no version has had for ``hours``, and the versions that only these files made up."""

    def fsync(self) -> None:
        """Sync the file system of the table to disk, if this machine has it; see ``sync_file_system``."""


class SparkTableLog(TableLog, Protocol):
    """Log of a table that Spark reads, writes and merges into."""

    def schema(self) -> "StructType":
        """Return the table's columns."""

    def former_columns(self) -> dict[str, str | None]:
        """Map the former path of each renamed column to its current path, and that of each dropped column to None."""

    def storable_schema(self, schema: "StructType") -> "StructType":
        """Return the columns as the format stores them: it may lack a type. Raises StoreError."""

    def add_columns(self, schema: "StructType") -> None:
        """Add the columns that the table lacks, also within structs."""

    def widening_refusal(self, narrow: "DataType", wide: "DataType") -> str | None:
        """Return the reason why the table cannot widen a column, with the statement to run; None without a reason."""

    def widen_column(self, path: Sequence[str], kind: "DataType") -> None:
        """Change the type of a column to a wider type."""

    def layout(self, table_spec: TableSpec, codec: str, columns: Collection[str]) -> Layout | None:
        """Return how tasks write files of some columns; None if Spark's own writer has to write the rows."""

    def delete_older(self, time_column: str, days: int) -> None:
        """Delete the rows of messages that were stored more than ``days`` ago, by the column ``time_column``."""

    def compact(self, time_column: str) -> None:
        """Compact small files up to the target size, with messages in the order of the column ``time_column``."""

    def rows(self, version: int, columns: Sequence[str]) -> "DataFrame | None":
        """Read some columns of a version's rows; None if there are no rows."""

    def visible_rows(self) -> "DataFrame":
        """Read the newest version's rows, without those that delete files hide. Raises StoreError."""

    def upsert(
        self,
        start: StartAttempt,
        rows: "Callable[[CommitAttempt], DataFrame]",
        merge: "MergeRows",
        last_row: int | None,
        *,
        is_backfill: bool,
    ) -> None:
        """Merge the pending rows of one store or broker, and commit its progress in the same transaction.

        Args:
            rows: returns the rows of an attempt, with the table's columns or some of them.
            merge: key and order of the rows; a row replaces only an earlier row of its key.
            last_row: position of the last of all rows; see ``exactly_once.with_high_watermark``.
            is_backfill: whether the table may already contain the rows, and its progress may be ahead of them.

        Raises StoreError: each attempt lost a race.
        """


OpenTable = Callable[[str], SparkTableLog]
"""Opens the log of a table by its path, or its name in a catalog."""


def check_identity_columns(path: str, names: Iterable[str], identity_columns: Iterable[str]) -> None:
    """Refuse a table without a column that identifies its rows. Raises StoreError.

    A column that was renamed or dropped must not be added again: it would not identify the existing rows.
    """
    existing_names = {name.lower() for name in names}
    for name in identity_columns:
        if name.lower() not in existing_names:
            raise StoreError(f"{path}: column {name}, which identifies the rows, was renamed or dropped")
