"""Files of the store's disk, where the file system cannot do all that is asked of it."""

import errno
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_core.store.files.disk import Disk

SIZE = 4096


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """No file can be given a name later; the descriptors that were closed."""
    gc.collect()  # mapped files of other tests, which are closed when they are collected
    gc.disable()
    found: list[int] = []
    close = os.close

    def link(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOENT, "no /proc")

    def counted(descriptor: int) -> None:
        close(descriptor)
        found.append(descriptor)

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "close", counted)
    yield found
    gc.enable()


@pytest.mark.parametrize("allocate", [True, False])
def test_a_file_is_made_where_none_can_be_named_later(tmp_path: Path, closed: list[int], allocate: bool) -> None:
    descriptor = Disk().create(str(tmp_path / "f"), SIZE, allocate=allocate)
    assert os.fstat(descriptor).st_size == SIZE
    assert os.path.samestat(os.fstat(descriptor), (tmp_path / "f").stat())
    assert len(closed) == 1, "the file without a name"
    os.close(descriptor)


def test_a_file_that_is_there_stays_and_nothing_is_closed_twice(tmp_path: Path, closed: list[int]) -> None:
    (tmp_path / "f").write_bytes(b"there")
    with pytest.raises(FileExistsError):
        Disk().create(str(tmp_path / "f"), SIZE, allocate=True)
    assert len(closed) == 1
    assert (tmp_path / "f").read_bytes() == b"there"


def test_a_full_disk_leaves_no_file_and_nothing_is_closed_twice(
    tmp_path: Path, closed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def allocate(_disk: Disk, descriptor: int, _offset: int, size: int) -> None:
        if taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken.append(size)
        os.ftruncate(descriptor, size)

    monkeypatch.setattr(Disk, "allocate", allocate)
    with pytest.raises(OSError, match="No space left") as raised:
        Disk().create(str(tmp_path / "f"), SIZE, allocate=True)
    assert raised.value.errno == errno.ENOSPC
    assert len(closed) == 2, "the file without a name, then the one with it"
    assert not (tmp_path / "f").exists()


def test_a_link_in_a_file_s_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"the only copy")
    for target in ("outside", "made"):
        (tmp_path / f"to-{target}").symlink_to(target)
        for write in (Disk().write_file, Disk().replace):
            beside = tmp_path / f"to-{target}.new"
            beside.unlink(missing_ok=True)
            beside.symlink_to(target)
            with pytest.raises(OSError, match="Too many levels of symbolic links"):
                write(str(tmp_path / f"to-{target}"), b"of a stranger")
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            Disk().open(str(tmp_path / f"to-{target}"))
    assert (tmp_path / "outside").read_bytes() == b"the only copy"
    assert not (tmp_path / "made").exists()
