"""Rebuilds of the golden stores equal what Java rebuilds of them, byte for byte."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_offline.tasks.runner import ProcessRunner, Runner
from tests.conftest import GoldenSettings
from tests.support.stores.rebuilt_stores import (
    Splits,
    built,
    commitlog_only,
    copy_of,
    golden_options,
    rebuild,
    snapshot,
)
from tests.support.stores.store_files import tree

RUNNERS = {
    "one process": ProcessRunner(1),
    "two processes": ProcessRunner(2),
    "20 splits": Splits(20),
    "150 splits": Splits(150),
    "60 splits in two processes": Splits(60, ProcessRunner(2)),
}


@pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)
def test_a_rebuild_elsewhere_is_java_s(
    golden: Callable[[str], Path],
    golden_name: str,
    golden_settings: dict[str, GoldenSettings],
    runner: Runner,
    tmp_path: Path,
) -> None:
    directory = golden(golden_name)
    before = snapshot(directory / "store")
    report = rebuild(directory / "store", tmp_path, golden_options(golden_settings[golden_name]), runner)
    expected = built(directory / "expected")
    assert built(tmp_path) == expected
    assert (report.finding_counts, report.findings) == ({}, ())
    assert report.messages == len((directory / "expected" / "messages.jsonl").read_text("utf-8").splitlines())
    assert report.files == len(expected.queues) + len(expected.index)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in (directory / "expected").iterdir()} - {
        "messages.jsonl"
    }
    assert snapshot(directory / "store") == before


def test_a_rebuild_in_place_touches_nothing_else(
    golden: Callable[[str], Path], golden_name: str, golden_settings: dict[str, GoldenSettings], tmp_path: Path
) -> None:
    store = copy_of(golden(golden_name) / "store", tmp_path / "store")
    before, former = snapshot(store), built(store)
    rebuild(store, None, golden_options(golden_settings[golden_name]))
    assert built(store / "quarantine" / "0001") == former
    assert built(store) == built(golden(golden_name) / "expected")
    assert rest_of(snapshot(store)) == rest_of(before)


def rest_of(found: dict[str, tuple[int, int, bytes]]) -> dict[str, tuple[int, int, bytes]]:
    """All but what a rebuild in place makes anew; the lock is a broker's own file."""
    made = ("consumequeue", "index", "quarantine")
    return {path: entry for path, entry in found.items() if not path.startswith(made) and path not in {".", "lock"}}


def test_a_store_of_nothing_but_a_commitlog_is_completed(
    golden: Callable[[str], Path], golden_settings: dict[str, GoldenSettings], tmp_path: Path
) -> None:
    store = commitlog_only(golden("exotic_crc") / "store", tmp_path / "store")
    rebuild(store, None, golden_options(golden_settings["exotic_crc"]))
    assert built(store) == built(golden("exotic_crc") / "expected")
    assert {path.name for path in store.iterdir()} == {
        "commitlog", "consumequeue", "consumequeue_ext", "index", "lock",
    }  # fmt: skip


@pytest.mark.parametrize("what", ["consumequeue", "index"])
def test_files_that_were_not_requested_stay(
    golden: Callable[[str], Path], golden_settings: dict[str, GoldenSettings], tmp_path: Path, what: str
) -> None:
    store = copy_of(golden("exotic") / "store", tmp_path / "store")
    before = {name: snapshot(store / name) for name in ("consumequeue", "index")}
    options = replace(
        golden_options(golden_settings["exotic"]), consumequeue=what == "consumequeue", index=what == "index"
    )
    report = rebuild(store, None, options)
    for name, found in before.items():
        assert (snapshot(store / name) == found) == (name != what)
        assert (tree(store / name) == tree(golden("exotic") / "expected" / name)) or name == "index"
    assert (report.units > 0, report.index_entries > 0) == (what == "consumequeue", what == "index")


def test_two_rebuilds_write_the_same_bytes_and_names(
    golden: Callable[[str], Path], golden_settings: dict[str, GoldenSettings], tmp_path: Path
) -> None:
    for name, runner in (("a", ProcessRunner(1)), ("b", Splits(33))):
        rebuild(golden("mixed") / "store", tmp_path / name, golden_options(golden_settings["mixed"]), runner)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    rebuild(golden("mixed") / "store", tmp_path / "a", golden_options(golden_settings["mixed"]))
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
