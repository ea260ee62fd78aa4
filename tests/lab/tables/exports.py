"""Exports of a round's store: plain, killed, beside another one, from an offset; each is judged by the model."""

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from jobs import export_delta
from rmq_formats.errors import RmqError
from rmq_formats.spark.sources import register_all
from rmq_lakehouse.command.options import export_options
from tests.lab.rounds import Round
from tests.lab.tables.changes import Reasons
from tests.lab.tables.model import SCHEMA, TYPED_TOPIC, Key, ModelLog, ModelTable, Rows, State, forget
from tests.lab.tables.seams import KilledError, Seams, kill

_MAX_SEAMS = 45
_FRESH = 0.3  # of the drivers have not read a table's log before, as a new process
_OURS = "rmq_formats.errors."
_AFTER_END = re.compile(r"has rows after offset (\d+), the end of the CommitLog. Delete these rows first")


@dataclass(slots=True)
class Told:
    """How an export ended: with a report, or with the line of an error."""

    report: dict[str, Any] | None = None
    refusal: str = ""
    was_killed: bool = False


@dataclass(frozen=True, slots=True)
class Before:
    """A table as it was before an export."""

    version: int
    state: State


class Exports:
    """Exports of one round; ``grow`` appends to the log."""

    def __init__(
        self,
        one: Round,
        spark: SparkSession,
        log: ModelLog,
        tables: Sequence[ModelTable],
        reasons: Reasons,
        grow: Callable[[], None],
    ) -> None:
        self._grow = grow
        self._one, self._spark, self._log, self._tables = one, spark, log, tables
        self._reasons = reasons
        self._is_raw_alone = [table.kind for table in tables] == ["raw"]
        self._accepted: set[Key] = set()  # rows of a log that is gone, behind which --from-offset went on

    def any(self) -> None:
        """One export, in one of the ways."""
        chance = self._one.dice.random()
        if chance < 0.35:
            self._killed()
        elif chance < 0.5:
            self._beside_another()
        elif chance < 0.6:
            self.again(self._selection())
        else:
            self.export()

    def export(self, selection: str | None = None) -> bool:
        """An export that nothing disturbs; whether it was not refused."""
        selection = selection or self._selection()
        arguments = self._arguments(selection)
        before = self._before()
        told = self._run(arguments)
        self._one.step(f"export {selection} {' '.join(arguments[4:])}: {told.refusal or told.report}"[:400])
        self._judge(selection, told, before, None)
        if told.report is not None and "raw" in told.report["exports"]:
            added = len(self._tables[0].now.rows) - len(before[0].state.rows)
            self._one.demand(told.report["messages"] >= added == told.report["exports"]["raw"], "it counts wrongly")
        return told.report is not None

    def again(self, selection: str) -> None:
        """What is missing from an offset on lands."""
        landed = [table.now.landed.get(selection, -1) for table in self._tables]
        begin = self._one.dice.choice(
            [0, max(0, *landed) if len(landed) > 1 else max(0, landed[0]), max(0, min(landed))]
        )
        arguments = [*self._base(selection), "--from-offset", str(begin)]
        before = self._before()
        told = self._run(arguments)
        self._one.step(f"export {selection} --from-offset {begin}: {told.refusal or told.report}"[:400])
        if "last export of" in told.refusal:  # less than the model has, where a run was killed
            self._reasons[selection].add("restored")
        self._judge(selection, told, before, begin)

    def settle(self) -> None:
        """At the end a run succeeds: where it is refused, from the offset 0 on it is not.

        Rows that the log does not reach may have to be deleted before, as the refusal says.
        """
        for selection in sorted({"all", self._selection()}):
            if not self.export(selection):
                before = self._before()
                again = [*self._base(selection), "--from-offset", "0", "--fail-on-data-loss", "false"]
                told = self._run(again)
                if wanted := _AFTER_END.search(told.refusal):
                    self._one.step(f"export {selection} --from-offset 0 is refused: {told.refusal}"[:400])
                    self._delete_behind(int(wanted[1]))
                    before = self._before()
                    told = self._run(again)
                self._one.step(f"export {selection} --from-offset 0 at last: {told.refusal or told.report}"[:400])
                self._one.demand(told.report is not None, f"refused for good: {told.refusal}")
                self._judge(selection, told, before, 0)
                self._one.demand(self.export(selection), "refused after it was landed again")

    def _delete_behind(self, end: int) -> None:
        """Delete the rows of all tables from an offset of the log on."""
        for table in self._tables:
            if table.version() < 0:
                continue
            self._spark.sql(f"DELETE FROM {table.sql} WHERE physical_offset >= {end}").collect()
            is_keyed = table.kind == "keyed"
            for key, row in list(table.now.rows.items()):
                if (row[0] if is_keyed else key) >= end:
                    del table.now.rows[key]
            table.states[table.version()] = table.now.copy()
        self._one.step(f"rows from {end} on are deleted")

    def _killed(self) -> None:
        selection, before = self._selection(), self._before()
        arguments = self._arguments(selection)
        seams = Seams(self._one.dice.randrange(_MAX_SEAMS), kill)
        with seams.watched():
            told = self._run(arguments)
        told.was_killed = seams.hit is not None
        ended = f"killed {seams.hit}" if told.was_killed else told.refusal or told.report
        self._one.step(f"export {selection} {' '.join(arguments[4:])}: {ended}"[:400])
        if told.was_killed:
            self._one.fault()
        self._judge(selection, told, before, None)

    def _beside_another(self) -> None:
        """Another exporter has a whole turn within one's."""
        selection, before = self._selection(), self._before()
        mine, others = self._arguments(selection), self._arguments(selection, "other")
        ended: list[Told] = []

        def other() -> None:
            if self._one.dice.random() < 0.4:
                self._grow()
            thread = threading.Thread(target=lambda: ended.append(self._run(others, self._other_session())))
            thread.start()
            thread.join()

        seams = Seams(self._one.dice.randrange(_MAX_SEAMS), other)
        with seams.watched():
            told = self._run(mine)
        self._one.step(f"export {selection} {' '.join(mine[4:])}: {told.refusal or told.report}"[:400])
        for beside in ended:
            self._one.fault()
            self._one.step(f"  {seams.hit}, another: {' '.join(others[4:])}: {beside.refusal or beside.report}"[:400])
        successful = [each for each in [told, *ended] if each.report is not None]
        if not self._reasons[selection]:
            self._one.demand(len(successful) == 1 + len(ended), f"refused without a reason: {told} {ended}")
        self._judge(selection, successful[0] if successful else told, before, None)

    def _other_session(self) -> SparkSession:
        """A driver of its own, but for the JVM."""
        other = self._spark.newSession()
        register_all(other)
        return other

    def _selection(self) -> str:
        """Messages to export, of topics that the log has."""
        while {record.topic for record in self._log.records} < {"Odd", TYPED_TOPIC}:
            self._grow()
        chance = self._one.dice.random()
        if not self._is_raw_alone or chance >= 0.3:
            return "all"
        return "Odd" if chance < 0.15 else TYPED_TOPIC

    def _base(self, selection: str) -> list[str]:
        given = ["--store", str(self._log.root)]
        paths = {table.kind: str(table.path) for table in self._tables}
        given += ["--table", paths["raw"]] if "raw" in paths else ["--store-id", str(self._log.root)]
        if self._is_raw_alone:
            return given if selection == "all" else [*given, "--topics", selection]
        kind = "keyed" if "keyed" in paths else "typed"
        topic = {"topic": TYPED_TOPIC, "format": "json", "schema": SCHEMA, "table": paths[kind]}
        spec = self._one.work / "spec.json"
        spec.write_text(json.dumps({"topics": [topic | ({"key": ["id"]} if kind == "keyed" else {})]}))
        given += ["--typed", str(spec)]
        return [*given, "--dlq-table", paths["dead"]] if "dead" in paths else given

    def _arguments(self, selection: str, checkpoint: str = "checkpoint") -> list[str]:
        given, dice = self._base(selection), self._one.dice
        if dice.random() < 0.4:
            given += ["--mode", "available-now"]
            if dice.random() < 0.5:
                given += ["--max-bytes-per-trigger", str(dice.choice([600, 2000]))]
            if "--table" not in given or checkpoint == "other" or dice.random() < 0.5:
                given += ["--checkpoint", str(self._one.work / f"{checkpoint}-{selection}")]
        if "expired" in self._reasons[selection] and dice.random() < 0.7:
            given += ["--fail-on-data-loss", "false"]
        return given

    def _run(self, arguments: list[str], spark: SparkSession | None = None) -> Told:
        given = export_delta.parser().parse_args(arguments)
        if self._one.dice.random() < _FRESH:
            forget(self._spark)
        try:
            return Told(export_delta.main(export_delta.check(given), spark or self._spark)[0])
        except KilledError:
            return Told(was_killed=True)
        except RmqError as error:
            return Told(refusal=self._line(str(error)))
        except (PySparkException, Py4JError) as error:
            text = str(error)
            if KilledError.__name__ in text:
                return Told(was_killed=True)
            told = next((line for line in reversed(text.splitlines()) if line.strip().startswith(_OURS)), None)
            if told is None:
                raise
            return Told(refusal=self._line(told.partition(": ")[2]))

    def _line(self, text: str) -> str:
        self._one.demand("\n" not in text and len(text) < 600, f"more than a line: {text}")
        return text

    def _before(self) -> list[Before]:
        return [Before(table.version(), table.now) for table in self._tables]

    def _judge(self, selection: str, told: Told, before: list[Before], begin: int | None) -> None:
        """Compare the tables with the model, which goes on from what has landed."""
        if told.report is None and not told.was_killed:
            reasons = self._reasons["checkpoint" if "another --checkpoint" in told.refusal else selection]
            self._one.demand(bool(reasons), f"refused without a reason: {told.refusal}")
        commits = []
        for table, was in zip(self._tables, before, strict=True):
            commits.append(self._judge_table(table, was, selection, told, begin))
        if told.report is not None:
            expired = self._reasons[selection] & {"expired"}
            if all(commits):
                self._reasons[selection] = expired

    def _judge_table(self, table: ModelTable, was: Before, selection: str, told: Told, begin: int | None) -> bool:
        """Whether something was committed."""
        landed = was.state.landed.get(selection, -1)
        records = [record for record in self._log.records if selection in {"all", record.topic}]
        committed = table.committed(self._app_id(table, selection), was.version)
        if told.report is not None:
            end = self._log.end
        else:
            end = landed if committed is None else committed
            if not told.was_killed:
                self._one.demand(committed is None, f"{table.kind}: refused, and committed up to {committed}")
        first = landed if begin is None else begin
        expected = table.with_records(record for record in records if first <= record.offset < end)
        held = table.read(self._spark) if table.version() >= 0 else []
        self._compare(table, held, expected)
        if told.report is not None:
            strange = self._not_of_log(table, expected)
            if begin is not None:
                self._accepted |= strange
            strange -= self._accepted
            self._one.demand(not strange, f"{table.kind} has rows that the log lacks: {sorted(strange)[:5]}")
        table.now = State(expected, {**was.state.landed, selection: end})
        if table.version() >= 0:
            table.states[table.version()] = table.now.copy()
        return committed is not None

    def _compare(self, table: ModelTable, held: list[tuple[Any, tuple[Any, ...]]], expected: Rows) -> None:
        there = dict(held)
        twice = len(held) - len(there)
        lacks, strange = sorted(expected.keys() - there.keys()), sorted(there.keys() - expected.keys())
        other = sorted(key for key in there.keys() & expected.keys() if there[key] != expected[key])
        self._one.demand(
            not (twice or lacks or strange or other),
            f"{table.kind} has {twice} rows twice, lacks {lacks[:5]}, has {strange[:5]} too, has others at {other[:5]}",
        )

    def _not_of_log(self, table: ModelTable, rows: Rows) -> set[Key]:
        """Rows of the stretch that the log has that are no record of it."""
        if table.kind == "keyed":
            return set()
        owed = dict(filter(None, map(table.owes, self._log.records)))
        first = self._log.records[0].offset
        return {key for key, row in rows.items() if int(key) >= first and owed.get(key) != row}

    def _app_id(self, table: ModelTable, selection: str) -> str:
        given = export_delta.parser().parse_args(self._base(selection))
        chosen = export_options(given, {}).selection
        return chosen.app_id if table.kind == "raw" else chosen.of_topic(TYPED_TOPIC).app_id
