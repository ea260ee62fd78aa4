"""Lands rows of a log in a Delta table, each once.

A transaction identifier keeps the physical offset up to which a selection was landed. It is read in the very
transaction that adds the rows and sets it anew, which fails if another export has set it meanwhile: then rows
are chosen anew, from where that one ended. So a run that dies leaves all or nothing, what is run again adds what
is owed, and of two that race each row is one's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from rmq_formats.errors import StoreError
from rmq_formats.lakehouse.evolution import misfit, missing
from rmq_formats.lakehouse.selection import Selection
from rmq_formats.spark.delta import CONFLICTS, Appended, AppendTransaction, DeltaTableLog

STORE_PROPERTY: Final = "rmq.store"
ATTEMPTS: Final = 50  # each lost race is another's commit

Finish = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Turn:
    """One attempt to land what is owed.

    Attributes:
        transaction: that has read where the table stands.
        begin: physical offset of what is owed.
        end: exclusive.
        shared: whether exports of other selections have landed in the table, perhaps some of this.
        versions: transaction versions to commit.
    """

    transaction: AppendTransaction
    begin: int
    end: int
    shared: bool
    versions: Mapping[str, int]


Write = Callable[[Turn], Appended]


@dataclass(frozen=True, slots=True)
class Shape:
    """How a table is laid out when it is made.

    Attributes:
        partitions: columns that it is partitioned by.
        clusters: columns that OPTIMIZE clusters it by; there are no partitions then.
        properties: of the table, beyond whose it is.
        stats: columns that Delta keeps the smallest and largest values of in each file.
    """

    partitions: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    stats: tuple[str, ...] = ()


class OnceTable:
    """A table of one store's rows.

    Args:
        spark: the session.
        path: of the table.
        selection: which of the store's messages this export lands in it.
        shape: see ``Shape``.
        offset: its column of physical offsets.
    """

    def __init__(
        self, spark: SparkSession, path: str, selection: Selection, shape: Shape, offset: str = "physical_offset"
    ) -> None:
        self._spark = spark
        self.path = path
        self._selection = selection
        self.app_id = selection.app_id
        self._shape = shape
        self.offset = offset
        self._log = DeltaTableLog(spark, path)

    def exported_end(self) -> int:
        """Physical offset up to which the selection was landed; -1 if it never was."""
        return self._log.transaction_version(self._selection.app_id) if self._log.exists() else -1

    def check(self, schema: StructType) -> None:
        """Refuse a table that is another's, or another one.

        Raises:
            StoreError: naming what does not fit.
        """
        if not self._log.exists():
            return
        found = self._log.configuration()
        owner, store = found.get(STORE_PROPERTY), self._selection.store_id
        if owner is None:
            raise StoreError(f"{self.path}: a Delta table that no export wrote; give another --table")
        if owner != store:
            raise StoreError(
                f"{self.path}: holds the messages of {owner}, not of {store}; "
                "give another --table, or --store-id if the store has moved"
            )
        for name, wanted in self._shape.properties:
            if found.get(name) != wanted:
                raise StoreError(f"{self.path}: its {name} is {found.get(name) or 'none'}, not {wanted or 'none'}")
        partitions = ",".join(self._log.partition_columns())
        if partitions != ",".join(self._shape.partitions):
            wanted = ",".join(self._shape.partitions)
            raise StoreError(f"{self.path}: is partitioned by {partitions or 'nothing'}, not {wanted or 'nothing'}")
        self._check_columns(schema)

    def _check_columns(self, schema: StructType) -> None:
        found = misfit(self._log.schema(), schema)
        if found is not None:
            name, there, wanted = found
            raise StoreError(f"{self.path}: its column {name} is {there.simpleString()}, not {wanted.simpleString()}")

    def prepare(self, schema: StructType) -> None:
        """Make the table if there is none, and add the columns that it lacks."""
        if not self._log.exists():
            try:
                self._create(schema)
            except (PySparkException, *CONFLICTS):
                if not self._log.exists():  # another export was not faster
                    raise
        self.check(schema)
        columns = ", ".join(missing(self._log.schema(), schema))
        if columns:
            self._spark.sql(f"ALTER TABLE delta.`{self.path}` ADD COLUMNS ({columns})")

    def _create(self, schema: StructType) -> None:
        table = DeltaTable.createIfNotExists(self._spark).location(self.path).addColumns(schema)
        if self._shape.partitions:
            table = table.partitionedBy(*self._shape.partitions)
        if self._shape.clusters:
            table = table.clusterBy(*self._shape.clusters)
        if self._shape.stats:
            table = table.property("delta.dataSkippingStatsColumns", ",".join(self._shape.stats))
        for name, value in self._shape.properties:
            table = table.property(name, value)
        table.property(STORE_PROPERTY, self._selection.store_id).execute()

    def land(self, write: Write, end: int) -> Appended:
        """Land what is owed of the records that begin before ``end``, a physical offset.

        Args:
            write: appends them; called again after a lost race.
            end: exclusive.

        Raises:
            StoreError: other writers were faster each time.
        """
        selection = self._selection
        for _ in range(ATTEMPTS):
            transaction = self._log.begin_append()
            landed = transaction.transaction_version(selection.app_id)
            transaction.transaction_version(selection.lock_id)
            if end <= landed:
                return Appended()
            own = {selection.app_id, selection.lock_id}
            shared = any(name.startswith(selection.lock_id) and name not in own for name in transaction.app_ids())
            versions = {selection.app_id: end, selection.lock_id: transaction.table_version + 1}
            begin = max(landed, selection.starting_physical_offset)
            try:
                return write(Turn(transaction, begin, end, shared, versions))
            except CONFLICTS:
                continue
        raise StoreError(f"{self.path}: other writers were faster {ATTEMPTS} times; nothing was written")

    def append(self, turn: Turn, frame: DataFrame, finish: Finish = lambda frame: frame) -> Appended:
        """Write rows by Spark, and commit them.

        Args:
            turn: see ``Turn``.
            frame: the rows that begin at ``turn.begin`` or behind it, with the table's column of physical offsets.
            finish: makes the table's columns of those that are owed.
        """
        owed = self._without_landed(frame, turn) if turn.shared else frame
        return turn.transaction.append(finish(owed), turn.versions)

    def takes_files(self) -> str | None:
        """The directory for files that Spark has not written; None if the table asks more of its writers.

        It does if it is not in a file system of this machine, too.
        """
        return self._log.local_path() if self._log.is_plain() and not self._shape.clusters else None

    def _without_landed(self, frame: DataFrame, turn: Turn) -> DataFrame:
        """Leave out what an export of another selection of the store has landed."""
        seen = turn.transaction.table_version
        table = self._spark.read.format("delta").option("versionAsOf", seen).load(self.path)
        there = table.where(F.col(self.offset).between(turn.begin, turn.end - 1)).select(self.offset)
        return frame.join(there, self.offset, "left_anti").select(*frame.columns)
