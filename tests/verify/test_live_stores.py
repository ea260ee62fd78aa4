"""A broker writes on while its store is verified: what is behind the frozen bound is nobody's fault."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.support.stores.store_files import write_commitlog
from tests.support.stores.verified_stores import FILE_BYTES, FIRST_MS, codes, message, rebuild, verify

MESSAGES = [message(number) for number in range(120)]


class Meanwhile(ProcessRunner):
    """Lets something happen after the plan is made, or between the two batches of tasks."""

    def __init__(self, before_batch: int, happen: Callable[[], object]) -> None:
        super().__init__(1)
        self._batches = before_batch
        self._happen = happen

    def map(self, function: Any, arguments: Sequence[Any], on_done: Any = None) -> list[Any]:
        if self._batches == 0:
            self._happen()
        self._batches -= 1
        return super().map(function, arguments, on_done)


def grow(store: Path, count: int, dispatched: int | None = None) -> None:
    """What a broker has on disk after ``count`` messages, of which it has dispatched some."""
    for name in ("consumequeue", "index"):
        if (store / name).exists():
            import shutil

            shutil.rmtree(store / name)
    write_commitlog(store, MESSAGES[: count if dispatched is None else dispatched], FILE_BYTES, FIRST_MS)
    rebuild(store)
    write_commitlog(store, MESSAGES[:count], FILE_BYTES, FIRST_MS)


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("dispatched", [80, 75, 50])
@pytest.mark.parametrize("count", [52, 80])
def test_what_a_broker_appends_in_the_meantime_is_no_finding(
    tmp_path: Path, batch: int, dispatched: int, count: int
) -> None:
    grow(tmp_path, 50)
    runner = Meanwhile(batch, lambda: grow(tmp_path, count, min(dispatched, count)))
    report = verify_store(str(tmp_path), VerifyOptions(), runner)
    assert codes(report) == {}
    assert report.messages == 50


def test_a_new_log_file_that_appears_in_the_meantime_is_not_read(tmp_path: Path) -> None:
    grow(tmp_path, 20)
    report = verify_store(str(tmp_path), VerifyOptions(), Meanwhile(0, lambda: grow(tmp_path, 120)))
    assert codes(report) == {}
    assert (report.messages, len(report.segments)) == (20, 1)


@pytest.mark.parametrize(("size", "code"), [(0, "commitlog.segment.empty"), (2048, "commitlog.segment.size")])
def test_a_log_file_that_a_broker_is_making_is_no_finding_if_the_log_grows(
    tmp_path: Path, size: int, code: str
) -> None:
    grow(tmp_path, 80)
    files = sorted((tmp_path / "commitlog").iterdir())
    assert len(files) > 1
    (tmp_path / "commitlog" / f"{len(files) * FILE_BYTES:020d}").write_bytes(bytes(size))
    assert codes(verify(tmp_path)) == {code: 1}
    report = verify_store(str(tmp_path), VerifyOptions(), Meanwhile(0, lambda: grow(tmp_path, 120)))
    assert codes(report) == {}
    assert report.messages == 80


def test_without_a_broker_the_same_differences_are_findings(tmp_path: Path) -> None:
    grow(tmp_path, 80, 75)
    report = verify(tmp_path)
    assert codes(report) == {"consumequeue.unit.missing": 5, "index.entry.missing": 10}
    grow(tmp_path, 80)
    for path in sorted((tmp_path / "commitlog").iterdir()):
        path.unlink()
    write_commitlog(tmp_path, MESSAGES[:75], FILE_BYTES, FIRST_MS)
    report = verify(tmp_path)
    assert codes(report)["consumequeue.unit.beyond"] == 5
    assert codes(report)["index.entry.beyond"] == 10


def test_damage_is_told_while_a_broker_writes_on(tmp_path: Path) -> None:
    grow(tmp_path, 50)
    path = tmp_path / "consumequeue" / "Orders" / "1" / f"{0:020d}"

    def happen() -> None:
        grow(tmp_path, 80)
        data = bytearray(path.read_bytes())
        data[3 * 20 + 10] ^= 1
        path.write_bytes(data)

    report = verify_store(str(tmp_path), VerifyOptions(), Meanwhile(1, happen))
    assert codes(report) == {"consumequeue.unit.size": 1}


def test_the_oldest_files_may_be_deleted_in_the_meantime(tmp_path: Path) -> None:
    grow(tmp_path, 120)
    first = sorted((tmp_path / "commitlog").iterdir())[0]
    report = verify_store(str(tmp_path), VerifyOptions(), Meanwhile(0, first.unlink))
    assert codes(report)["commitlog.segment.unreadable"] == 1
    assert report.messages > 0
