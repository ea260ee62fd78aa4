"""Conversion of stores with a DLedger CommitLog into classic ones: the same messages, sound files, and what changes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.read.queue_choice import file_queues
from rmq_formats.read.queue_databases import open_queues
from rmq_formats.storage.store_files import open_store
from rmq_formats.store import Store
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.cli.conftest import Rmq, rmq
from tests.conftest import MIXED_DELAY_LEVELS
from tests.layouts.conftest import Untouched, golden_copy, refusal, untouched

__all__ = ["golden_copy", "rmq", "untouched"]  # fixtures
LEVELS = ("--delay-levels", MIXED_DELAY_LEVELS)
DLEDGER = ("dledger", "dledger_crash", "dledger_mixed")
Golden = Callable[[str], Path]


def faults(store: Path) -> set[str]:
    options = VerifyOptions(delay_levels_ms=delay_levels_ms(MIXED_DELAY_LEVELS))
    report = verify_store(str(store), options, ProcessRunner(1))
    return {finding.kind.code for finding in report.findings if finding.kind.severity != "info"}


def halves(store: Path) -> list[StoredMessage]:
    """The half message of each committed one, by the physical offset that this names."""
    found = list(Store(store).messages())
    by_offset = {item.physical_offset: item for item in found}
    return [by_offset[item.prepared_transaction_offset] for item in found if item.prepared_transaction_offset]


@pytest.mark.parametrize("name", DLEDGER)
def test_the_classic_store_has_the_same_messages(
    name: str, rmq: Rmq, golden: Golden, untouched: Untouched, tmp_path: Path
) -> None:
    store, out = golden(name) / "store", tmp_path / "out"
    with untouched(store):
        result = rmq("convert", store, "--to", "classic", "--out", out, "--json", *LEVELS)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert any("offset message id" in change for change in report["changes"])
    before, after = (list(Store(path).messages()) for path in (store, out))
    assert [(item.topic, item.queue_id, item.queue_offset, item.body, item.properties) for item in after] == [
        (item.topic, item.queue_id, item.queue_offset, item.body, item.properties) for item in before
    ]
    assert report["messages"] == len(before)
    assert halves(store) or name == "dledger_mixed"  # whose transactions are none
    assert [(item.queue_id, item.queue_offset) for item in halves(out)] == [
        (item.queue_id, item.queue_offset) for item in halves(store)
    ]
    # DLedger takes a record's time before its turn in the log: a classic log whose times fall was not written so.
    falling = {"commitlog.store_timestamp"} if name == "dledger_crash" else set()
    assert faults(out) == faults(store) | falling
    made = {"checkpoint", "commitlog", "config", "consumequeue", "index"}
    assert {path.name for path in out.iterdir()} - {"compaction"} == made
    assert (out / "compaction").exists() == (store / "compaction").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["dledger_mixed"])
def test_the_older_half_retains_its_offsets(name: str, rmq: Rmq, golden: Golden, tmp_path: Path) -> None:
    rmq("convert", golden(name) / "store", "--to", "classic", "--out", tmp_path / "out")
    for path in (golden(name) / "store" / "commitlog").iterdir():
        assert (tmp_path / "out" / "commitlog" / path.name).read_bytes() == path.read_bytes()


def test_what_cannot_be_converted_is_refused(rmq: Rmq, golden: Golden, untouched: Untouched, tmp_path: Path) -> None:
    store, classic = golden("dledger") / "store", golden("exotic") / "store"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for arguments, words in (
        ((classic, "--to", "classic", "--out", tmp_path / "out"), "has no DLedger CommitLog"),
        ((store, "--to", "none", "--out", tmp_path / "out"), "--to none: give classic"),
        ((store, "--to", "classic", "--out", tmp_path / "full"), "exists already"),
        ((store, "--to", "classic", "--out", store / "out"), "is in the store"),
        ((store, "--to", "classic", "--out", "s3://bucket/out"), "directory of this machine"),
        ((tmp_path / "none", "--to", "classic", "--out", tmp_path / "out"), "no such store"),
        ((golden("lmq") / "store", "--to", "classic", "--out", tmp_path / "out"), "has no DLedger CommitLog"),
        ((store, "--to", "classic", "--out", tmp_path / "out", "--commitlog-file-bytes", 4096), "do not fit into"),
        ((store, "--to", "classic", "--out", tmp_path / "out", "--commitlog-file-bytes", 10**20), "must be at most"),
    ):
        with untouched(store), untouched(classic):
            assert words in refusal(rmq, "convert", *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.mark.parametrize("layout", ["classic", "rocksdb"])
def test_queues_whose_messages_have_expired_keep_their_ends(
    layout: str, rmq: Rmq, golden_copy: Golden, tmp_path: Path
) -> None:
    store, out = golden_copy("dledger_mixed"), tmp_path / "out"
    shutil.rmtree(store / "commitlog")  # the older half has expired, and with it all messages of a queue
    result = rmq("convert", store, "--to", layout, "--out", out, *LEVELS)
    assert result.exit_code == 0, result.output
    before, after = ends(store), ends(out)
    assert len(after) == 16
    assert after == before
    assert faults(out) == set()
    assert not (out / ".classic").exists()


def ends(store: Path) -> dict[tuple[str, int], int]:
    """The end of each queue, by topic and queue id."""
    files = open_store(str(store))
    if files.layouts.queue_database is None:
        return {(queue.files.topic, queue.files.queue_id): queue.max_offset() for queue in file_queues(files)}
    with open_queues(files.storage, files.layouts.queue_database) as database:
        bounds = {queue: database.bound(*queue) for queue in database.all_queues()}
    return {queue: bound.queue_offset + 1 for queue, bound in bounds.items() if bound is not None}


def test_compacted_logs_are_copied_and_what_is_left_out_is_told(rmq: Rmq, golden_copy: Golden, tmp_path: Path) -> None:
    store, out = golden_copy("dledger"), tmp_path / "out"
    log = store / "compaction" / "compactionLog" / "Profiles" / "0" / f"{0:020d}"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"of a compaction")
    (store / "tiered_index_file").mkdir()
    result = rmq("convert", store, "--to", "classic", "--out", out, "--json", *LEVELS)
    assert result.exit_code == 0, result.output
    assert (out / log.relative_to(store)).read_bytes() == b"of a compaction"
    assert json.loads(result.stdout)["changes"][-1].endswith("queues or config: tiered_index_file")
