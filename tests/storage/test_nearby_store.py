"""A path that holds no store: the error names the store or the archive that may be meant."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from rmq_formats.errors import StoreNotFoundError
from rmq_formats.storage.segments import LocalStorage
from rmq_formats.storage.store_files import no_store_error, open_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "rocketmq" / "store"
    for name in ("commitlog", "consumequeue/Orders/0", "config"):
        (root / name).mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(bytes(64))
    return root


def refusal(path: Path) -> str:
    with pytest.raises(StoreNotFoundError) as refused:
        open_store(str(path)).require_log()
    assert no_store_error(LocalStorage(), str(path)) == str(refused.value)
    return str(refused.value).replace(str(path), "X")


@pytest.mark.parametrize(
    "below", ["commitlog", "consumequeue", "config", "consumequeue/Orders", "consumequeue/Orders/0"]
)
def test_a_directory_of_a_store_leads_to_the_store(store: Path, below: str) -> None:
    assert refusal(store / below) == f"X holds no store; {store} is one"


def test_a_directory_above_leads_to_the_store_or_to_some(store: Path) -> None:
    assert refusal(store.parent) == "X holds no store; X/store is one"
    for name in ("a", "b", "c"):
        (store.parent / name / "commitlog").mkdir(parents=True)
    assert refusal(store.parent) == "X holds no store; X/a, X/b, X/c and 1 more are some"


def test_an_archive_is_named_as_such(tmp_path: Path) -> None:
    place = tmp_path / "backup"
    place.mkdir()
    with zipfile.ZipFile(place / "s.zip", "w") as archive:
        archive.writestr("store/checkpoint", "x")
    with tarfile.open(place / "s.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("store/checkpoint"), io.BytesIO())
    (place / "s.tar.zst").write_bytes(bytes.fromhex("28b52ffd") + bytes(9))
    assert refusal(place / "s.zip") == "X holds no store: it is a zip archive. Unpack it first: unzip X"
    assert refusal(place / "s.tar") == "X holds no store: it is a tar archive. Unpack it first: tar -xf X"
    assert refusal(place / "s.tar.zst").startswith("X holds no store: it is compressed with zstd.")
    assert refusal(place) == "X holds no store; X/s.tar is an archive. Unpack it first"


def test_names_with_backslashes_are_of_a_bad_archive(tmp_path: Path) -> None:
    (tmp_path / "store\\commitlog\\00000000000000000000").write_bytes(b"")
    assert "is a path of Windows in one name" in refusal(tmp_path)


def test_a_store_without_a_log_says_so(store: Path) -> None:
    (store / "commitlog" / f"{0:020d}").unlink()
    assert refusal_of_log(store) == (
        f"{store}/commitlog: no CommitLog files. Where storePathCommitLog is another directory, give -c broker.conf."
    )


def test_what_has_no_part_of_a_store_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"hello")
    for name in ("empty", "file"):
        assert refusal(tmp_path / name) == "X: holds no store. Give the directory that has commitlog/ in it."


def refusal_of_log(store: Path) -> str:
    with pytest.raises(StoreNotFoundError) as refused:
        open_store(str(store)).require_log()
    return str(refused.value)
