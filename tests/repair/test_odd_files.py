"""What stands in a store and is no file of it: named pipes, links to nowhere, names and sizes that cannot be."""

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from rmq_cli.output import json_line
from rmq_formats.errors import StoreError
from rmq_formats.storage.segments import LocalStorage
from rmq_offline.repair import plan
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Severity
from rmq_offline.verify.html.outputs import VerifyOutputs
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.repair.test_damage import log_files, repair
from tests.support.stores.store_files import tree
from tests.support.stores.verified_stores import codes, patch, sound_store, verify

Change = Callable[[Path], object]
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    sound_store(root, 120)
    (root / "checkpoint").write_bytes(bytes(4096))
    return root


def queue_file(store: Path) -> Path:
    return store / "consumequeue" / "Clicks" / "0" / ("0" * 20)


def pipe(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def link(path: Path) -> Path:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to("nowhere")
    return path


def directory(path: Path) -> Path:
    path.unlink()
    path.mkdir()
    return path


def huge(path: Path) -> Path:
    os.truncate(path, 1 << 34)
    return path


def self_link(path: Path) -> Path:
    path.symlink_to(path.parent)
    return path


def far_too_long(path: Path) -> Path:
    os.truncate(path, 1 << 40)
    return path


REPAIRED: dict[str, tuple[Change, set[str]]] = {
    "a queue's file is a pipe": (lambda store: pipe(queue_file(store)), {"consumequeue.unreadable"}),
    "an IndexFile is a pipe": (lambda store: pipe(min((store / "index").iterdir())), {"index.unreadable"}),
    "an IndexFile leads to nowhere": (lambda store: link(min((store / "index").iterdir())), {"index.unreadable"}),
    "the checkpoint is a pipe": (lambda store: pipe(store / "checkpoint"), {"checkpoint.unreadable"}),
    "the checkpoint is a directory": (
        lambda store: directory(store / "checkpoint"),
        {"checkpoint.unreadable"},
    ),
    "the checkpoint has 16 GiB": (
        lambda store: huge(store / "checkpoint"),
        {"checkpoint.unreadable"},
    ),
    "a log file would end beyond 2^63": (
        lambda store: shutil.copy(log_files(store)[0], store / "commitlog" / str((1 << 63) - 1).zfill(20)),
        {"commitlog.foreign"},
    ),
    "a queue's file would end beyond 2^63": (
        lambda store: shutil.copy(queue_file(store), queue_file(store).with_name(str((1 << 63) - 8).zfill(20))),
        {"consumequeue.foreign"},
    ),
    "a queue id above 2^31": (
        lambda store: shutil.copytree(queue_file(store).parent, store / "consumequeue" / "Clicks" / "99999999999"),
        {"store.stray"},
    ),
    "a topic that is no text": (
        lambda store: shutil.copytree(
            store / "consumequeue" / "Clicks", store / "consumequeue" / os.fsdecode(b"\xff\xfe")
        ),
        {"store.stray"},
    ),
    "a log file whose name is no text": (
        lambda store: (store / "commitlog" / os.fsdecode(b"\xff\xfe")).write_bytes(b"x"),
        {"commitlog.foreign"},
    ),
    "a directory in a log file's place": (
        lambda store: directory(log_files(store)[2]),
        {"store.stray", "commitlog.segment.missing"},
    ),
    "a log file with a terabyte of zeros behind its end": (
        lambda store: far_too_long(log_files(store)[-1]),
        {"commitlog.segment.size"},
    ),
    "a queue that is a link to its topic": (
        lambda store: self_link(store / "consumequeue" / "Clicks" / "9"),
        {"store.stray"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REPAIRED)
@pytest.mark.long
def test_an_odd_file_is_reported_and_quarantined_and_the_store_is_sound(store: Path, name: str, tmp_path: Path) -> None:
    change, expected = REPAIRED[name]
    records = verify(store).messages
    change(store)
    found = verify(store)
    assert codes(found).keys() >= expected
    VerifyOutputs(str(tmp_path / "table"), "parquet", str(tmp_path / "page")).write(found, _NOW)
    assert json_line(found.to_dict())
    assert not repair(store, apply=False).is_clean
    done = repair(store)
    assert (done.left, done.is_clean) == ((), True)
    assert json_line(done.to_dict())
    assert codes(verify(store)) == {}
    if "commitlog.segment.missing" not in expected:
        assert verify(store).messages == records


REFUSED: dict[str, tuple[Change, str, set[str]]] = {
    "a log file is a pipe": (
        lambda store: pipe(log_files(store)[1]), "neither a file nor a directory", {"commitlog.segment.unreadable"},
    ),
    "a log file leads to nowhere": (
        lambda store: link(log_files(store)[1]), "a link to nowhere", {"commitlog.segment.unreadable"},
    ),
    "the log leads to nowhere": (
        lambda store: link(store / "commitlog"), "a link to nowhere",
        {"commitlog.segment.unreadable"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_disk_that_may_not_be_mounted_is_reported_and_not_repaired(store: Path, name: str) -> None:
    change, message, expected = REFUSED[name]
    change(store)
    assert codes(verify(store)).keys() >= expected
    before = tree(store / "consumequeue")
    for apply in (False, True):
        with pytest.raises(StoreError, match=message):
            repair(store, apply=apply)
    assert tree(store / "consumequeue") == before
    assert not (store / "quarantine").exists()


@pytest.mark.parametrize("change", [pipe, directory])
def test_a_config_file_that_is_none_is_put_aside_for_its_bak(store: Path, change: Callable[[Path], Path]) -> None:
    topics = store / "config" / "topics.json"
    topics.parent.mkdir()
    topics.touch()
    Path(f"{topics}.bak").write_text('{"topicConfigTable":{"Orders":{},"Clicks":{}}}')
    change(topics)
    mode = topics.lstat().st_mode
    done = repair(store)
    assert (done.left, done.is_clean) == ((), True)
    assert topics.read_bytes() == Path(f"{topics}.bak").read_bytes()
    assert (store / "quarantine" / "0001" / "config" / "topics.json").lstat().st_mode == mode


def test_a_linked_log_is_refused_before_any_change(store: Path) -> None:
    other = next(place for place in ("/dev/shm", "/var/tmp") if Path(place).stat().st_dev != store.stat().st_dev)
    with TemporaryDirectory(dir=other) as mount:
        shutil.copytree(store / "commitlog", mount, dirs_exist_ok=True)
        shutil.rmtree(store / "commitlog")
        (store / "commitlog").symlink_to(mount)
        (store / "commitlog" / "lost+found").mkdir()
        assert codes(verify(store)) == {}
        patch(log_files(store)[1], 500, b"junk" * 9)
        (store / "commitlog" / "notes.txt").write_text("mine\n")
        before = {path.name: path.read_bytes() for path in Path(mount).iterdir() if path.is_file()}
        with pytest.raises(
            StoreError, match=r"commitlog: a symbolic link \(to '.*'\), through which nothing is written"
        ):
            repair(store)
        assert {path.name: path.read_bytes() for path in Path(mount).iterdir() if path.is_file()} == before
        assert not (store / "quarantine").exists()


@pytest.mark.parametrize("name", ["consumequeue", "consumequeue_ext", "index"])
def test_derived_files_that_may_be_on_a_disk_that_is_not_mounted_are_not_made_anew(store: Path, name: str) -> None:
    link(store / name)
    patch(log_files(store)[1], 500, b"junk" * 9)
    before = tree(store / "commitlog")
    for apply in (False, True):
        with pytest.raises(StoreError, match=f"{name}: a link to nowhere"):
            repair(store, apply=apply)
    assert tree(store / "commitlog") == before
    assert not (store / "quarantine").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("commitlog/1", "cannot be written"), ("checkpoint", "cannot be read"), ("index", "cannot be listed")],
)
def test_what_must_not_be_touched_is_refused_before_anything_is_changed(
    store: Path, name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(log_files(store)[1], 500, b"junk" * 9)
    refused = log_files(store)[1] if name == "commitlog/1" else store / name
    real = os.access

    def access(path: Path, mode: int) -> bool:  # root, whom CI may run as, may do everything
        return real(path, mode) and Path(path) != refused

    monkeypatch.setattr(os, "access", access)
    with pytest.raises(StoreError, match=message) as caught:
        repair(store)
    assert str(refused) in str(caught.value)
    assert not (store / "quarantine").exists()


@pytest.mark.parametrize("name", ["plan.json", "manifest.json"])
@pytest.mark.parametrize("text", ["{", "[]", '{"store_sizes":{}}', "\xff"])
def test_a_note_in_the_quarantine_that_is_none_is_named_before_anything_is_changed(
    store: Path, name: str, text: str
) -> None:
    patch(log_files(store)[1], 500, b"junk" * 9)
    note = store / "quarantine" / "0001" / name
    note.parent.mkdir(parents=True)
    note.write_bytes(text.encode("latin-1"))
    before = tree(store / "commitlog")
    for apply in (False, True):
        with pytest.raises(StoreError, match=f"{name}: is no plan of a repair"):
            repair(store, apply=apply)
    assert tree(store / "commitlog") == before


def test_sizes_come_from_the_readable_files(store: Path) -> None:
    (store / "index" / min((store / "index").iterdir()).name).rename(store / "aside")
    pipe(store / "index" / "20200101000000000")
    link(store / "consumequeue" / "Clicks" / "0" / f"{400:020d}")
    report = verify(store, VerifyOptions(delay_levels_ms=(1000, 5000)))
    assert "index.file.size" not in codes(report)
    assert "consumequeue.file.size" not in codes(report)


def link_through_a_file(path: Path) -> Path:
    path.symlink_to(f"{'0' * 20}/nothing")
    return path


@pytest.mark.parametrize("change", [pipe, huge], ids=["pipe", "huge"])
def test_a_queue_s_odd_file_beside_a_damaged_log_stops_no_repair(store: Path, change: Callable[[Path], Path]) -> None:
    change(queue_file(store))
    patch(log_files(store)[0], 0, bytes(100))
    assert repair(store).is_clean
    assert codes(verify(store)) == {}


def test_a_link_through_a_file_hides_nothing_beside_it(store: Path) -> None:
    names = [entry.name for entry in LocalStorage().entries(str(store / "commitlog"))]
    link_through_a_file(store / "commitlog" / "x")
    assert [entry.name for entry in LocalStorage().entries(str(store / "commitlog"))] == names


def test_each_fault_is_repaired_or_reported_by_a_plan() -> None:
    done = {*plan._DERIVED, "commitlog", "checkpoint", "dledger"}
    for kind in finding_kinds.ALL:
        if kind.severity is not Severity.INFO and kind.code.partition(".")[0] not in done:
            assert not kind.is_repaired or kind in {finding_kinds.STRAY, finding_kinds.CONFIG_UNPARSABLE}, kind.code
