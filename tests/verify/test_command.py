"""``rmq verify`` and ``jobs/verify.py``: options, reports, exit codes."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

from jobs import verify as verify_job
from rmq_cli import main, verify
from rmq_formats.errors import OptionError
from rmq_offline.verify.job import refuse_inside_store
from tests.support.processes import warm_processes
from tests.support.stores.store_files import tree
from tests.support.stores.verified_stores import copied, patch

JOB = Path(__file__).parents[2] / "jobs" / "verify.py"
Golden = Callable[[str], Path]
Rmq = Callable[..., Result]


@pytest.fixture(scope="module")
def rmq() -> Rmq:
    if "verify" not in main.COMMANDS:
        main.app.command("verify", cls=main.RmqCommand)(verify.verify)
    runner = CliRunner(env={"COLUMNS": "120"})
    return lambda *arguments: runner.invoke(main.app, ["verify", *(str(argument) for argument in arguments)])


@pytest.fixture
def damaged(golden: Golden, tmp_path: Path) -> Path:
    store = copied(golden("crash") / "store", tmp_path / "store")
    patch(store / "consumequeue" / "Orders" / "1" / f"{0:020d}", 25, b"\x05")
    return store


def job(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(JOB), *map(str, arguments)]
    return warm_processes.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_sound_store_gives_a_summary_and_zero(rmq: Rmq, golden: Golden) -> None:
    done = rmq(golden("mixed") / "store", "--workers", 1)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "sound" in done.stdout
    assert "3,234 messages" in done.stdout
    assert "store.layout" in done.stdout


def test_a_damaged_store_gives_its_findings_with_remedies_and_one(rmq: Rmq, damaged: Path) -> None:
    before = tree(damaged)
    done = rmq(damaged, "--workers", 2)
    assert (done.exit_code, done.stderr) == (1, "")
    assert "consumequeue.unit.dangling" in done.stdout
    assert "Orders/1 #1" in done.stdout
    assert "rmq rebuild" in done.stdout
    assert "Traceback" not in done.stdout
    assert tree(damaged) == before


def test_every_output_can_be_asked_for(rmq: Rmq, damaged: Path, tmp_path: Path) -> None:
    page, table, report = tmp_path / "page.html", tmp_path / "found.parquet", tmp_path / "report.json"
    done = rmq(
        damaged,
        "--json",
        "--html",
        page,
        "--findings",
        table,
        "--findings-format",
        "parquet",
        "--report",
        report,
        "--workers",
        1,
    )
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told == json.loads(report.read_text())
    assert told["finding_counts"]["consumequeue.unit.dangling"] == 1
    assert pq.read_table(table).num_rows == len(told["findings"])
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_settings_that_are_given_are_taken(rmq: Rmq, golden: Golden, golden_settings: Any) -> None:
    settings = golden_settings["mixed"]
    done = rmq(
        golden("mixed") / "store",
        "--json",
        "--workers",
        1,
        "--commitlog-file-bytes",
        settings.commitlog_file_bytes,
        "--consumequeue-file-bytes",
        settings.consumequeue_file_bytes,
        "--index-slots",
        settings.index_slots,
        "--index-entries",
        settings.index_entries,
        "--delay-levels",
        settings.delay_levels,
    )
    assert (done.exit_code, json.loads(done.stdout)["finding_counts"]) == (0, {})
    done = rmq(golden("mixed") / "store", "--json", "--workers", 1, "--delay-levels", "1s 5s")
    assert json.loads(done.stdout)["finding_counts"]["consumequeue.former_delay"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere: no such store"),
        (["{empty}"], "holds no store"),
        (["{golden}", "--consumequeue-file-bytes", "33"], "--consumequeue-file-bytes 33"),
        (["{golden}", "--delay-levels", "1s 5parsecs"], "5parsecs"),
        (["{golden}", "--findings", "x", "--findings-format", "delta"], "jobs/verify.py"),
        (["{golden}", "--html", "{golden}/page.html"], "only read"),
        (["{golden}", "--html", "{empty}/no/page.html"], "no such directory"),
        (["{golden}", "--work", "{golden}"], "only read"),
        ([], "STORE"),
    ],
)
def test_what_cannot_be_run_is_told_in_one_line_and_two(
    rmq: Rmq, golden: Golden, tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = rmq(*(text.format(golden=golden("mixed") / "store", empty=tmp_path) for text in arguments))
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--store", "nowhere"], "nowhere: no such store"),
        (["--store", "{golden}", "--index-slots", "0"], "--index-slots 0"),
        (["--store", "{golden}", "--report", "{golden}/x"], "only read"),
        ([], "--store"),
    ],
)
def test_the_job_refuses_before_it_starts_a_session(golden: Golden, arguments: list[str], said: str) -> None:
    done = job(*(text.format(golden=golden("mixed") / "store") for text in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("store", "work", "inside"),
    [
        ("s3://b/store", "s3://b/store", True),
        ("s3://b/store?endpoint_override=h:1&scheme=http", "s3://b/store/w?endpoint_override=h:1&scheme=http", True),
        ("s3://key:secret@b/store?endpoint_override=http://h:1", "s3a://b//store/w", True),
        ("{here}/store", "file://{here}/store", True),
        ("file://{here}/store", "{here}/store/w", True),
        ("{here}/link", "file:{here}/store/w", True),
        ("s3://b/store", "s3://b/store2", False),
        ("s3://b/store?scheme=http", "s3://b?scheme=http", False),
        ("{here}/store", "s3:/{here}/store", False),
        ("{here}/store", "{here}/store2", False),
    ],
)
def test_a_store_is_known_however_it_is_written(tmp_path: Path, store: str, work: str, inside: bool) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    with pytest.raises(OptionError, match="only read") if inside else nullcontext():
        refuse_inside_store(store.format(here=tmp_path), "--work", work.format(here=tmp_path))


def test_the_job_refuses_a_work_directory_in_the_store_before_it_probes_it(golden: Golden) -> None:
    store = golden("mixed") / "store"
    given = verify_job.parser().parse_args(["--store", str(store), "--work", str(store / "work")])
    with pytest.raises(OptionError, match=r"--work .*only read"):
        verify_job.check(given)


def test_an_error_that_is_a_text_alone_is_told_with_the_store() -> None:
    app = typer.Typer(cls=main.RmqGroup, pretty_exceptions_enable=False)

    @app.command("read", cls=main.RmqCommand)
    def read(store: str) -> None:
        raise OSError(f"AWS Error SLOW_DOWN: {len(store)}")  # as pyarrow raises them

    app.callback()(lambda: None)
    done = CliRunner().invoke(app, ["read", "s3://b/store"])
    assert (done.exit_code, done.stderr) == (2, "rmq: s3://b/store: AWS Error SLOW_DOWN: 12\n")


@pytest.mark.long
@pytest.mark.spark
def test_the_job_finds_what_the_command_finds_and_writes_a_delta_table(rmq: Rmq, damaged: Path, tmp_path: Path) -> None:
    table, page, report = tmp_path / "table", tmp_path / "page.html", tmp_path / "report.json"
    done = job(
        "--store", damaged, "--findings", table, "--findings-format", "delta", "--html", page, "--report", report
    )
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == json.loads(report.read_text())
    command = json.loads(rmq(damaged, "--json", "--workers", 1).stdout)
    for name in ("messages", "bytes", "queues", "units", "finding_counts", "findings"):
        assert told[name] == command[name], name
    assert (table / "_delta_log").is_dir()
    rows = [row for part in table.glob("*.parquet") for row in pq.read_table(part).to_pylist()]
    assert sorted(rows, key=str) == sorted(told["findings"], key=str)
    assert page.exists()
