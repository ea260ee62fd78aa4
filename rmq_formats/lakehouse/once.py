"""Exactly-once appends of log rows to a table, by transaction versions that hold physical offsets.

A transaction version holds the physical offset up to which a selection has landed. It is read in the very
transaction that adds the rows and sets it, and that fails if another export has set it meanwhile: then the rows
are selected again, from where that one ended. So a killed run leaves all or nothing, a run that is repeated adds
only what has not landed, and of two that race each row is landed by one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from rmq_formats.errors import StoreError
from rmq_formats.lakehouse.evolution import misfit, missing
from rmq_formats.lakehouse.log import StoreLog, check_log, look, marked_end
from rmq_formats.lakehouse.parquet import Layout
from rmq_formats.lakehouse.selection import ExportSelection
from rmq_formats.lakehouse.standing import Standing, last_note, standing
from rmq_formats.lakehouse.table_log import Appended, AppendTransaction, Shape, TableLog, TableSnapshot

STORE_PROPERTY: Final = "rmq.store"
ATTEMPTS: Final = 50  # each lost race is the commit of another writer

Finish = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Turn:
    """One attempt to append the rows that have not landed yet.

    Attributes:
        transaction: transaction that has read up to where the table has landed.
        begin: physical offset where the rows not landed yet begin.
        end: exclusive.
        shared: whether the table may hold some of the rows already: other selections' exports have landed in it,
            or these are landed again.
        versions: transaction versions to commit.
        note: what the commit says of the log; see ``LogMark``.
    """

    transaction: AppendTransaction
    begin: int
    end: int
    shared: bool
    versions: Mapping[str, int]
    note: str | None


Write = Callable[[Turn], Appended]


class ExactlyOnceTable:
    """Table into which rows of one store are landed exactly once.

    Args:
        path: of the table, or its name in a catalog.
        log: of the table.
        selection: which of the store's messages this export lands in it.
        shape: see ``Shape``.
        offset: its column of physical offsets.
    """

    def __init__(
        self, path: str, log: TableLog, selection: ExportSelection, shape: Shape, offset: str = "physical_offset"
    ) -> None:
        self.path = path
        self._selection = selection
        self.app_id = selection.app_id
        self._shape = shape
        self.offset = offset
        self._log = log
        self._found: dict[tuple[int, int], Standing] = {}  # of the version looked at last

    def exported_end(self) -> int:
        """Return the physical offset where the rows to land begin; -1 if nothing has landed yet.

        Raises:
            StoreError: the table does not hold what has landed in it, and no offset to begin at was asked for.
        """
        return self._begin(self.standing())

    def standing(self) -> Standing:
        """Find how far the selection has landed in the newest version of the table."""
        snapshot = self._log.snapshot()
        return Standing(-1, -1) if snapshot.version < 0 else self._standing(snapshot)

    def check_log(self, log: StoreLog) -> None:
        """Refuse a log that is not the one that the table was exported from; unless it is to be landed again.

        Raises:
            StoreError: it was cut off, or is another store's; or it is to be landed again where rows of another log
                would be taken for its own as soon as it reaches them.
        """
        found = self.standing()
        if not self.lands_again:
            check_log(log, found.landed, found.note, self.path)
            last = self._last_note()
            if last != found.note:
                check_log(log, marked_end(last), last, self.path)
        elif self._log.exists():
            known = look(log.store)
            if max(found.claimed or 0, marked_end(self._last_note())) > known.end and self._has_rows_behind(known.end):
                raise StoreError(
                    f"{self.path}: holds rows behind {known.end}, where the CommitLog ends; delete them first"
                )

    def _last_note(self) -> str | None:
        """What the last commit of any selection says of the log; they share the table's offsets."""
        snapshot = self._log.snapshot()
        return last_note(snapshot, snapshot.version, f"{self._selection.lock_id}:")

    def _has_rows_behind(self, end: int) -> bool:
        held = self._log.offsets(self._log.snapshot().version, self.offset)
        return held is not None and not held.where(F.col(self.offset) >= end).isEmpty()

    def _standing(self, snapshot: TableSnapshot) -> Standing:
        known = snapshot.transaction_version(self.app_id)
        if (snapshot.version, known) not in self._found:
            mine = any(name.startswith(self._selection.lock_id) for name in snapshot.app_ids())
            is_complete = mine and not snapshot.drops_transactions()
            found = standing(snapshot, snapshot.version, self.app_id, known, is_complete=is_complete)
            self._found = {(snapshot.version, known): found}
        return self._found[snapshot.version, known]

    def _begin(self, found: Standing) -> int:
        asked = self._selection.from_offset
        if asked is None:
            if found.fault is not None:
                raise StoreError(f"{self.path}: {found.fault}")
            return found.landed
        if found.claimed is not None and asked > max(found.claimed, 0):
            raise StoreError(f"--from-offset {asked}: {self.path} has landed up to {max(found.claimed, 0)} only")
        return asked

    @property
    def lands_again(self) -> bool:
        """Whether rows may be in the table already, and are to be left out then."""
        return self._selection.from_offset is not None

    def check(self, schema: StructType) -> None:
        """Refuse a table of another store, or of another layout.

        Raises:
            StoreError: naming what does not fit.
        """
        if not self._log.exists():
            return
        found = self._log.configuration()
        owner, store = found.get(STORE_PROPERTY), self._selection.store_id
        if owner is None:
            raise StoreError(f"{self.path}: a table that no export wrote; give another --table")
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
        found = misfit(self._log.schema(), self._log.stored(schema))
        if found is not None:
            name, there, wanted = found
            raise StoreError(f"{self.path}: its column {name} is {there.simpleString()}, not {wanted.simpleString()}")

    def prepare(self, schema: StructType) -> None:
        """Create the table if there is none, and add the columns that it lacks."""
        if not self._log.exists():
            own = {**dict(self._shape.more), **dict(self._shape.properties), STORE_PROPERTY: self._selection.store_id}
            self._log.create(schema, self._shape, own)
        self.check(schema)
        if any(missing(self._log.schema(), schema)):
            self._log.add_columns(schema)

    def land(self, write: Write, end: int, log: StoreLog) -> Appended:
        """Land the rows not landed yet of the records that begin before ``end``, a physical offset.

        Args:
            write: appends the rows; called again after a lost race.
            end: exclusive.
            log: the log, of which the commit notes a mark.

        Raises:
            StoreError: each attempt lost a commit conflict, or the table does not hold what has landed in it.
        """
        for _ in range(ATTEMPTS):
            turn = self._turn(end, log)
            if turn is None:
                return Appended()
            try:
                return write(turn) if turn.begin < turn.end else _acknowledge(turn)
            except self._log.conflicts:
                continue
        raise StoreError(f"{self.path}: lost {ATTEMPTS} commit conflicts to other writers; nothing was written")

    def force(self) -> None:
        """Force what was committed by other means than ``land``."""
        self._log.force()

    def settle(self, end: int, log: StoreLog) -> None:
        """Set the transaction version alone; see ``land``."""
        self.land(_acknowledge, end, log)

    def _turn(self, end: int, log: StoreLog) -> Turn | None:
        """Begin an attempt; None if nothing is left to land."""
        selection = self._selection
        transaction = self._log.begin_append()
        transaction.watch(selection.app_id)
        transaction.watch(selection.lock_id)
        snapshot = transaction.snapshot
        found = self._standing(snapshot)
        first = self._begin(found)
        if end < first or (end == first and not self.lands_again):
            return None
        own = {selection.app_id, selection.lock_id}
        others = any(name.startswith(selection.lock_id) and name not in own for name in snapshot.app_ids())
        shared = self.lands_again or others or snapshot.drops_transactions()
        # Behind the end of a log that is not the one that was exported nothing has landed.
        landed = found.landed if log.reaching(found.landed).has(found.landed, found.note) else end
        versions = {selection.app_id: max(end, landed), selection.lock_id: snapshot.version + 1}
        begin = max(first, selection.starting_physical_offset)
        return Turn(transaction, begin, end, shared, versions, log.mark(end))

    def append(self, turn: Turn, frame: DataFrame, finish: Finish = lambda frame: frame) -> Appended:
        """Append rows by Spark, and commit them with the turn's transaction versions.

        Args:
            turn: see ``Turn``.
            frame: the rows that begin at ``turn.begin`` or behind it, with the table's column of physical offsets.
            finish: builds the table's columns of the rows to append.
        """
        owed = self._without_landed(frame, turn) if turn.shared else frame
        return turn.transaction.append(finish(owed), turn.versions, turn.note)

    def layout(self, codec: str) -> Layout | None:
        """Return how tasks write Parquet files; None if the rows have to go through Spark."""
        return self._log.layout(self._shape, codec)

    def _without_landed(self, frame: DataFrame, turn: Turn) -> DataFrame:
        """Remove rows that the table has."""
        held = self._log.offsets(turn.transaction.snapshot.version, self.offset)
        if held is None:
            return frame
        there = held.where(F.col(self.offset).between(turn.begin, turn.end - 1))
        return frame.join(there, self.offset, "left_anti").select(*frame.columns)


def _acknowledge(turn: Turn) -> Appended:
    """Commit that the table holds what it is to hold."""
    turn.transaction.append_files([], {}, turn.versions, turn.note)
    return Appended(committed=True)
