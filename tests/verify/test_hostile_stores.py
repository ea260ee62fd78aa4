"""Damage never stops a verification: findings, no traceback, and the rest is read."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq_formats.errors import OptionError, StoreNotFoundError, StoreSizeError
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify import job as module
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.support.stores.rebuilt_stores import Splits
from tests.support.stores.store_files import tree
from tests.support.stores.verified_stores import codes, copied, message, patch, sound_store, verify, verify_with
from tests.support.torture import TIMES

MIB = 1 << 20


def test_a_mib_of_random_bytes_in_mid_log(golden: Callable[[str], Path], tmp_path: Path) -> None:
    store = copied(golden("mixed") / "store", tmp_path / "store")
    files = sorted((store / "commitlog").iterdir())
    whole = verify(store, VerifyOptions())
    junk = random.Random(5).randbytes(MIB)
    patch(files[0], 600_000, junk[: MIB - 600_000])
    patch(files[1], 0, junk[MIB - 600_000 :])
    for splits in (1, 8):
        report = verify_with(store, VerifyOptions(), Splits(splits))
        assert 0 < report.messages < whole.messages
        assert codes(report)["consumequeue.unit.lost"] == whole.messages - report.messages
        # The record before it ends in junk, in its properties: body and lengths hold.
        assert codes(report)["commitlog.properties"] == 1
        assert sum(segment.damaged_bytes for segment in report.segments) >= 600_000


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 1, 7, 100, 70_001])
def test_a_log_file_cut_anywhere(golden: Callable[[str], Path], tmp_path: Path, number: int, size: int) -> None:
    store = copied(golden("crash") / "store", tmp_path / "store")
    os.truncate(sorted((store / "commitlog").iterdir())[number], size)
    report = verify(store, VerifyOptions())
    assert not report.is_clean
    assert report.messages > 100


@pytest.mark.parametrize("tree_name", ["commitlog", "consumequeue", "index", "config", "checkpoint"])
def test_a_part_of_the_store_that_is_not_there_or_a_file(
    golden: Callable[[str], Path], tmp_path: Path, tree_name: str
) -> None:
    store = copied(golden("crash") / "store", tmp_path / "store")
    path = store / tree_name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    verify(store, VerifyOptions())
    path.write_bytes(b"a file\n")
    report = verify(store, VerifyOptions())
    assert not report.is_clean


def test_every_file_of_junk(golden: Callable[[str], Path], tmp_path: Path) -> None:
    store = copied(golden("exotic_crc") / "store", tmp_path / "store")
    generator = random.Random(9)
    for path in store.rglob("*"):
        if path.is_file():
            path.write_bytes(generator.randbytes(path.stat().st_size))
    report = verify(store, VerifyOptions())
    assert report.messages == 0
    assert not report.is_clean


def test_every_file_empty(golden: Callable[[str], Path], tmp_path: Path) -> None:
    store = copied(golden("exotic_crc") / "store", tmp_path / "store")
    for path in store.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    report = verify(store, VerifyOptions())
    assert report.messages == 0
    assert not report.is_clean


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile") / "store"
    sound_store(root, 40)
    (root / "checkpoint").write_bytes(bytes(4096))
    return root


@pytest.mark.torture
@settings(max_examples=40 * TIMES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_stretch_of_any_file_overwritten_is_found_and_ends(
    small: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store = copied(small, tmp_path_factory.mktemp("stretch") / "store")
    path = store / data.draw(st.sampled_from(sorted(name for name, content in tree(small).items() if content)))
    before = path.read_bytes()
    at = data.draw(st.integers(0, len(before) - 1))
    patch(path, at, data.draw(st.binary(min_size=1, max_size=64)))
    report = verify(store)
    # The checkpoint has no checksum, and a record's header has fields without one; the rest is covered.
    if path.read_bytes() != before and path.parent.name not in {"commitlog", "store"}:
        assert not report.is_clean, (path, at)
    shutil.rmtree(store.parent)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(StoreNotFoundError):
            verify(path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreNotFoundError):
        verify(tmp_path / "file")


def test_a_new_brokers_store_without_a_message_is_sound(tmp_path: Path) -> None:
    for name in ("commitlog", "consumequeue", "index", "config"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint").write_bytes(bytes(4096))
    report = verify(tmp_path, VerifyOptions())
    assert codes(report, informing=True) == {}
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(4096))
    assert codes(verify(tmp_path, VerifyOptions()), informing=True) == {"store.layout": 1}


@pytest.mark.parametrize(
    "options",
    [
        VerifyOptions(consumequeue_file_bytes=33),
        VerifyOptions(consumequeue_file_bytes=0),
        VerifyOptions(consumequeue_ext_file_bytes=3),
        VerifyOptions(commitlog_file_bytes=0),
        VerifyOptions(index_slots=0),
        VerifyOptions(index_entries=1),
    ],
    ids=str,
)
def test_sizes_that_no_broker_has_are_refused(small: Path, options: VerifyOptions) -> None:
    with pytest.raises(StoreSizeError):
        verify(small, options)


def test_a_work_directory_in_the_store_is_refused_and_another_one_is_left_as_it_was(
    small: Path, tmp_path: Path
) -> None:
    for work in (small, small / "index"):
        with pytest.raises(OptionError):
            verify_store(str(small), VerifyOptions(), ProcessRunner(1), work=str(work))
    with pytest.raises(OptionError):
        verify_store(str(small), VerifyOptions(), ProcessRunner(1), work=str(tmp_path / "nowhere"))
    assert verify_store(str(small), VerifyOptions(), ProcessRunner(1), work=str(tmp_path)).is_clean
    assert list(tmp_path.iterdir()) == []


def test_a_log_file_that_goes_away_while_it_is_read_is_a_finding(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copied(small, tmp_path / "store")
    scan = module.check_split

    def vanishing(split: object, **more: object) -> object:
        sorted((store / "commitlog").iterdir())[0].unlink(missing_ok=True) if len(
            list((store / "commitlog").iterdir())
        ) > 1 else None
        return scan(split, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "check_split", vanishing)
    report = verify(store)
    assert codes(report)["commitlog.segment.unreadable"] >= 1


def test_a_hundred_findings_of_a_kind_are_all_counted_and_some_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound_store(tmp_path, [message(n, properties_bytes=b"none") for n in range(100)])
    report = verify(tmp_path)
    assert codes(report)["commitlog.properties"] == 100
    assert len([finding for finding in report.findings if finding.kind.code == "commitlog.properties"]) == 100


def test_many_queues_are_compared_by_few_tasks(tmp_path: Path) -> None:
    sound_store(tmp_path, [message(n, topic=f"T{n % 300}", queue_id=n % 7) for n in range(600)])
    runner = Splits(3)
    report = verify_with(tmp_path, VerifyOptions(), runner)
    assert codes(report) == {}
    assert report.queues == len({(n % 300, n % 7) for n in range(600)})
