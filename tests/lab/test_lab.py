"""The lab, short; and that it would find something."""

import random
import re
import secrets
from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from rmq_core.store.commitlog.flush import LogFlusher
from rmq_formats.errors import FormatError
from rmq_lakehouse.exactly_once import ExactlyOnceTable
from tests.lab import brokers, calls, damage, frames, kills
from tests.lab.__main__ import main
from tests.lab.decoders import fuzz
from tests.lab.decoders.target import Target
from tests.lab.parts import PARTS
from tests.lab.rounds import Round, Tally
from tests.lab.run import Runner, table
from tests.lab.tables import schedule as tables
from tests.lab.totals import Totals

FIXED_SEED = 17


def played(part: str, seed: int, rounds: int = 1) -> tuple[Tally, list[str]]:
    told: list[str] = []
    runner = Runner([PARTS[part]], {part: seed}, told.append)
    runner.play(rounds)
    return runner.tallies[part], told


@pytest.mark.parametrize(
    "part", [name for name in PARTS if name not in {"lives", "tables"}]
)  # see test_lives.py, below
@pytest.mark.long
def test_all_holds_at_a_fixed_seed_and_at_another(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "_kill_brokers", lambda _one: None)  # tests/broker/test_kill.py does
    monkeypatch.setattr(kills, "_WRITERS", 3)
    monkeypatch.setattr(damage, "_FLIPS", 5)
    monkeypatch.setattr(frames, "_CODES_AT_LIMITS", 0)  # tests/broker/test_limits.py has them
    monkeypatch.setattr(brokers, "_PICTURES", 2)  # tests/broker/test_power.py has more of them
    monkeypatch.setattr(frames, "_MAX_SECONDS", 1.0)  # beside other tests
    monkeypatch.setattr(calls, "_MAX_SECONDS", 2.0)
    monkeypatch.setattr(calls, "_METHODS_AT_LIMITS", 1)
    monkeypatch.setattr(calls, "_AT_RANDOM", 60)
    for seed in (FIXED_SEED, secrets.randbits(40)):
        tally, told = played(part, seed)
        assert told == []
        assert tally.cases > 0


@pytest.mark.long
def test_tables_hold_at_a_fixed_seed_and_at_a_fresh_one(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_STEPS", 3)
    for seed in (FIXED_SEED, secrets.randbits(40)):
        tally, told = played("tables", seed)
        assert told == []
        assert tally.cases == 3


@pytest.mark.long
def test_an_exporter_that_lands_again_what_has_landed_is_found(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_STEPS", 0)
    monkeypatch.setattr(tables, "_KINDS", (("raw",),))
    monkeypatch.setattr(ExactlyOnceTable, "_resume_offset", lambda _self, _found: 0)
    tally, told = played("tables", FIXED_SEED)
    assert tally.violations == 1
    assert re.search(r"raw has \d+ rows twice", told[0])


def test_a_store_that_forces_nothing_is_found_and_the_seed_finds_it_again() -> None:
    with patch.object(LogFlusher, "_fsync_files_from", lambda _self, _begin: None):
        tally, told = played("power", FIXED_SEED, 3)
        again = played("power", FIXED_SEED, 3)[1]
    assert tally.violations > 0
    assert "acknowledged" in told[0]
    assert "again: make lab PARTS=power SEED=" in told[0]
    assert len(told[0].splitlines()) < 50
    assert told == again


def _untyped(data: bytes, _dice: random.Random) -> None:
    raise FormatError("as it should be") if data[:1] == b"a" else KeyError("out of the depths")


def test_a_decoder_with_an_untyped_error_is_found_with_its_input(tmp_path: Path) -> None:
    with patch.object(fuzz, "targets", lambda: (Target("broken", [b"abc"], _untyped),)):
        tally, told = played("decoders", FIXED_SEED)
    assert tally.violations == 1
    assert "KeyError: 'out of the depths'" in told[0]
    assert "broken reads b'" in told[0]


def test_rounds_of_a_seed_are_the_same() -> None:
    first, second = (Round("power", 5, Path("/nowhere")).dice.random() for _ in range(2))
    assert first == second
    assert first != Round("decoders", 5, Path("/nowhere")).dice.random()


def test_sums_are_kept_and_a_seed_counts_once(tmp_path: Path) -> None:
    totals = Totals(tmp_path / "lab" / "totals.jsonl")
    assert totals.next_seed("power") == 0
    assert totals.note("power", 0, 5, Tally(rounds=5, cases=100))
    assert totals.note("decoders", 0, 7, Tally(rounds=7, cases=9))
    assert totals.next_seed("power") == 5
    assert not totals.note("power", 4, 6, Tally(rounds=2, cases=40))
    assert totals.note("power", 5, 6, Tally(rounds=1, cases=11, faults=3))
    assert totals.sums()["power"] == Tally(rounds=6, cases=111, faults=3)
    assert "111 states" in table(totals.sums())


def test_the_command_prints_a_table_and_goes_on_where_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "_INPUTS", 20)

    def run(*options: str) -> tuple[int, str]:
        code = main(["--totals", str(tmp_path / "totals"), *options])
        return code, "".join(capsys.readouterr())

    assert run("--parts", "nowhere") == (2, f"no such part: nowhere; the parts are {', '.join(PARTS)}\n")
    code, told = run("--parts", "decoders", "--rounds", "1")
    assert code == 0
    assert "inputs" in told
    assert "played before" in run("--parts", "decoders", "--rounds", "1", "--seed", "0")[1]
    assert "decoders       1" in run("--total")[1]
    with patch.object(fuzz, "targets", lambda: (Target("broken", [b"bcd"], _untyped),)):
        assert run("--parts", "decoders", "--rounds", "1")[0] == 1
    with patch.object(fuzz, "targets", lambda: (Target("stopped", [b"a"], _stop),)):
        code, told = run("--parts", "decoders", "--rounds", "9")
    assert code == 0
    assert "stopped" in told
    assert Totals(tmp_path / "totals").sums()["decoders"].rounds == 2  # not the one that was stopped


def _stop(_data: bytes, _dice: random.Random) -> None:
    raise KeyboardInterrupt


def test_the_page_tells_of_each_part() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text("utf-8")
    assert re.findall(r"^\| `(\w+)` \| (?!\d)", page, re.MULTILINE)[: len(PARTS)] == list(PARTS)
