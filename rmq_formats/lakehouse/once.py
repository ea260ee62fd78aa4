"""Exactly-once appends of log rows to a table, by transaction versions that hold physical offsets.

A table has the rows of one store, or those of several brokers: then each broker has transaction versions of its own,
and one transaction may land the rows of many.

A transaction version holds the physical offset up to which a selection has landed. It is read in the very
transaction that adds the rows and sets it, and that fails if another export has set it meanwhile: then the rows
are selected again, from where that one ended. So a killed run leaves all or nothing, a run that is repeated adds
only what has not landed, and of two that race each row is landed by one.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from rmq_formats.errors import StoreError
from rmq_formats.lakehouse.evolution import check_columns, column, current_columns, missing
from rmq_formats.lakehouse.log import StoreLog, check_log, look, marked_end
from rmq_formats.lakehouse.log_notes import note_of, own_note
from rmq_formats.lakehouse.newest import GONE, NEWEST, NewestRows
from rmq_formats.lakehouse.owner import TOPIC_PROPERTY, check_owner, owner_of
from rmq_formats.lakehouse.parquet import Layout
from rmq_formats.lakehouse.selection import ExportSelection
from rmq_formats.lakehouse.standing import Standing, last_note, standing
from rmq_formats.lakehouse.table_log import UNDECODED, Appended, AppendTransaction, Shape, TableLog, TableSnapshot
from rmq_formats.spark.live.plan import Span
from rmq_formats.spark.options.schemas import BROKER_NAME, CLUSTER

PULLED_END: Final = "pulled_end"
ATTEMPTS: Final = 50  # each lost race is the commit of another writer

Finish = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Turn:
    """One attempt to append the rows of a store that have not landed yet.

    Attributes:
        transaction: transaction that has read up to where the table has landed.
        begin: physical offset where the rows not landed yet begin.
        end: exclusive.
        shared: whether the table may hold some of the rows already: other selections' exports have landed in it,
            or these are landed again.
        app_id: of the transaction version that tells how far the rows have landed.
        versions: transaction versions to commit.
        note: what the commit says of the log; see ``StoreLog.mark``.
        broker: identifier of the broker in a commit's note; None where the table has one store.
        spans: of queues of a running broker, instead of physical offsets.
        newest: what tells of the newest row, where rows are landed again, and ``GONE`` if that is gone.
        marks: transaction versions that mark the newest rows of other selections as gone, before these may hide it.
        state: transaction versions that say which messages of the selection are undecoded.
    """

    transaction: AppendTransaction
    begin: int
    end: int
    shared: bool
    app_id: str
    versions: Mapping[str, int]
    note: str | None
    broker: str | None
    spans: tuple[Span, ...] = ()
    newest: int | None = None
    marks: Mapping[str, int] = field(default_factory=dict)
    state: Mapping[str, int] = field(default_factory=dict)

    def landing(self, last: int | None) -> "Turn":
        """Return the turn with a version that tells of the newest row that has landed, by which a RESTORE is seen.

        Args:
            last: physical offset of the last row that is landed, of a table with a key and several brokers its store
                time in ms; None if there are no rows.
        """
        newest = max((offset for offset in (self.newest, last) if offset is not None), default=None)
        own = {} if self.spans or newest is None else {self.app_id + NEWEST: newest}
        return replace(self, versions={**self.versions, **self.marks, **self.state, **own})

    @property
    def owes(self) -> bool:
        """Whether there may be rows to append."""
        return self.begin < self.end or bool(self.spans)


Choose = Callable[[AppendTransaction], Turn | None]
Write = Callable[[Mapping[int, Turn]], Appended]


def land_together(path: str, log: TableLog, choose: Sequence[Choose], write: Write) -> Appended:
    """Land rows of several brokers in one transaction.

    Args:
        path: of the table.
        log: of the table.
        choose: gives the turn of each broker in a transaction; None if it has nothing to land.
        write: appends the rows of the turns, by their places in ``choose``; called again after a lost race.

    Raises:
        StoreError: each attempt lost a commit conflict, or the table does not hold what has landed in it.
    """
    for _ in range(ATTEMPTS):
        transaction = log.begin_append()
        found = ((number, one(transaction)) for number, one in enumerate(choose))
        turns = {number: turn for number, turn in found if turn is not None}
        if not turns:
            return Appended()
        try:
            return write(turns) if any(turn.owes for turn in turns.values()) else acknowledge(list(turns.values()))
        except log.conflicts:
            continue
    raise StoreError(f"{path}: lost {ATTEMPTS} commit conflicts to other writers; nothing was written")


def commit_files(turns: Sequence[Turn], files: Sequence[str], told: Mapping[str, int]) -> None:
    """Commit files of the rows of several turns of one transaction; see ``AppendTransaction.append_files``."""
    versions = {app_id: version for turn in turns for app_id, version in turn.versions.items()}
    turns[0].transaction.append_files(files, told, versions, note_of(turns))


def acknowledge(turns: Sequence[Turn], newest: int | None = None) -> Appended:
    """Commit that the table holds what it is to hold; ``newest`` as ``Turn.landing`` takes it."""
    commit_files([turn.landing(newest) for turn in turns], [], {})
    return Appended(committed=True)


class ExactlyOnceTable:
    """Table into which rows of one store, or of one of several brokers, are landed exactly once.

    Args:
        path: of the table, or its name in a catalog.
        log: of the table.
        selection: which of the store's messages this export lands in it.
        shape: see ``Shape``.
        offset: its column of physical offsets.
        broker_columns: its columns of cluster and broker, where it has those of several brokers.
        later: of a table with a key the first column by which of two rows one is the later: ``offset``, or the store
            time where it has several brokers. A row gives way to a later one alone, so as long as no row is taken
            away, one is there that is as late as any that has landed.
        key: names of its key columns, if it has a key.
    """

    def __init__(
        self,
        path: str,
        log: TableLog,
        selection: ExportSelection,
        shape: Shape,
        offset: str = "physical_offset",
        broker_columns: tuple[str, str] = (CLUSTER, BROKER_NAME),
        later: str | None = None,
        key: Sequence[str] = (),
    ) -> None:
        self.path = path
        self.selection = selection
        self.app_id = selection.app_id
        self.broker_id = None if selection.broker is None else selection.broker.id
        self._shape = shape
        self.offset = offset
        self._later, self._key = later, key
        self.log = log
        self._rows = NewestRows(log, selection, offset, broker_columns, later)
        self._found: dict[tuple[str, int, int], Standing] = {}  # of the version looked at last

    def exported_end(self) -> int:
        """Return the physical offset where the rows to land begin; -1 if nothing has landed yet.

        Raises:
            StoreError: the table does not hold what has landed in it, and no offset to begin at was asked for.
        """
        return self._begin(self.standing())

    def standing(self, app_id: str | None = None) -> Standing:
        """Find how far the selection has landed in the newest version of the table; see ``standing_in``."""
        snapshot = self.log.snapshot()
        return Standing(-1, -1) if snapshot.version < 0 else self.standing_in(snapshot, app_id or self.app_id)

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
        elif self.log.exists():
            known = look(log.store)
            if max(found.claimed or 0, marked_end(self._last_note())) > known.end and self._has_rows_behind(known.end):
                raise StoreError(
                    f"{self.path}: holds rows behind {known.end}, where the CommitLog ends; delete them first"
                )

    def _last_note(self) -> str | None:
        """What the last commit of any selection says of the log; they share the table's offsets."""
        snapshot = self.log.snapshot()
        return own_note(last_note(snapshot, snapshot.version, f"{self.selection.lock_id}:"), self.broker_id)

    def _has_rows_behind(self, end: int) -> bool:
        held = self._rows.offsets(self.log.snapshot().version)
        return held is not None and not held.where(column(self.offset) >= end).isEmpty()

    def standing_in(self, snapshot: TableSnapshot, app_id: str) -> Standing:
        """Find how far the selection has landed in a version, by its transaction identifier of stores or of queues."""
        known = snapshot.transaction_version(app_id)
        key = (app_id, snapshot.version, known)
        if key not in self._found:
            mine = any(map(self.is_of_store, snapshot.app_ids()))
            is_complete = mine and not snapshot.drops_transactions()
            lost = partial(self._rows.lost, snapshot)
            found = standing(snapshot, snapshot.version, app_id, known, lost, is_complete=is_complete)
            newest = {other: one for other, one in self._found.items() if other[0] != app_id}
            self._found = {**newest, key: replace(found, note=own_note(found.note, self.broker_id))}
        return self._found[key]

    @property
    def newest_id(self) -> str:
        """Transaction identifier of the selection's newest row; its version is the physical offset."""
        return self.app_id + NEWEST

    @property
    def queues_id(self) -> str:
        """Transaction identifier of what was pulled from the selection's queues; see ``cluster.queues``."""
        return f"{self.app_id}:queues"

    def pulled_end(self) -> int:
        """Return a physical offset behind which nothing was pulled from queues; 0 if nothing was at all."""
        snapshot = self.log.snapshot()
        return 0 if snapshot.version < 0 else self._pulled_end(snapshot)

    def _pulled_end(self, snapshot: TableSnapshot) -> int:
        if self.selection.broker is None:
            return 0
        found = self.standing_in(snapshot, self.queues_id)
        if found.claimed is not None and found.claimed < 0:
            return 0
        try:
            return int(json.loads(found.note or "")[PULLED_END])
        except (ValueError, TypeError, KeyError):  # it is unknown
            return 1 << 62

    def is_of_store(self, app_id: str) -> bool:
        """Return whether an application id is that of any selection of the store."""
        return app_id == self.selection.lock_id or app_id.startswith(f"{self.selection.lock_id}:")

    def is_of_other_selection(self, app_id: str, own: Collection[str]) -> bool:
        """Return whether an application id tells that another selection of the store has landed rows."""
        return self.is_of_store(app_id) and app_id not in own and not app_id.endswith(UNDECODED)

    def _begin(self, found: Standing) -> int:
        asked = self.selection.from_offset
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
        return self.selection.from_offset is not None

    def check(self, schema: StructType) -> None:
        """Refuse a table of another store, of another layout, or one whose files are gone. Raises StoreError."""
        if not self.log.exists():
            return
        self._check_fit(schema)
        other = self.log.other_table()
        if other is not None:
            raise StoreError(f"{self.path}: its directory has {other}, too: move that away, or give another --table")
        gone = self.log.missing_file()
        if gone is not None:
            raise StoreError(f"{self.path}: its data file {gone} is gone: put it back, or give another --table")

    def _check_fit(self, schema: StructType) -> None:
        found = self.log.configuration()
        check_owner(self.path, found, self.selection)
        wants = dict(self._shape.properties)
        for name in (TOPIC_PROPERTY, *wants):
            wanted = wants.get(name)
            if found.get(name) != wanted:
                raise StoreError(f"{self.path}: its {name} is {found.get(name) or 'none'}, not {wanted or 'none'}")
        partitions = ",".join(self.log.partition_columns())
        if partitions != ",".join(self._shape.partitions):
            wanted = ",".join(self._shape.partitions)
            raise StoreError(f"{self.path}: is partitioned by {partitions or 'nothing'}, not {wanted or 'nothing'}")
        check_columns(self.path, self.log.schema(), self.log.stored(self._current(schema)), [self.offset, *self._key])

    def _current(self, schema: StructType) -> StructType:
        """Return the columns under the names that they have in the table now, without those that were dropped."""
        return current_columns(self.path, schema, self.log.former_columns())

    def prepare(self, schema: StructType) -> None:
        """Create the table if there is none, and add the columns that it lacks."""
        if not self.log.exists():
            own = {**dict(self._shape.more), **dict(self._shape.properties), **dict([owner_of(self.selection)])}
            self.log.create(schema, self._shape, own)
        self._check_fit(schema)
        if any(missing(self.log.schema(), current := self._current(schema))):
            self.log.add_columns(current)

    def choose(self, end: int, log: StoreLog) -> Choose:
        """Return what begins an attempt to land the records that begin before ``end`` in a transaction."""
        return lambda transaction: self._turn(transaction, end, log)

    def force(self) -> None:
        """Force what was committed by other means than ``land``."""
        self.log.force()

    def settle(self, choose: Choose, newest: int | None) -> None:
        """Set the transaction versions of a turn alone; ``newest`` as ``Turn.landing`` takes it."""
        land_together(self.path, self.log, [choose], lambda turns: acknowledge(list(turns.values()), newest))

    def _turn(self, transaction: AppendTransaction, end: int, log: StoreLog) -> Turn | None:
        """Begin an attempt; None if nothing is left to land."""
        selection = self.selection
        transaction.watch(selection.app_id)
        transaction.watch(selection.lock_id)
        snapshot = transaction.snapshot
        found = self.standing_in(snapshot, self.app_id)
        first = self._begin(found)
        if end < first or (end == first and not self.lands_again):
            return None
        own = {selection.app_id, self.newest_id, selection.lock_id, self.queues_id}
        others = any(self.is_of_other_selection(name, own) for name in snapshot.app_ids())
        pulled_end = self._pulled_end(snapshot)
        shared = self.lands_again or others or max(first, 0) < pulled_end or snapshot.drops_transactions()
        # Behind the end of a log that is not the one that was exported nothing has landed.
        landed = found.landed if log.reaching(found.landed).has(found.landed, found.note) else end
        versions = {selection.app_id: max(end, landed), selection.lock_id: snapshot.version + 1}
        begin = max(first, selection.starting_physical_offset)
        newest = None
        if self.lands_again:
            is_gone = self._rows.lost(snapshot, self.app_id) is not None
            newest = GONE if is_gone else snapshot.transaction_version(self.newest_id)
        note, marks = log.mark(end), self._marks(snapshot, begin, end)
        return Turn(
            transaction, begin, end, shared, self.app_id, versions, note, self.broker_id, newest=newest, marks=marks
        )

    def _marks(self, snapshot: TableSnapshot, begin: int, end: int) -> dict[str, int]:
        by_time = self._later not in {None, self.offset}  # a row of any broker may be as late as another's
        others = [
            name
            for name in snapshot.app_ids()
            if name.endswith(NEWEST) and name != self.newest_id and (by_time or self.is_of_store(name))
        ]
        return self._rows.marks(snapshot, others, begin, end) if begin < end else {}

    def append(self, turn: Turn, frame: DataFrame, finish: Finish = lambda frame: frame) -> Appended:
        """Append rows by Spark, and commit them with the turn's transaction versions.

        Args:
            turn: see ``Turn``.
            frame: the rows that begin at ``turn.begin`` or behind it, with the table's column of physical offsets.
            finish: builds the table's columns of the rows to append.
        """
        owed, seen = self._without_landed(frame, turn) if turn.shared else frame, Observation()
        rows = self.with_current_names(finish(owed)).observe(seen, F.max(column(self.offset)).alias("newest"))
        return turn.transaction.append(rows, lambda: turn.landing(seen.get["newest"]).versions, note_of([turn]))

    def with_current_names(self, frame: DataFrame) -> DataFrame:
        """Select columns under the names that they have in the table now, without those that were dropped."""
        former = self.log.former_columns()
        if not former:
            return frame
        named = ((name, former.get(name, name)) for name in frame.columns)
        return frame.select(*(column(name).alias(now) for name, now in named if now is not None))

    def layout(self, codec: str) -> Layout | None:
        """Return how tasks write Parquet files; None if the rows have to go through Spark."""
        if self.log.former_columns():
            return None
        return self.log.layout(self._shape, codec)

    def _without_landed(self, frame: DataFrame, turn: Turn) -> DataFrame:
        """Remove rows that the table has."""
        held = self._rows.offsets(turn.transaction.snapshot.version)
        if held is None:
            return frame
        there = held.select(column(self.offset))
        if not turn.spans:
            there = there.where(column(self.offset).between(turn.begin, turn.end - 1))
        return frame.join(there, self.offset, "left_anti").select(*map(column, frame.columns))
