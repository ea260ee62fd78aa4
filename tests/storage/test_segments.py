"""Local files and object stores, as the rebuild reads them."""

import errno
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from rmq_formats.errors import StoreError, StoreNotFoundError, without_secrets
from rmq_formats.storage import segments
from rmq_formats.storage.segments import (
    ArrowStorage,
    Entry,
    LocalStorage,
    Storage,
    list_segments,
    open_storage,
    read_range,
)
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.rebuild.job import rebuild_store
from tests.conftest import GoldenSettings
from tests.support.stores.rebuilt_stores import Splits, built, golden_options, rebuild


@pytest.fixture(params=["local", "arrow"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Storage, str]:
    """A directory, read as local files and through ``pyarrow.fs``."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_bytes(b"0123456789")
    (tmp_path / "a.txt").write_bytes(b"")
    if request.param == "local":
        return LocalStorage(), str(tmp_path)
    return ArrowStorage(f"file://{tmp_path}"), f"file://{tmp_path}"


def test_names_are_listed_in_order_with_their_sizes(place: tuple[Storage, str]) -> None:
    storage, root = place
    assert storage.entries(root) == [Entry("a.txt", False, 0), Entry("b.txt", False, 10), Entry("sub", True, 0)]
    for empty in ("sub", "none", "b.txt"):
        assert storage.entries(f"{root}/{empty}") == []


def test_links_are_followed_and_those_to_nowhere_passed_over(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_bytes(b"12345")
    for name, target in (("1", "directory"), ("2", "file"), ("3", "nowhere"), ("4", "4")):
        (tmp_path / name).symlink_to(target)
    found = LocalStorage().entries(str(tmp_path))
    assert [(entry.name, entry.is_directory, entry.size_bytes) for entry in found] == [
        ("1", True, 0), ("2", False, 5), ("directory", True, 0), ("file", False, 5),
    ]  # fmt: skip


def test_a_file_that_is_deleted_while_its_directory_is_listed_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kept", "deleted"):
        (tmp_path / name).write_bytes(b"1")
    real = os.scandir

    @contextmanager
    def deleting(path: str) -> Iterator[list[os.DirEntry[str]]]:
        with real(path) as scan:
            entries = list(scan)
        (tmp_path / "deleted").unlink()
        yield entries

    monkeypatch.setattr(segments.os, "scandir", deleting)
    assert LocalStorage().entries(str(tmp_path)) == [Entry("kept", False, 1)]


def test_ranges_are_read_up_to_the_end_of_the_file(place: tuple[Storage, str]) -> None:
    storage, root = place
    with storage.open(f"{root}/b.txt") as file:
        assert file.size_bytes == 10
        assert [read_range(file, at, 4) for at in (0, 3, 8, 10, 99)] == [b"0123", b"3456", b"89", b"", b""]
        target = memoryview(bytearray(b"......"))
        assert file.read_into(7, target) == 3
        assert bytes(target) == b"789..."
    assert storage.read_bytes(f"{root}/b.txt") == b"0123456789"
    assert storage.read_bytes(f"{root}/a.txt") == b""


def test_what_is_not_there_is_told(place: tuple[Storage, str]) -> None:
    storage, root = place
    assert [storage.exists(f"{root}{name}") for name in ("", "/b.txt", "/sub", "/none")] == [True, True, True, False]
    for read in (storage.open, storage.read_bytes):
        with pytest.raises(StoreNotFoundError, match="none"):
            read(f"{root}/none")
        with pytest.raises(StoreError):
            storage.read_bytes(f"{root}/sub")


def test_a_changed_file_has_another_version(place: tuple[Storage, str], tmp_path: Path) -> None:
    storage, root = place

    def version() -> int:
        return next(entry.version for entry in storage.entries(root) if entry.name == "b.txt")

    versions = {version()}
    os.utime(tmp_path / "b.txt", ns=(1, 1))
    versions.add(version())
    (tmp_path / "b.txt").write_bytes(b"other")
    versions.add(version())
    assert len(versions) == 3


@pytest.mark.parametrize("used", [b"", b"x", b"x" * 5000, b"a" + bytes(70_000) + b"b"])
@pytest.mark.parametrize("zeros", [0, 1, 4096, 100_000, (4 << 20) + 1])
def test_the_end_of_the_data_is_found_from_behind(
    place: tuple[Storage, str], tmp_path: Path, used: bytes, zeros: int
) -> None:
    storage, root = place
    (tmp_path / "dense").write_bytes(used + bytes(zeros))
    with (tmp_path / "sparse").open("wb") as file:
        file.write(used)
        file.truncate(len(used) + zeros)
    for name in ("dense", "sparse"):
        with storage.open(f"{root}/{name}") as opened_file:
            assert opened_file.data_end() == len(used)


def test_the_end_of_the_data_is_found_between_holes(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        for at in (0, 300_000, 900_000):
            file.seek(at)
            file.write(bytes(10) if at == 900_000 else b"x")
        file.truncate(3_000_000)
    with LocalStorage().open(str(tmp_path / "file")) as opened_file:
        assert opened_file.data_end() == 300_001


def test_the_scheme_of_a_path_names_its_storage(tmp_path: Path) -> None:
    for given, path in (("/a/b//", "/a/b"), ("a", "a"), ("/", "/")):
        storage, opened_path = open_storage(given)
        assert (storage.is_local, opened_path) == (True, path)
    storage, path = open_storage(f"file://{tmp_path}/")
    assert (storage.is_local, path) == (True, str(tmp_path))
    for unknown in ("gopher://host/path", "s4://bucket"):
        with pytest.raises(StoreError, match="cannot be opened"):
            open_storage(unknown)


def test_a_storage_goes_to_other_processes(place: tuple[Storage, str]) -> None:
    storage, root = place
    copy = pickle.loads(pickle.dumps(storage))
    assert copy.entries(root) == storage.entries(root)


def test_segments_are_listed_in_the_order_of_their_offsets(place: tuple[Storage, str], tmp_path: Path) -> None:
    storage, root = place
    (tmp_path / "commitlog").mkdir()
    for offset in (4096, 0, 1 << 40):
        (tmp_path / "commitlog" / f"{offset:020d}").write_bytes(bytes(4096))
    for foreign in ("1", "x" * 20):
        (tmp_path / "commitlog" / foreign).write_bytes(b"")
    segments = StoreFiles(storage, root).segments
    assert [(found_one.start_offset, found_one.end_offset) for found_one in segments] == [
        (0, 4096), (4096, 8192), (1 << 40, (1 << 40) + 4096),
    ]  # fmt: skip
    assert list_segments(storage, f"{root}/none") == []


class ObjectStores:
    """A stand-in for ``pyarrow.fs``: ``test://bucket`` is a directory behind a file system of its own."""

    FileSelector, FileType = pafs.FileSelector, pafs.FileType

    def __init__(self, directory: Path) -> None:
        bucket = pafs.SubTreeFileSystem(str(directory), pafs.LocalFileSystem())

        class FileSystem:
            @staticmethod
            def from_uri(uri: str) -> tuple[pafs.FileSystem, str]:
                assert uri.startswith("test://bucket/")
                return bucket, uri.removeprefix("test://bucket/")

        self.FileSystem = FileSystem


@pytest.mark.parametrize("splits", [1, 30])
def test_a_store_behind_a_uri_is_rebuilt_as_a_local_one(
    golden: Callable[[str], Path],
    golden_settings: dict[str, GoldenSettings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    splits: int,
) -> None:
    directory = golden("exotic_crc")
    monkeypatch.setattr(segments, "pafs", ObjectStores(directory))
    options = golden_options(golden_settings["exotic_crc"])
    report = rebuild_store("test://bucket/store/", str(tmp_path), options, Splits(splits))
    assert report.finding_counts == {}
    assert built(tmp_path) == built(directory / "expected")
    with pytest.raises(StoreNotFoundError, match="no such store"):
        rebuild_store("test://bucket/none", str(tmp_path), options, Splits(splits))


def test_a_store_behind_a_file_uri_is_rebuilt(
    golden: Callable[[str], Path], golden_settings: dict[str, GoldenSettings], tmp_path: Path
) -> None:
    options = golden_options(golden_settings["exotic"])
    rebuild_store(f"file://{golden('exotic') / 'store'}", f"file://{tmp_path}", options, Splits(3))
    rebuild(golden("exotic") / "store", tmp_path / "again", options)
    assert built(tmp_path) == built(tmp_path / "again") == built(golden("exotic") / "expected")


def test_an_object_store_that_does_not_answer_is_told_soon_in_a_short_line() -> None:
    storage, root = open_storage(
        "gs://anonymous@bucket/store?endpoint_override=127.0.0.1:1&scheme=http&retry_limit_seconds=1"
    )
    with pytest.raises(StoreError, match="cannot be looked up") as told:
        storage.exists(root)
    with pytest.raises(StoreError, match="cannot be listed") as listed:
        storage.entries(root)
    assert all(len(str(error.value)) < 600 for error in (told, listed))


@pytest.mark.parametrize(("text", "shown"), [
    ("s3://KEY:a%2Fb+c@bucket/s?x=1/f: no", "s3://KEY:***@bucket/s?x=1/f: no"),
    ("s3://b/s?secret_key=A&scheme=http/commitlog/0", "s3://b/s?secret_key=***&scheme=http/commitlog/0"),
    ("abfss://c@a/s?sas_token=A&client_secret=B", "abfss://c@a/s?sas_token=***&client_secret=***"),
    ("at 10:20@30 of s3://bucket/store", "at 10:20@30 of s3://bucket/store"),
    ("127.0.0.1:9876", "127.0.0.1:9876"),
])  # fmt: skip
def test_secrets_of_uris_are_not_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    assert str(StoreError(text)) == shown


@pytest.mark.parametrize("failing", [os.SEEK_DATA, os.SEEK_HOLE])
def test_a_file_whose_extents_cannot_be_read_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    path = tmp_path / "00000000000000000000"
    path.write_bytes(b"x" * 100 + bytes(100))
    seek, number = os.lseek, errno.EIO

    def lseek(descriptor: int, at: int, how: int) -> int:
        if how == failing:
            raise OSError(number, os.strerror(number))
        return seek(descriptor, at, how)

    monkeypatch.setattr(os, "lseek", lseek)
    with LocalStorage().open(str(path)) as file:
        with pytest.raises(StoreError, match="cannot be read at 0"):
            file.data_end()
        number = errno.EINVAL  # of a file system that does not know its holes
        assert file.data_end() == 100
