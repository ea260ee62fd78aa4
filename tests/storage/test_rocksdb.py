"""A RocksDB is read whole or refused in one line, and nothing is written where it is."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq_formats.errors import FormatError, StoreError, StoreLockedError
from rmq_formats.storage.rocksdb import open_rocksdb
from rmq_formats.storage.segments import LocalStorage, open_storage
from tests.support.stores.store_files import tree

Golden = Callable[[str], Path]
DATABASES = {  # of golden stores, with what Java lists of them
    "rocksdb/store/consumequeue": "consumequeue.tsv",
    "rocksdb/store/config/topics": "config-topics.tsv",
    "rocksdb/store/config/subscriptionGroups": "config-subscriptionGroups.tsv",
    "rocksdb/store/config/consumerOffsets": "config-consumerOffsets.tsv",
    "rocksdb_lmq/store/consumequeue": "consumequeue.tsv",
    "rocksdb_lmq/store/config/rdb": "config-rdb.tsv",
    "rocksdb_crash/store/consumequeue": "consumequeue.tsv",
    "rocksdb_crash/store/config/rdb": "config-rdb.tsv",
}


def pairs_of(path: Path | str, chunk_pairs: int = 64) -> list[tuple[str, bytes, bytes]]:
    storage, place = open_storage(str(path))
    with open_rocksdb(storage, place, place.rpartition("/")[0]) as database:
        return [
            (family, *pair)
            for family in database.families
            for keys, values in database.chunks(family, chunk_pairs=chunk_pairs)
            for pair in zip(keys, values, strict=True)
        ]


@pytest.mark.parametrize("place", DATABASES)
@pytest.mark.parametrize("chunk_pairs", [1, 64, 1 << 16])
def test_pairs_are_those_that_java_lists(place: str, chunk_pairs: int, golden: Golden) -> None:
    name, _, below = place.partition("/")
    listed = (golden(name) / "expected" / "rocksdb" / DATABASES[place]).read_text("ascii").splitlines()
    expected = [(family, bytes.fromhex(key), bytes.fromhex(value)) for family, key, value in map(_split, listed)]
    before = tree(golden(name) / below)
    assert sorted(pairs_of(golden(name) / below, chunk_pairs)) == sorted(expected)
    assert tree(golden(name) / below) == before


def _split(line: str) -> list[str]:
    return line.split("\t")


@pytest.fixture
def database(golden: Golden, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden("rocksdb") / "store" / "consumequeue", tmp_path / "consumequeue"))


def test_a_database_is_read_from_where_it_is_not_local(database: Path, tmp_path: Path) -> None:
    from pyarrow.fs import LocalFileSystem  # noqa: F401 # the file system behind the URI

    from rmq_formats.storage.segments import ArrowStorage

    storage = ArrowStorage(f"file://{tmp_path}")
    with open_rocksdb(storage, f"file://{database}", f"file://{tmp_path}") as found:
        assert len(list(found.pairs("default"))) == 709


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-000005", "000010.sst", "000011.sst"])
def test_a_database_without_a_file_is_refused_in_one_line(name: str, database: Path) -> None:
    (database / name).unlink()
    with pytest.raises(FormatError, match="a RocksDB that cannot be read") as caught:
        pairs_of(database)
    assert "\n" not in str(caught.value)
    assert "rmq-rocksdb-" not in str(caught.value)
    assert str(caught.value).startswith(f"{database}: ")


def test_a_manifest_that_was_cut_lacks_tables(database: Path) -> None:
    path = database / "MANIFEST-000005"
    path.write_bytes(path.read_bytes()[:231])
    with pytest.raises(FormatError, match=r"its MANIFEST does not name 000010.sst, though the broker closed it"):
        pairs_of(database)
    (database.parent / "abort").touch()
    assert pairs_of(database) == []


def cuts_and_flips() -> Iterator[tuple[str, int, bool]]:
    for name, size in (("000011.sst", 17908), ("000010.sst", 4374)):
        for at in range(0, size, 397):
            yield name, at, True
            yield name, at, False


def test_damage_is_told_and_never_fewer_pairs(database: Path) -> None:
    whole = pairs_of(database)
    told = 0
    for name, at, is_cut in cuts_and_flips():
        path = database / name
        data = path.read_bytes()
        path.write_bytes(data[:at] if is_cut else data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :])
        try:
            assert pairs_of(database) == whole, f"byte {at} of {name}"  # of a table's notes on itself
        except FormatError as error:
            told += "\n" not in str(error)
        path.write_bytes(data)
    assert told > 80


def test_a_flipped_byte_of_the_write_ahead_log_is_told_and_a_torn_end_is_not(golden: Golden, tmp_path: Path) -> None:
    database = Path(shutil.copytree(golden("rocksdb_crash") / "store" / "config" / "rdb", tmp_path / "rdb"))
    log = database / "000004.log"
    whole, data = pairs_of(database), log.read_bytes()
    for at in range(0, len(data), 13):
        log.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(FormatError, match=r"its write-ahead log 000004.log is damaged at byte \d+, and the rest"):
            pairs_of(database)
    log.write_bytes(data[:-3])
    assert len(pairs_of(database)) < len(whole)
    (database / "000009.log").write_bytes(b"")
    with pytest.raises(FormatError, match=r"its write-ahead log 000004\.log is damaged"):
        pairs_of(database)


def test_a_database_that_a_broker_has_open_is_refused(database: Path) -> None:
    held = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl,sys\nf=open(sys.argv[1],'r+')\nfcntl.lockf(f,fcntl.LOCK_EX)\n"
            "print('held',flush=True)\nsys.stdin.read()",
            str(database / "LOCK"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert held.stdout is not None
        held.stdout.readline()
        with pytest.raises(StoreLockedError, match="a running broker has this RocksDB open"):
            pairs_of(database)
    finally:
        held.communicate(b"")
    assert len(pairs_of(database)) == 796


def test_a_lock_is_asked_for_and_not_taken(database: Path) -> None:
    with open_rocksdb(LocalStorage(), str(database), str(database.parent)):
        descriptor = os.open(database / "LOCK", os.O_RDWR)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)


def test_without_the_library_the_extra_is_named(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(StoreError, match=r"pip install 'rmq-lake\[rocksdb\]'"):
        pairs_of(database)


def test_single_pairs_are_found(database: Path) -> None:
    with open_rocksdb(LocalStorage(), str(database), str(database.parent)) as found:
        pairs = list(found.pairs("default"))
        assert found.get("default", pairs[5][0]) == pairs[5][1]
        assert found.get("default", pairs[5][0] + b"\0") is None
        assert found.first_from("default", pairs[5][0] + b"\0") == pairs[6]
        assert found.last_until("default", pairs[5][0] + b"\0") == pairs[5]
        assert found.last_until("default", b"\0") is None
        assert found.first_from("default", b"\xff") is None
        assert list(found.pairs("default", pairs[3][0], pairs[7][0])) == pairs[3:7]
        assert list(found.pairs("no such family")) == []
