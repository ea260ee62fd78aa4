"""What happens to a log and its Delta tables between two exports."""

import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.lab.rounds import Round
from tests.lab.tables.delta_files import CLEANED
from tests.lab.tables.model import TYPED_TOPIC, ModelLog, ModelTable, State, forget

Reasons = defaultdict[str, set[str]]
"""Why an export of a selection may be refused."""

SELECTIONS: Final = ("all", "Odd", TYPED_TOPIC)
CHANGES: Final = (
    ("append", 6), ("cut", 2), ("tear", 1), ("expire", 1), ("replace", 1), ("lose_checkpoint", 1), ("lose_table", 1),
    ("restore", 4), ("vacuum", 1), ("clone", 1), ("compact", 2), ("rewrite", 2), ("alter", 3), ("delete", 2),
    ("clean_log", 2),
)  # fmt: skip
_PROPERTIES: Final = (
    "'delta.setTransactionRetentionDuration'='interval 1 millisecond'", "'delta.enableDeletionVectors'='true'",
    "'delta.enableChangeDataFeed'='true'", "'delta.enableInCommitTimestamps'='true'", "'delta.checkpointInterval'='2'",
    "'delta.checkpointPolicy'='v2'", "'delta.enableRowTracking'='true'", "'delta.autoOptimize.autoCompact'='true'",
    "'delta.columnMapping.mode'='name'", "'delta.randomizeFilePrefixes'='true'",
)  # fmt: skip


