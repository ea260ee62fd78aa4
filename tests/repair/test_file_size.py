"""The size of a log's files, as their names and sizes tell it: a misplaced file must not make the others foreign."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_formats.errors import StoreSizeError
from rmq_offline.repair.job import repair_store
from rmq_offline.repair.plan import infer_log_file_bytes
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.repair.test_damage import log_files, repair
from tests.support.stores.store_files import tree
from tests.support.stores.store_with_queues import write_config, write_log, write_queue
from tests.support.stores.verified_stores import FILE_BYTES, sound_store

S = 1 << 20
_STRAYS = (2, 100, 128, 4096, S // 4, S // 2, S - 128, S - 1)
_SOUND = VerifyOptions(None, 400, 0, 50, 30, (1000, 5000))


def measured_size(root: Path, starts: Iterable[int], size: int, **other_sizes: int) -> int | None:
    """The size of files that are empty but for their names and sizes; ``at_1`` is the second file's."""
    (root / "commitlog").mkdir()
    for number, start in enumerate(sorted(starts)):
        path = root / "commitlog" / f"{start:020d}"
        path.touch()
        os.truncate(path, other_sizes.get(f"at_{number}", size))
    return infer_log_file_bytes(str(root), VerifyOptions())


@pytest.mark.parametrize("distance", _STRAYS)
@pytest.mark.parametrize("behind", [0, 1, 2])
def test_one_misplaced_file_among_three(tmp_path: Path, behind: int, distance: int) -> None:
    assert measured_size(tmp_path, [0, S, 2 * S, behind * S + distance], S) == S


@pytest.mark.parametrize("distance", _STRAYS)
@pytest.mark.parametrize("behind", [(0, 1), (1, 4), (2, 2), (4, 5)])
def test_two_misplaced_files_among_six(tmp_path: Path, behind: tuple[int, int], distance: int) -> None:
    first, second = behind
    other = distance // 2 if first == second else distance
    starts = [*range(7 * S, 13 * S, S), (7 + first) * S + distance, (7 + second) * S + other]
    assert measured_size(tmp_path, starts, S) == S


@pytest.mark.parametrize("distance", [2, 100, 128])
def test_a_misplaced_file_beside_the_only_one(tmp_path: Path, distance: int) -> None:
    assert measured_size(tmp_path, [0, distance], S) == S


@pytest.mark.parametrize(("times", "files"), [(2, 2), (2, 3), (2, 7), (3, 3), (5, 8)])
def test_where_all_files_are_too_long_their_names_decide_the_size(tmp_path: Path, times: int, files: int) -> None:
    assert measured_size(tmp_path, range(0, files * S, S), times * S) == S


@pytest.mark.parametrize("starts", [(0, 9), (0, 1, 9), (0, 2, 4), (0, 3, 4), (3, 4, 8)])
def test_where_files_are_missing_the_others_decide_the_size(tmp_path: Path, starts: tuple[int, ...]) -> None:
    assert measured_size(tmp_path, [start * S for start in starts], S) == S


@pytest.mark.parametrize("size", [0, 2, 300, S + 400, 2 * S, 1 << 34])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_one_file_of_another_size(tmp_path: Path, number: int, size: int) -> None:
    assert measured_size(tmp_path, [0, S, 2 * S], S, **{f"at_{number}": size}) == S


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_only_the_misplaced_file_is_moved(tmp_path: Path, behind: int) -> None:
    sound_store(tmp_path, 66)
    before = tree(tmp_path / "commitlog")
    assert len(before) == 3
    stray = f"{behind * FILE_BYTES + 100:020d}"
    (tmp_path / "commitlog" / stray).write_bytes(log_files(tmp_path)[0].read_bytes())
    done = repair(tmp_path, _SOUND)
    assert (done.left, done.is_clean) == ((), True)
    assert tree(tmp_path / "commitlog") == before
    assert list(tree(tmp_path / "quarantine" / "0001" / "commitlog")) == [stray]


@pytest.mark.parametrize("given", [FILE_BYTES // 2, 2 * FILE_BYTES, 1 << 30])
@pytest.mark.parametrize("last_size", [FILE_BYTES, 300])
def test_a_size_that_contradicts_the_files_is_refused(tmp_path: Path, given: int, last_size: int) -> None:
    sound_store(tmp_path, 100)
    os.truncate(log_files(tmp_path)[-1], last_size)
    before = tree(tmp_path)
    for apply in (False, True):
        with pytest.raises(StoreSizeError, match=f"follow each other at {FILE_BYTES} bytes. Give {FILE_BYTES}"):
            repair_store(str(tmp_path), replace(_SOUND, commitlog_file_bytes=given), ProcessRunner(1), apply=apply)
    assert tree(tmp_path) == before
    repair_store(str(tmp_path), replace(_SOUND, commitlog_file_bytes=FILE_BYTES), ProcessRunner(1), apply=False)


@pytest.mark.parametrize("given", [200, 800, 6_000_000])
def test_a_size_of_queue_files_that_contradicts_most_of_them_is_refused(tmp_path: Path, given: int) -> None:
    sound_store(tmp_path, 100)
    next(tmp_path.glob("consumequeue/*/0/*")).write_bytes(bytes(given))
    before = tree(tmp_path)
    with pytest.raises(StoreSizeError, match="have 400 bytes"):
        repair_store(str(tmp_path), replace(_SOUND, consumequeue_file_bytes=given), ProcessRunner(1), apply=False)
    assert tree(tmp_path) == before
    assert repair_store(str(tmp_path), _SOUND, ProcessRunner(1), apply=True).is_clean


@pytest.mark.parametrize("size", [200, 210, 600])
def test_a_queue_file_of_another_size_remains_a_witness_of_its_queue(tmp_path: Path, size: int) -> None:
    units = write_log(tmp_path, [*range(12), *range(8)], "Other", "Third")
    write_queue(tmp_path, dict(enumerate(units[12:20])))  # Orders was made again after 12 messages
    write_queue(tmp_path, {0: units[20]}, "Other")
    write_queue(tmp_path, {0: units[21]}, "Third")
    write_config(tmp_path, "Orders", "Other", "Third")
    path = tmp_path / "consumequeue" / "Orders" / "0" / f"{0:020d}"
    before = path.read_bytes()
    os.truncate(path, size)
    options = replace(_SOUND, commitlog_file_bytes=FILE_BYTES)
    assert repair_store(str(tmp_path), options, ProcessRunner(1), apply=True).is_clean
    assert path.read_bytes() == before
