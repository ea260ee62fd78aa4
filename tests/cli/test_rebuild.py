"""``rmq rebuild``: Java's bytes, a report, and the exit codes of the job."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jobs.rebuild
from tests.cli.conftest import Rmq, one_line
from tests.support.processes import warm_processes
from tests.support.stores.store_files import flip, tree

Golden = Callable[[str], Path]


def sizes(settings: Any) -> list[str]:
    return [
        "--consumequeue-file-bytes", str(settings.consumequeue_file_bytes),
        "--index-slots", str(settings.index_slots),
        "--index-entries", str(settings.index_entries),
        "--delay-levels", settings.delay_levels,
    ]  # fmt: skip


def same_as_java(out: Path, expected: Path) -> bool:
    ours, theirs = tree(out / "index"), tree(expected / "index")
    return [ours[name] for name in sorted(ours)] == [theirs[name] for name in sorted(theirs)] and all(
        tree(out / name) == tree(expected / name) for name in ("consumequeue", "consumequeue_ext")
    )


def test_a_rebuild_writes_javas_bytes_and_a_report(
    rmq: Rmq, golden: Golden, golden_name: str, golden_settings: Any, tmp_path: Path
) -> None:
    directory, out, file = golden(golden_name), tmp_path / "out", tmp_path / "report.json"
    arguments = [*sizes(golden_settings[golden_name]), "--report", file, "--workers", 1, "--json"]
    done = rmq("rebuild", directory / "store", "--out", out, *arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    assert same_as_java(out, directory / "expected")
    report = json.loads(done.stdout.splitlines()[-1])
    assert report == json.loads(file.read_text())
    assert {"job", "store", "messages", "bytes", "seconds", "bytes_per_second"} <= set(report)
    assert report["job"] == "rebuild"


def test_a_plan_has_no_count_of_an_index_that_it_does_not_make(rmq: Rmq, copy_of: Golden) -> None:
    done = rmq("rebuild", copy_of("mixed"), "--plan", "--workers", 1)
    assert done.exit_code == 0
    assert "3,234 units" in done.stdout
    assert "Index" not in done.stdout


def test_in_place_the_old_files_are_replaced(rmq: Rmq, copy_of: Golden, golden: Golden, golden_settings: Any) -> None:
    store = copy_of("mixed")
    unit_file = store / "consumequeue" / "Orders" / "0" / f"{0:020d}"
    unit_file.write_bytes(bytes(2000))
    done = rmq("rebuild", store, *sizes(golden_settings["mixed"]), "--workers", 2)
    assert done.exit_code == 0
    assert same_as_java(store, golden("mixed") / "expected")
    for part in ("3,234 messages", "3,234 units", "6,406 entries", "findings", "none"):
        assert part in done.stdout
    assert all(len(line.rstrip()) <= 80 for line in done.stdout.splitlines() if str(store) not in line)


def test_findings_are_listed_and_exit_1(
    rmq: Rmq, copy_of: Golden, golden_settings: Any, expected_lines: Callable[[str], list[bytes]]
) -> None:
    store = copy_of("mixed")
    offset = json.loads(expected_lines("mixed")[1000])["physical_offset"]
    flip(store, offset + 4, 1048576)
    done = rmq("rebuild", store, *sizes(golden_settings["mixed"]))
    assert done.exit_code == 1
    for part in ("commitlog.damaged", "no record's magic number", "commitlog.queue_offset.gap", "replica"):
        assert part in " ".join(done.stdout.split())
    again = rmq("rebuild", store, *sizes(golden_settings["mixed"]), "--json")
    assert again.exit_code == 1
    report = json.loads(again.stdout)
    assert report["finding_counts"]["commitlog.damaged"] == 1
    assert report["findings"][0]["physical_offset"] == offset


@pytest.mark.parametrize(("what", "left"), [("consumequeue", "consumequeue"), ("index", "index")])
def test_what_chooses_what_is_made(
    rmq: Rmq, golden: Golden, golden_settings: Any, tmp_path: Path, what: str, left: str
) -> None:
    arguments = [*sizes(golden_settings["mixed"]), "--what", what, "--workers", 1]
    assert rmq("rebuild", golden("mixed") / "store", "--out", tmp_path / "out", *arguments).exit_code == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == [left]


@pytest.mark.parametrize("given", [False, True])
def test_only_live_topics_reads_the_stores_own_topics_or_a_named_file(
    rmq: Rmq, copy_of: Golden, golden_settings: Any, tmp_path: Path, given: bool
) -> None:
    store, out = copy_of("mixed"), tmp_path / "out"
    own = store / "config" / "topics.json"
    table = json.dumps({"topicConfigTable": {"Orders": {"topicName": "Orders"}}})
    file = tmp_path / "topics.json" if given else own
    file.write_text(table)
    options = ["--only-live-topics", *(["--topics-json", file] if given else []), "--workers", 1]
    assert rmq("rebuild", store, "--out", out, *sizes(golden_settings["mixed"]), *options).exit_code == 0
    assert [path.name for path in (out / "consumequeue").iterdir()] == ["Orders"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--what", "all-of-it"], "--what all-of-it: give all, consumequeue or index"),
        (["--consumequeue-file-bytes", "2001"], "--consumequeue-file-bytes 2001: must be a multiple of 20"),
        (["--delay-levels", "1s 2x"], "not a delay level: '2x' in '1s 2x'"),
        (["--only-live-topics", "--topics-json", "/nowhere.json"], "--topics-json /nowhere.json: no such file"),
        (["--only-live-topics", "--topics-json", "{store}/config/timercheck"], "config/timercheck: bad JSON"),
        (
            ["--only-live-topics", "--topics-json", "{store}/config/delayOffset.json"],
            "delayOffset.json: names no topic",
        ),
        (["--topics-json", "/nowhere.json"], "--topics-json /nowhere.json: only with --only-live-topics"),
        (["--report", "/nowhere/report.json"], "--report /nowhere/report.json: no such directory"),
        (
            ["--plan", "--report", "{store}/config/topics.json"],
            "config/topics.json: is in the store. Give a file outside",
        ),
        (["--workers", "0"], "Invalid value for '--workers'"),
        (
            ["--consumequeue-file-bytes", "6000000"],
            "files here have 2000 bytes, not 6000000",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(rmq: Rmq, copy_of: Golden, arguments: list[str], said: str) -> None:
    store = copy_of("mixed")
    before = tree(store)
    done = rmq("rebuild", store, *(argument.format(store=store) for argument in arguments))
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in one_line(done.stderr)
    assert tree(store) == before


def test_the_page_has_each_option_of_command_and_job(rmq: Rmq) -> None:
    page = (
        (Path(__file__).parents[2] / "docs" / "variants.md")
        .read_text()
        .partition("## Options of a rebuild\n")[2]
        .partition("\n## ")[0]
    )
    told = set(re.findall(r"--[a-z-]+", "".join(line for line in page.splitlines() if line.startswith("| `--"))))
    of_job = {option for action in jobs.rebuild.parser()._actions for option in action.option_strings}
    of_command = set(re.findall(r"^  (?:-c, )?(--[a-z-]+)", rmq("rebuild", "--help").stdout, re.MULTILINE))
    assert told == of_command
    assert of_job - {"-h", "--help", "-c", "--store"} == told - {"--workers", "--json"}


def test_after_the_pages_two_rebuilds_the_only_finding_is_a_deleted_topic(
    rmq: Rmq, copy_of: Golden, golden_settings: Any
) -> None:
    store = copy_of("mixed")
    topics = store / "config" / "topics.json"
    table = json.loads(topics.read_text())
    del table["topicConfigTable"]["Clicks"]
    topics.write_text(json.dumps(table))
    given = [*sizes(golden_settings["mixed"]), "--workers", 1]
    assert (
        rmq("rebuild", store, "--what", "consumequeue", "--only-live-topics", "--accept", "Clicks", *given).exit_code
        == 0
    )
    assert rmq("rebuild", store, "--what", "index", *given).exit_code == 0
    assert not (store / "consumequeue" / "Clicks").exists()
    done = rmq("verify", store, "--workers", 1, "--json")
    assert set(json.loads(done.stdout)["finding_counts"]) - {"store.layout"} == {"consumequeue.topic.deleted"}
    assert done.exit_code == 0


def test_a_locked_store_is_refused(rmq: Rmq, copy_of: Golden, golden_settings: Any) -> None:
    store = copy_of("mixed")
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX, 1); print(flush=True)\n"
        "sys.stdin.read()"
    )
    holder = warm_processes.Popen(
        [sys.executable, "-c", code, str(store / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        done = rmq("rebuild", store, *sizes(golden_settings["mixed"]))
        assert holder.stdin is not None
        holder.stdin.close()
    assert done.exit_code == 2
    assert "a running broker has locked this store" in one_line(done.stderr)


SLOW = """
import os, sys, time
from rmq_offline.rebuild import tasks
def slow(*arguments, **options):
    os.write(1, b"working\\n")
    time.sleep(60)
tasks.scan_split = slow
from rmq_cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("to_all", [False, True], ids=["to the first process", "to all, as a terminal does"])
def test_ctrl_c_ends_the_workers_at_once_and_silently(
    golden: Golden, golden_settings: Any, tmp_path: Path, to_all: bool
) -> None:
    arguments = [
        "rebuild",
        golden("mixed") / "store",
        "--out",
        tmp_path,
        "--workers",
        2,
        *sizes(golden_settings["mixed"]),
    ]
    process = warm_processes.Popen(
        [sys.executable, "-c", SLOW, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "working\n"
        begin = time.monotonic()
        if to_all:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(30) == 130
        assert time.monotonic() - begin < 20
    assert said == "rmq: interrupted\n"