class Changes:
    """Changes of one round's log and tables; each is told to the model too."""

    def __init__(
        self, one: Round, spark: SparkSession, log: ModelLog, tables: Sequence[ModelTable], reasons: Reasons
    ) -> None:
        self._one, self._spark, self._log, self._tables, self._reasons = one, spark, log, tables, reasons
        self._sent = 0
        self._columns = 0

    def any_of(self, changes: Sequence[tuple[str, int]]) -> None:
        """Do one of them, by weight."""
        names, weights = zip(*changes, strict=True)
        (name,) = self._one.dice.choices(names, weights)
        if name not in {"append", "compact", "vacuum", "alter", "delete", "rewrite"}:
            self._one.fault()
        getattr(self, name)()

    def append(self) -> None:
        """The log grows."""
        kept = len(self._log.whole)
        self._log.write(kept, self._messages(self._one.dice.randrange(1, 9)))
        self._one.step(f"the log grows from {kept} to {len(self._log.whole)} records")

    def cut(self) -> None:
        """A loss of power takes the log's tail, and other messages get its offsets."""
        records = len(self._log.whole)
        if records < 2:
            return
        kept = self._one.dice.randrange(max(1, records - 10), records)
        self._log.write(kept, self._messages(self._one.dice.randrange(0, 12)))
        self._one.step(f"the log is cut from {records} to {kept} records, and has {len(self._log.whole)} now")
        self._because("cut")

    def tear(self) -> None:
        """A loss of power takes the end of the last record, that nobody has recovered yet."""
        if len(self._log.records) < 2:
            return
        self._log.write(len(self._log.whole), self._messages(1))
        self._log.tear()
        self._one.step(f"a record behind {len(self._log.whole)} is torn")

    def expire(self) -> None:
        """Retention deletes the log's first file."""
        if self._log.expire():
            self._one.step(f"the log begins at {self._log.records[0].offset} now")
            self._because("expired")

    def replace(self) -> None:
        """Another store is put at the same path."""
        self._log.write(0, self._messages(self._one.dice.randrange(1, 30)))
        self._one.step(f"another store of {len(self._log.whole)} records is at its path")
        self._because("cut")

    def lose_checkpoint(self) -> None:
        """The checkpoint directories are lost."""
        self._one.step("checkpoints are lost")
        own = [table.path / "_rmq_checkpoint" for table in self._tables]
        for path in filter(Path.is_dir, [*self._one.work.glob("*-*"), *own]):
            shutil.rmtree(path)
        self._reasons["checkpoint"].clear()

    def lose_table(self) -> None:
        """A table's directory is removed."""
        table = self._table()
        if table is not None:
            self._one.step(f"{table.kind} is removed")
            shutil.rmtree(table.path)
            forget(self._spark)
            table.now, table.states = State(), {}

    def restore(self) -> None:
        """A table goes back to an earlier version."""
        table = self._table()
        if table is None or len(table.states) < 2:
            return
        before, to = table.version(), self._one.dice.choice(sorted(table.states)[:-1])
        if self._sql(f"RESTORE TABLE {table.sql} TO VERSION AS OF {to}"):
            self._one.step(f"{table.kind} is restored from version {before} to {to}")
            if table.states[to].landed != table.now.landed:
                self._because("restored")
            table.now = table.states[to].copy()
            self._note(table)

    def vacuum(self) -> None:
        """Files that the newest version does not need are deleted."""
        table = self._table()
        if table is not None:
            self._spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
            done = self._sql(f"VACUUM {table.sql} RETAIN 0 HOURS")
            self._spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
            if done:
                self._one.step(f"{table.kind} is vacuumed")
                table.states.clear()
                self._note(table)

    def clone(self) -> None:
        """The export goes on with a clone of a table."""
        table = self._table()
        if table is None:
            return
        path = table.path.with_name(f"{table.path.name}c")
        if self._sql(f"CREATE TABLE delta.`{path}` SHALLOW CLONE {table.sql}"):
            self._one.step(f"{table.kind} is cloned from version {table.version()}")
            table.path, table.states = path, {}
            self._note(table)
            self._because("cloned")

    def compact(self) -> None:
        """OPTIMIZE."""
        table = self._table()
        if table is not None and self._sql(f"OPTIMIZE {table.sql}"):
            self._one.step(f"{table.kind} is compacted")
            self._note(table)

    def rewrite(self) -> None:
        """All rows are written anew, as they are."""
        table = self._table()
        if table is None:
            return
        how = self._one.dice.choice(["REORG", "UPDATE", "overwritten"])
        if how == "overwritten":
            frame = self._spark.read.format("delta").load(str(table.path))
            frame.write.format("delta").mode("overwrite").save(str(table.path))
        else:
            column = "topic" if table.kind in {"raw", "dead"} else "n"
            statement = f"REORG TABLE {table.sql} APPLY (PURGE)"
            self._sql(statement if how == "REORG" else f"UPDATE {table.sql} SET {column} = {column}")
        self._one.step(f"{table.kind} is rewritten: {how}")
        self._note(table)

    def alter(self) -> None:
        """A column is added or dropped, or a property set."""
        table = self._table()
        if table is None:
            return
        self._columns += 1
        chance = self._one.dice.random()
        name = {"raw": "tags", "dead": "queue_offset"}.get(table.kind, "keys")
        if chance < 0.3:
            what = f"ADD COLUMNS (note{self._columns} STRING)"
        elif chance < 0.5:
            self._sql(f"ALTER TABLE {table.sql} SET TBLPROPERTIES ('delta.columnMapping.mode'='name')")
            what = f"DROP COLUMN {name}"
        elif chance < 0.55:
            what = f"ADD CONSTRAINT c{self._columns} CHECK (physical_offset >= 0)"
        else:
            what = f"SET TBLPROPERTIES ({self._one.dice.choice(_PROPERTIES)})"
        done = self._sql(f"ALTER TABLE {table.sql} {what}")
        self._one.step(f"{table.kind}: {what}{'' if done else ', in vain'}")
        self._note(table)

    def delete(self) -> None:
        """Rows are deleted on purpose."""
        table = self._table()
        if table is None or not table.now.rows:
            return
        keys = self._one.dice.sample(
            sorted(table.now.rows), self._one.dice.randrange(1, min(4, len(table.now.rows)) + 1)
        )
        column = "id" if table.kind == "keyed" else "physical_offset"
        if self._sql(f"DELETE FROM {table.sql} WHERE {column} IN ({', '.join(map(repr, keys))})"):
            self._one.step(f"of {table.kind} {keys} are deleted")
            for key in keys:
                del table.now.rows[key]
            self._note(table)

    def clean_log(self) -> None:
        """Delta's own cleaning of commits before a checkpoint, as after a month."""
        table = self._table()
        if table is None:
            return
        forget(self._spark)
        jvm: Any = self._spark._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, str(table.path)).checkpoint()
        newest = table.version()
        for path in (table.path / "_delta_log").glob("*.json"):
            if path.stem.isdigit() and int(path.stem) < newest:
                (table.path / CLEANED).mkdir(exist_ok=True)
                path.rename(table.path / CLEANED / path.name)
        self._one.step(f"commits of {table.kind} before {newest} are cleaned up")
        table.states = {newest: table.now.copy()}
        self._because("cleaned")

    def _messages(self, count: int) -> list[tuple[str, bytes]]:
        """Messages that no log has had yet, of a few sizes."""
        made = []
        for _ in range(count):
            self._sent += 1
            pad = "x" * self._one.dice.choice([0, 0, 40, 700])
            text = f'{{"id": "k{self._one.dice.randrange(4)}", "n": {100_000 + self._sent}, "pad": "{pad}"}}'
            bad = self._one.dice.random() < 0.2
            made.append((self._one.dice.choice(["Odd", TYPED_TOPIC]), text[1 if bad else 0 :].encode()))
        return made

    def _table(self) -> ModelTable | None:
        """One of the tables that are there."""
        there = [table for table in self._tables if table.version() >= 0]
        return self._one.dice.choice(there) if there else None

    def _note(self, table: ModelTable) -> None:
        table.states[table.version()] = table.now.copy()

    def _because(self, reason: str) -> None:
        for concerned in (*SELECTIONS, "checkpoint") if reason == "cut" else SELECTIONS:
            self._reasons[concerned].add(reason)

    def _sql(self, statement: str) -> bool:
        """Whether Delta did it: what it refuses is no step."""
        try:
            self._spark.sql(statement).collect()
        except (PySparkException, Py4JJavaError):
            return False
        return True
