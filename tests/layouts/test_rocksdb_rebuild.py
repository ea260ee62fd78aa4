"""ConsumeQueues in RocksDB are rebuilt: the pairs that Java's rebuild has, in a database that Java opens."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_formats.errors import StoreError, StoreLayoutError, StoreLockedError
from rmq_formats.storage.rocksdb import open_rocksdb
from rmq_formats.storage.segments import LocalStorage
from rmq_offline.rebuild import queue_database
from rmq_offline.verify.findings import Severity
from tests.cli.conftest import Rmq
from tests.conftest import LAYOUT_STORES
from tests.interop import peer
from tests.layouts.conftest import Untouched, held, refusal
from tests.layouts.test_rocksdb_verify import changed, verified
from tests.support.oracles.commitlog_walk import Frame, walk
from tests.support.stores.rebuilt_stores import built, golden_options, rebuild
from tests.support.stores.store_with_queues import write_log
from tests.support.stores.verified_stores import REBUILT

Golden = Callable[[str], Path]
NAMES = ("rocksdb", "rocksdb_lmq", "rocksdb_crash")
SIZES = ("--consumequeue-file-bytes", 2000, "--index-slots", 500, "--index-entries", 2000)


def pairs(store: Path) -> set[str]:
    """What the database of a store has, as ``RocksDump.java`` prints it."""
    with open_rocksdb(LocalStorage(), str(store / "consumequeue"), str(store)) as database:
        return {
            f"{family}\t{key.hex()}\t{value.hex()}"
            for family in database.families
            for key, value in database.pairs(family)
        }


def expected(directory: Path) -> set[str]:
    return set((directory / "expected" / "rocksdb" / "rebuilt.tsv").read_text("ascii").splitlines())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_in_place", [True, False], ids=["in place", "elsewhere"])
def test_the_pairs_are_those_of_java_s_rebuild(
    name: str, *, is_in_place: bool, golden: Golden, golden_copy: Golden, untouched: Untouched, tmp_path: Path
) -> None:
    options = golden_options(LAYOUT_STORES[name])
    if is_in_place:
        store = golden_copy(name)
        rebuild(store, None, options)
        rebuild(store, None, options)  # a second time, over what the first one made
        report = verified(store)
        assert report.is_clean
    else:
        store = tmp_path / "out"
        with untouched(golden(name) / "store"):
            rebuild(golden(name) / "store", store, options)
    assert pairs(store) == expected(golden(name))
    assert built(store).index == built(golden(name) / "expected").index
    assert not (store / ".rmq-rebuild").exists()
    assert not (store / "consumequeue" / "rocksdict-config.json").exists()


def test_pairs_that_nobody_knows_stay(golden_copy: Golden, golden: Golden) -> None:
    """The original has left one with an empty key (the lab's lives, seed 1800006)."""
    store = golden_copy("rocksdb")
    with changed(store) as (_, offsets):
        offsets[b""] = b"value"
        offsets[b"of another program"] = b""
    rebuild(store, None, golden_options(LAYOUT_STORES["rocksdb"]))
    unknown = {f"offset\t{key.hex()}\t{value.hex()}" for key, value in ((b"", b"value"), (b"of another program", b""))}
    assert pairs(store) == expected(golden("rocksdb")) | unknown


def test_units_of_expired_records_stay(golden_copy: Golden, golden: Golden) -> None:
    store = golden_copy("rocksdb")
    files = sorted((store / "commitlog").iterdir())
    for path in files[: len(files) // 2]:
        path.unlink()
    assert verified(store).total(Severity.ERROR) == 0
    rebuild(store, None, golden_options(LAYOUT_STORES["rocksdb"]))
    assert pairs(store) == expected(golden("rocksdb"))


def test_a_topic_that_was_made_again_has_its_second_life(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write_log(store, [*range(40), *range(25)])
    path = store / "commitlog" / f"{0:020d}"
    whole = {path: path.read_bytes() for path in sorted((store / "commitlog").iterdir())}
    second = next(at for at, data in log_records(whole) if data == 40)
    options = replace(REBUILT, queue_database=True, index=False)
    for path, data in whole.items():
        begin = max(0, second - int(path.name))
        path.write_bytes(data[:begin].replace(b"\x06Orders", b"\x06Others") + data[begin:])
    rebuild(store, None, options)
    for path, data in whole.items():
        path.write_bytes(data)
    before = {pair for pair in pairs(store) if b"Orders".hex() in pair}
    report = verified(store)
    assert {finding.topic for finding in report.findings if finding.kind.severity is Severity.ERROR} <= {"Others"}
    assert [found.count for found in report.findings if found.kind.code == "consumequeue.former"] == [40]
    rebuild(store, None, replace(options, queue_database=False))
    assert {pair for pair in pairs(store) if b"Orders".hex() in pair} == before


def log_records(files: dict[Path, bytes]) -> Iterator[tuple[int, int]]:
    """Physical offset and number of each record of a small log."""
    number = 0
    for path, data in files.items():
        for item in walk(data, int(path.name)):
            if isinstance(item, Frame):
                yield item.physical_offset, number
                number += 1


def test_a_damaged_database_is_rebuilt(golden_copy: Golden, golden: Golden) -> None:
    store = golden_copy("rocksdb")
    for path in (store / "consumequeue").glob("*.sst"):
        path.write_bytes(path.read_bytes()[:100])
    (store / "consumequeue" / "CURRENT").unlink()
    rebuild(store, None, golden_options(LAYOUT_STORES["rocksdb"]))
    assert pairs(store) == expected(golden("rocksdb"))


@pytest.mark.parametrize("seam", ["make_rocksdb", "_encode_units"])
def test_a_rebuild_that_died_leaves_the_old_one_and_goes_on(
    seam: str, golden_copy: Golden, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = golden_copy("rocksdb_lmq")
    old = pairs(store)

    def die(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(queue_database, seam, die)
        with pytest.raises(KeyboardInterrupt):
            rebuild(store, None, golden_options(LAYOUT_STORES["rocksdb_lmq"]))
    assert pairs(store) == old
    rebuild(store, None, golden_options(LAYOUT_STORES["rocksdb_lmq"]))
    assert pairs(store) == expected(golden("rocksdb_lmq"))


def test_a_database_in_use_or_with_something_strange_in_it_is_left_alone(
    rmq: Rmq, golden_copy: Golden, untouched: Untouched
) -> None:
    store = golden_copy("rocksdb")
    open_there = pytest.raises(StoreLockedError, match="a running broker has this RocksDB open")
    with held(store / "consumequeue" / "LOCK"), untouched(store), open_there:
        rebuild(store, None, golden_options(LAYOUT_STORES["rocksdb"]))
    (store / "consumequeue" / "notes.txt").write_text("mine")
    with untouched(store):
        assert "consumequeue/notes.txt" in refusal(rmq, "rebuild", store, *SIZES)


def test_other_places_of_a_database_are_refused(golden_copy: Golden, untouched: Untouched) -> None:
    store = golden_copy("rocksdb")
    (store / "consumequeue").rename(store / "consumequeue_rocksdb")
    with (
        untouched(store),
        pytest.raises(StoreLayoutError, match="consumequeue_rocksdb: the ConsumeQueue"),
    ):
        rebuild(store, None, golden_options(LAYOUT_STORES["rocksdb"]))


def test_a_log_that_is_cut_meanwhile_is_told(golden_copy: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    store = golden_copy("rocksdb")
    make = queue_database.make_rocksdb

    def cut(*given: object) -> int:
        last = sorted((store / "commitlog").iterdir())[-1]
        last.write_bytes(last.read_bytes()[:1000])
        return make(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(queue_database, "make_rocksdb", cut)
    with pytest.raises(StoreError, match="was cut off while the queues were made"):
        rebuild(store, None, golden_options(LAYOUT_STORES["rocksdb"]))
    assert (store / "consumequeue" / "CURRENT").exists()


@pytest.mark.peer
@pytest.mark.xdist_group("rocksdb_against_java")
@pytest.mark.long
def test_java_opens_the_database_and_changes_nothing(golden_copy: Golden, golden: Golden) -> None:
    store = golden_copy("rocksdb_lmq")
    rebuild(store, None, golden_options(LAYOUT_STORES["rocksdb_lmq"]))
    shutil.rmtree(store / "lock", ignore_errors=True)
    told = peer.run(
        "variant-rebuild",
        str(store),
        "storeType=defaultRocksDB",
        "mappedFileSizeCommitLog=262144",
        "maxHashSlotNum=500",
        "maxIndexNum=2000",
        "enableLmq=true",
        "enableMultiDispatch=true",
        java_options=f"{peer.QUICK_START} -Dvariant.settle.ms=500",
    )
    assert '"loaded": true' in told
    dumped = set(peer.run("rocks-dump", str(store / "consumequeue"), java_options=peer.QUICK_START).splitlines())
    assert {line for line in dumped if b"min".hex() not in line.split("\t")[1]} == expected(golden("rocksdb_lmq"))
