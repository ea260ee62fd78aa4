"""``jobs/rebuild.py`` as its users start it."""

import argparse
import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs import rebuild, verify
from rmq_offline.job_arguments import EXIT_FAILED, job_parser
from rmq_offline.spark.job import run_job
from tests.support.processes import warm_processes
from tests.support.stores.store_files import tree

JOB = Path(__file__).parents[2] / "jobs" / "rebuild.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return warm_processes.run(
        [sys.executable, str(JOB), *arguments], capture_output=True, text=True, timeout=300, check=False
    )


def sizes(settings: Any) -> list[str]:
    return [
        "--consumequeue-file-bytes", str(settings.consumequeue_file_bytes),
        "--index-slots", str(settings.index_slots),
        "--index-entries", str(settings.index_entries),
        "--delay-levels", settings.delay_levels,
    ]  # fmt: skip


def check_rebuilt(directory: Path, out: Path, report: dict[str, Any]) -> None:
    """That a rebuild of a golden store gave Java's bytes, and reports what it did."""
    lines = (directory / "expected" / "messages.jsonl").read_text().splitlines()
    assert report["job"] == "rebuild"
    assert report["messages"] == len(lines)
    assert report["bytes"] == sum(json.loads(line)["size"] for line in lines)
    assert report["seconds"] > 0
    assert report["bytes_per_second"] > 0
    expected = directory / "expected"
    for name in ("consumequeue", "consumequeue_ext"):
        assert tree(out / name) == tree(expected / name)
    ours, theirs = tree(out / "index"), tree(expected / "index")
    assert [ours[name] for name in sorted(ours)] == [theirs[name] for name in sorted(theirs)]


@pytest.mark.spark
def test_the_job_writes_javas_bytes_and_a_report(
    spark: SparkSession, golden: Callable[[str], Path], golden_name: str, golden_settings: Any, tmp_path: Path
) -> None:
    arguments = ["--store", str(golden(golden_name) / "store"), "--out", str(tmp_path / "out")]
    parsed = rebuild.parser().parse_args([*arguments, *sizes(golden_settings[golden_name])])
    rebuild.check(parsed)
    report, code = rebuild.main(parsed, spark)
    assert code == 0
    check_rebuilt(golden(golden_name), tmp_path / "out", report)


@pytest.mark.spark
@pytest.mark.long
def test_a_process_of_its_own_prints_its_report_and_writes_it(
    golden: Callable[[str], Path], golden_settings: Any, tmp_path: Path
) -> None:
    out, report_file = tmp_path / "out", tmp_path / "report.json"
    done = run(
        "--store",
        str(golden("mixed") / "store"),
        "--out",
        str(out),
        "--report",
        str(report_file),
        *sizes(golden_settings["mixed"]),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert json.loads(report_file.read_text()) == report
    check_rebuilt(golden("mixed"), out, report)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--store", "nowhere"], "nowhere: no such store"),
        (["--store", "{golden}", "--out", "{out}", "--consumequeue-file-bytes", "33"], "--consumequeue-file-bytes 33"),
        (["--store", "{golden}", "--consumequeue-file-bytes", "4000"], "--consumequeue-file-bytes 2000"),
        (["--store", "{golden}", "--delay-levels", "1s 5parsecs"], "5parsecs"),
        (["--what", "everything", "--store", "{golden}"], "--what"),
        ([], "--store"),
        (["--store", "{golden}", "--plan", "--report", "{golden}/config/topics.json"], "is in the store. Give a file"),
    ],
    ids=["missing", "size", "other_sizes", "levels", "what", "no_store", "report"],
)
def test_an_impossible_rebuild_is_reported_in_one_line(
    golden: Callable[[str], Path], tmp_path: Path, arguments: list[str], said: str
) -> None:
    store = golden("mixed") / "store"
    before = sorted(str(path) for path in store.rglob("*"))
    given = [text.format(golden=store, out=tmp_path / "out") for text in arguments]
    done = run(*given)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert sorted(str(path) for path in store.rglob("*")) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("module", [rebuild, verify])
def test_directories_are_those_of_the_driver(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors run elsewhere, where a relative path is another one."""
    monkeypatch.chdir(tmp_path)
    other = "--out" if module is rebuild else "--work"
    parsed = vars(module.parser().parse_args(["--store", "../store", other, "new/deep"]))
    assert (parsed["store"], parsed[other[2:]]) == ([f"{tmp_path}/../store"], f"{tmp_path}/new/deep")
    uri = "s3://b/x?endpoint_override=h:1"
    parsed = vars(module.parser().parse_args(["--store", uri, other, f"{uri}/y"]))
    assert (parsed["store"], parsed[other[2:]]) == ([uri], f"{uri}/y")


@pytest.mark.parametrize("report", [[], ["--report", "r.json"]])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("AWS Error SLOW_DOWN"), "AWS Error SLOW_DOWN"),
        (OSError(errno.EIO, "Input/output error", "/disk/file"), "/disk/file: Input/output error"),
    ],
)
def test_an_error_of_the_system_is_reported_with_its_details(
    capsys: pytest.CaptureFixture[str], error: OSError, said: str, report: list[str]
) -> None:
    def check(_: argparse.Namespace) -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        run_job(job_parser("try", "Fails."), rebuild.main, check=check, arguments=report)
    assert ended.value.code == EXIT_FAILED
    assert capsys.readouterr().err == f"try.py: {said}\n"
