"""``rmq repair``: plan, report, exit codes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rmq_cli import main
from rmq_formats import Store
from tests.repair.damaged_logs import many_faults
from tests.support.stores.store_files import tree
from tests.support.stores.verified_stores import log_path, patch, sound_store

Rmq = Callable[..., Result]


@pytest.fixture(scope="module")
def rmq() -> Rmq:
    runner = CliRunner(env={"COLUMNS": "160"})
    return lambda *arguments: runner.invoke(
        main.app, ["repair", *(str(argument) for argument in arguments), "--workers", "1", "--delay-levels", "1s 5s"]
    )


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    sound_store(tmp_path / "store", 120)
    many_faults(tmp_path / "store")
    return tmp_path / "store"


def test_without_a_flag_the_plan_is_shown_and_nothing_is_written(rmq: Rmq, damaged: Path) -> None:
    before = tree(damaged)
    done = rmq(damaged)
    assert (done.exit_code, done.stderr) == (1, "")
    for text in (
        "steps to do",
        "write a filler over it",
        "move to the quarantine",
        "commitlog.tail",
        "create the file",
        "notes.txt",
    ):
        assert text in done.stdout
    assert tree(damaged) == before


def test_an_applied_repair_leaves_a_sound_store_and_prints_its_quarantine(rmq: Rmq, damaged: Path) -> None:
    done = rmq(damaged, "--apply")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "repaired; the verification finds nothing" in done.stdout
    assert f"{damaged}/quarantine/0001" in done.stdout
    again = rmq(damaged)
    assert again.exit_code == 0
    assert "steps" not in again.stdout
    assert again.stdout.rstrip().endswith("sound")


def test_properties_that_no_repair_touches_are_told_before_it_and_after_it(rmq: Rmq, tmp_path: Path) -> None:
    store = tmp_path / "store"
    sound_store(store, 120)
    assert rmq(store, "--apply").exit_code == 0
    path, position = log_path(store, Store(store).query(topic="Orders", queue_id=0, offset=3)[0].physical_offset)
    at = path.read_bytes().index(b"TAGS\x01", position)
    patch(path, at + 4, b"=")
    for arguments in ((), ("--plan",), ("--apply",)):
        done = rmq(store, *arguments)
        assert (done.exit_code, done.stderr) == (1, "")
        assert "commitlog.properties" in done.stdout
        assert not done.stdout.rstrip().endswith("sound")


def test_the_report_and_the_manifest_name_each_range(rmq: Rmq, damaged: Path) -> None:
    planned = json.loads(rmq(damaged, "--plan", "--json").stdout)
    told = json.loads(rmq(damaged, "--apply", "--json").stdout)
    assert (planned["applied"], told["applied"]) == (False, True)
    assert planned["steps"] == told["steps"]
    assert (told["clean"], told["left"]) == (True, [])
    assert told["messages_lost"] == planned["messages_lost"] > 0
    manifest = json.loads((damaged / "quarantine" / "0001" / "manifest.json").read_text())
    for stretch in manifest["stretches"]:
        assert {"path", "physical_offset", "size", "held", "code", "fill", "copy"} <= stretch.keys()
        if stretch["copy"]:
            assert (damaged / "quarantine" / "0001" / stretch["copy"]).stat().st_size == stretch["held"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nowhere",), "no such store"),
        (("{store}", "--plan", "--apply"), "give one of them"),
        (("s3://bucket/store",), "local disk"),
        (("{store}", "--index-slots", "0"), "must be 1 or more"),
        (("{store}", "--plan", "--commitlog-file-bytes", f"{10**20}"), "must be at most 2147483647"),
        (("{store}", "--plan", "--consumequeue-file-bytes", f"{20 * 10**20}"), "must be at most 2147483647"),
        (("{store}", "--work", "{store}"), "is in the store"),
    ],
)
def test_an_impossible_repair_prints_one_line_and_exits_with_2(
    rmq: Rmq, damaged: Path, arguments: tuple[str, ...], text: str
) -> None:
    done = rmq(*(argument.format(store=damaged) for argument in arguments))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("rmq: ")
    assert done.stderr.count("\n") == 1
    assert text in done.stderr


@pytest.mark.parametrize("setting", ["mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"])
def test_sizes_of_a_broker_conf_beyond_javas_int_are_refused(
    rmq: Rmq, damaged: Path, tmp_path: Path, setting: str
) -> None:
    (tmp_path / "broker.conf").write_text(f"{setting}={10**20}\n")
    done = rmq(damaged, "--plan", "-c", tmp_path / "broker.conf")
    assert done.exit_code == 2
    assert "must be at most 2147483647" in done.stderr
    assert done.stderr.count("\n") == 1
