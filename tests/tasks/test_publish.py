"""Directories are replaced whole, and only if all of it worked."""

import ctypes
import errno
from pathlib import Path

import pytest

from rmq_formats.errors import StoreError
from rmq_offline.tasks import publish
from tests.support.processes.dying_processes import NoExchange


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A work directory with two directories to publish; the target has one of them."""
    for name in ("consumequeue", "index"):
        (tmp_path / "work" / "new" / name).mkdir(parents=True)
        (tmp_path / "work" / "new" / name / "file").write_text("new")
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "file").write_text("old")
    return tmp_path / "work"


def texts(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("file")}


NEW = {"consumequeue/file": "new", "index/file": "new"}


@pytest.mark.parametrize("exchange", [True, False])
def test_each_directory_takes_its_place(work: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exchange:
        monkeypatch.setattr(publish, "_LIBC", NoExchange())
    publish.publish(work, work.parent, ["consumequeue", "index"])
    assert texts(work.parent) == NEW
    assert sorted(path.name for path in work.parent.iterdir()) == ["consumequeue", "index"]


def test_nothing_is_left_to_do_where_nothing_was_begun(work: Path) -> None:
    assert publish.finish_publishing(work, work.parent) is False
    assert publish.finish_publishing(work.parent / "none", work.parent) is False
    assert (work / "new" / "index" / "file").read_text() == "new"


class Stubborn:
    """A C library whose calls fail."""

    def __init__(self, error: int) -> None:
        self.error = error

    def renameat2(self, *_arguments: object) -> int:
        ctypes.set_errno(self.error)
        return -1

    syncfs = renameat2


def test_a_directory_that_cannot_be_replaced_stays_and_is_named(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(publish, "_LIBC", Stubborn(errno.EBUSY))  # a mount point
        with pytest.raises(StoreError, match="index: cannot be replaced"):
            publish.publish(work, work.parent, ["consumequeue", "index"])
    assert (work.parent / "index" / "file").read_text() == "old"
    assert publish.finish_publishing(work, work.parent) is True
    assert texts(work.parent) == NEW


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOSYS])
def test_a_file_system_without_an_exchange_takes_two_renames(
    work: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    monkeypatch.setattr(publish, "_LIBC", Stubborn(error))
    publish.publish(work, work.parent, ["consumequeue", "index"])
    assert texts(work.parent) == NEW


def test_a_link_to_a_directory_is_replaced_and_what_it_names_stays(work: Path) -> None:
    (work.parent / "index").rename(work.parent / "elsewhere")
    (work.parent / "index").symlink_to("elsewhere")
    publish.publish(work, work.parent, ["consumequeue", "index"])
    assert texts(work.parent) == NEW | {"elsewhere/file": "old"}


@pytest.mark.usefixtures("real_flush")
def test_a_flush_reaches_the_disk_or_says_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish.sync_file_system(tmp_path)
    monkeypatch.setattr(publish, "_LIBC", Stubborn(errno.EIO))
    with pytest.raises(StoreError, match="Input/output error"):
        publish.sync_file_system(tmp_path)


def test_a_failed_flush_publishes_nothing(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(directory: Path) -> None:
        raise StoreError(f"{directory}: No space left on device when its files were flushed")

    monkeypatch.setattr(publish, "sync_file_system", fail)
    with pytest.raises(StoreError):
        publish.publish(work, work.parent, ["consumequeue", "index"])
    assert (work.parent / "index" / "file").read_text() == "old"
    assert not (work.parent / "consumequeue").exists()
    assert publish.finish_publishing(work, work.parent) is False
