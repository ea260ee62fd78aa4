"""Recovery: whatever a store was left as, it opens with all that is sound in it."""

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_core.store.config import StoreConfig
from rmq_core.store.results import PutStatus
from rmq_formats.codecs.layout import index_file_bytes
from rmq_formats.errors import StoreLockedError, StoreSizeError
from tests.store.conftest import Opener
from tests.store.derived_from_log import check_derived, records
from tests.store.power_loss import SECTOR_BYTES
from tests.store.small_stores import NOW_MS, NoThreads, config_of, cut_log, fill, log_records, opened, put, read_all
from tests.support.stores.store_files import tree
from tests.support.torture import rounds

BODY = b"0123456789"


def crash(config: StoreConfig) -> None:
    """Leave the mark of a crash."""
    (Path(config.root) / "abort").write_text("1")


def filled(config: StoreConfig, count: int = 150, seed: int = 1) -> StoreConfig:
    """A store with messages of all kinds, shut down."""
    store = opened(config)
    assert len(list(fill(store, count, seed))) == count
    assert store.shutdown()
    return config


@pytest.mark.parametrize(
    ("properties", "append_crc", "keep_size"),
    [(b"KEYS\x01k\x02TAGS\x01t\x02", False, True), (b"", False, True), (b"TAGS\x01t\x02", True, False)],
    ids=["properties", "none", "crc_and_shorter_file"],
)
def test_a_log_cut_at_any_byte_of_its_last_record_ends_before_it(
    tmp_path: Path, properties: bytes, append_crc: bool, keep_size: bool
) -> None:
    config = config_of(tmp_path / "whole", append_crc_property=append_crc)
    store = opened(config)
    ends = [put(store, body=BODY, properties=properties, queue_id=number % 2).end_offset for number in range(3)]
    assert store.flush()
    shutil.copytree(config.root, tmp_path / "unflushed")
    last = put(store, body=BODY, properties=properties)
    shutil.copytree(config.commitlog_path, tmp_path / "unflushed" / "commitlog", dirs_exist_ok=True)
    assert store.shutdown()
    whole = log_records(config)
    # What a queue's last two zero bytes are, the length of no properties, no one can tell from what was never there.
    sound_from = last.size if properties or append_crc else last.size - 2
    for byte in range(last.size):
        copy = config_of(tmp_path / "cut", append_crc_property=append_crc)
        shutil.copytree(tmp_path / "unflushed", copy.root)
        cut_log(copy, ends[-1] + byte, keep_size=keep_size)
        store = opened(copy)
        end = ends[-1] if byte < sound_from else last.end_offset
        assert store.max_physical_offset == end, byte
        assert len(read_all(store)) == 3 + (byte >= sound_from)
        assert put(store, body=BODY, properties=properties).physical_offset == end
        assert store.shutdown()
        assert log_records(copy)[:4] == whole or byte >= sound_from
        if byte % 10 == 0:
            check_derived(copy)
        shutil.rmtree(copy.root)


def slave_without_bytes(tmp_path: Path, *body_bytes: int) -> tuple[int, int, Callable[[int, int], None]]:
    """Make a master's log of a record with one byte and of records with other bodies.

    Returns:
        Where the properties of the second record begin, where it ends, and a check: a slave whose log is forced up to
        an offset and then lacks some bytes ends before that record, and takes the rest from its master.
    """
    master = opened(config_of(tmp_path / "master"))
    properties = b"KEYS\x01key\x02TAGS\x01tag\x02UNIQ_KEY\x01unique\x02"
    ends = [put(master, body=b"b" * size, properties=properties).end_offset for size in (1, *body_bytes)]
    whole = bytes(master.read_log_range(0, ends[-1]) or b"")
    master.shutdown()
    config = config_of(tmp_path / "slave", slave=True)

    def check(forced: int, lost_bytes: int) -> None:
        slave = opened(config)
        assert slave.append_to_commit_log(0, whole[:forced])
        assert slave.flush()
        assert slave.append_to_commit_log(forced, whole[forced:])
        shutil.copytree(config.root, tmp_path / "lost")
        slave.shutdown()
        with Path(tmp_path, "lost", "commitlog", f"{0:020d}").open("r+b") as file:
            file.seek(forced)
            file.write(bytes(lost_bytes))
        lost = replace(config, root=str(tmp_path / "lost"), commitlog_path="")
        slave = opened(lost)
        assert slave.max_physical_offset == ends[0], forced
        assert slave.append_to_commit_log(ends[0], whole[ends[0] :])
        assert slave.shutdown()
        check_derived(lost)
        shutil.rmtree(lost.root)
        shutil.rmtree(config.root)

    return ends[1] - len(properties), ends[1], check


def test_a_push_that_was_undone_in_part_ends_a_slaves_log(tmp_path: Path) -> None:
    """A full disk refused a push in the middle of a record, and then some of the zeros that undo it."""
    begins, end, check = slave_without_bytes(tmp_path, 200, 40)
    for pushed in range(begins, end - 1, 3):
        check(pushed, 1 + pushed % 5 if pushed + 5 < end else 1)


@pytest.mark.parametrize("body_bytes", [240, 277], ids=["ends_in_the_sector", "goes_on_in_the_next"])
def test_a_sector_that_was_forced_in_the_middle_of_a_record_and_then_lost_ends_a_slaves_log(
    tmp_path: Path, body_bytes: int
) -> None:
    begins, end, check = slave_without_bytes(tmp_path, body_bytes, 400)
    for forced in range(begins, min(end, SECTOR_BYTES), 4):
        check(forced, SECTOR_BYTES - forced)


def test_an_interrupted_batch_is_not_there(tmp_path: Path) -> None:
    config = filled(config_of(tmp_path / "store"), 20)
    crash(config)
    before = log_records(config)
    offset = before[-1][0] + len(before[-1][1])
    path = Path(config.commitlog_path) / f"{0:020d}"
    with path.open("r+b") as file:  # all but the first eight bytes, which are written last
        file.seek(offset + 8)
        file.write(before[-1][1][8:])
    store = opened(config)
    assert store.max_physical_offset == offset
    assert store.shutdown()
    assert log_records(config) == before
    assert not any(path.read_bytes()[offset:])


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize(
    "lost",
    [
        ("checkpoint",),
        ("watermark",),
        ("checkpoint", "watermark"),
        ("index",),
        ("consumequeue",),
        ("consumequeue", "index", "checkpoint", "watermark"),
        ("config",),
    ],
    ids="+".join,
)
def test_what_is_derived_can_be_lost(tmp_path: Path, lost: tuple[str, ...], crashed: bool) -> None:
    config = filled(config_of(tmp_path / "store"))
    before = log_records(config)
    for name in lost:
        path = Path(config.root) / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if crashed:
        crash(config)
    store = opened(config)
    assert len(read_all(store)) == store._queues.unit_total
    assert store.shutdown()
    assert log_records(config) == before
    check_derived(config)


@pytest.mark.parametrize("has_notes", [True, False])
def test_files_that_were_made_and_never_forced_are_gone_after_a_loss_of_power(tmp_path: Path, has_notes: bool) -> None:
    config = filled(config_of(tmp_path / "store"))
    before = tree(Path(config.root))
    last = max(name for name in before if name.startswith("consumequeue/Orders/0/"))
    made = f"consumequeue/Orders/0/{int(Path(last).name) + config.consumequeue_file_bytes:020d}"
    for name in (made, "consumequeue/Lost/0/00000000000000000000"):
        path = Path(config.root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(config.consumequeue_file_bytes))
    indexes = sorted((Path(config.root) / "index").iterdir())
    for path in indexes[-2:]:
        path.write_bytes(bytes(40) + path.read_bytes()[40:])
    if not has_notes:
        for name in ("checkpoint", "watermark"):
            (Path(config.root) / name).unlink()
    crash(config)
    assert opened(config).shutdown()
    check_derived(config)
    assert len(indexes) > 2


def test_an_index_file_without_a_header_is_made_anew(tmp_path: Path) -> None:
    config = config_of(tmp_path / "store")
    store = opened(config)
    put(store)
    assert store.shutdown()
    for name in ("checkpoint", "watermark"):
        (Path(config.root) / name).unlink()
    (path,) = (Path(config.root) / "index").iterdir()
    path.write_bytes(bytes(index_file_bytes(config.index_slots, config.index_entries)))
    crash(config)
    assert opened(config).shutdown()
    check_derived(config)


@pytest.mark.parametrize("name", ["checkpoint", "watermark"])
def test_small_files_of_noise_mislead_no_one(tmp_path: Path, name: str) -> None:
    config = filled(config_of(tmp_path / "store"))
    source = random.Random(5)
    for size in (0, 1, 40, 512, 1024, 4096):
        (Path(config.root) / name).write_bytes(source.randbytes(size))
        assert opened(config).shutdown()
        check_derived(config)


def test_a_clean_start_has_nothing_to_do_and_a_second_recovery_changes_nothing(tmp_path: Path) -> None:
    config = filled(config_of(tmp_path / "store"))
    store = opened(config)
    report = store.recovery
    assert (report.is_clean, report.is_trusted, report.is_new, report.unit_count) == (True, True, False, 0)
    assert store.shutdown()
    crash(config)
    trees = []
    for _ in range(2):
        assert opened(config).shutdown()
        trees.append({name: data for name, data in tree(Path(config.root)).items() if name != "watermark"})
    assert trees[0] == trees[1]


def test_a_clean_shutdown_leaves_dispatch_complete(open_store: Opener) -> None:
    store = open_store()
    for number in range(50):
        put(store, queue_id=number % 3, properties=b"KEYS\x01k%d\x02" % number)
    assert store.dispatched_offset == 0
    assert store.shutdown()
    assert not (Path(store.config.root) / "abort").exists()
    check_derived(store.config)
    assert open_store().recovery.unit_count == 0


def test_a_unit_that_a_clean_shutdown_of_the_original_loses_is_made_good(tmp_path: Path) -> None:
    config = filled(config_of(tmp_path / "store"))
    store = opened(config)
    queue = max(store._queues, key=lambda queue: queue.last_end())
    assert queue.last_end() <= store.max_physical_offset
    queue.trim(queue.max_offset - 1)
    store._queues.open_files.close_all()
    for name in ("watermark", "abort"):
        (Path(config.root) / name).unlink()
    store._closing.close()
    assert opened(config).shutdown()
    check_derived(config)


def test_one_process_has_a_store_at_a_time(open_store: Opener) -> None:
    store = open_store()
    with pytest.raises(StoreLockedError, match="has the store open already"):
        open_store()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            opened(store.config)
        except StoreLockedError:
            os.write(writing, b"locked")
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"locked"
    assert (Path(store.config.root) / "abort").read_text() == str(os.getpid())
    assert store.shutdown()
    assert open_store().shutdown()


@pytest.mark.parametrize(
    "changes", [{"commitlog_file_bytes": 8192}, {"commitlog_file_bytes": 32768}, {"consumequeue_file_bytes": 800}]
)
def test_other_sizes_are_refused_and_nothing_is_changed(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = filled(config_of(tmp_path / "store"))
    before = tree(Path(config.root))
    with pytest.raises(StoreSizeError):
        opened(config_of(tmp_path / "store", **changes))
    assert tree(Path(config.root)) == before
    assert opened(config).shutdown()


def test_stray_files_and_directories_are_passed_over(tmp_path: Path) -> None:
    config = filled(config_of(tmp_path / "store"))
    strays = [
        "commitlog/.DS_Store", "commitlog/00000000000000016384.bak", "commitlog/sub/00000000000000000000",
        "consumequeue/file", "consumequeue/Orders/x/y", "consumequeue/Orders/0/lost+found/z", "index/notes.txt",
        "index/sub/20240101000000000",
    ]  # fmt: skip
    for name in strays:
        path = Path(config.root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"stray")
    store = opened(config)
    assert store.recovery.unit_count == 0
    assert store.shutdown()
    assert all((Path(config.root) / name).read_bytes() == b"stray" for name in strays)


def test_a_log_file_that_lacks_is_told_and_the_rest_is_served(tmp_path: Path) -> None:
    config = filled(config_of(tmp_path / "store"), 300)
    starts = sorted(int(path.name) for path in Path(config.commitlog_path).iterdir())
    assert len(starts) > 3
    gone = [offset for offset, _ in log_records(config) if offset // 16384 == 1]
    (Path(config.commitlog_path) / f"{starts[1]:020d}").unlink()
    crash(config)
    store = opened(config)
    assert store.recovery.missing_files == (starts[1],)
    wanted = [message.physical_offset for message in records(config) if message.sys_flag & 0xC in (0, 8)]
    found = sorted(int.from_bytes(record[28:36], "big") for record in read_all(store))
    assert found == wanted
    assert not set(found) & set(gone)
    assert store.shutdown()


def test_rests_behind_an_end_that_the_original_cut_do_not_come_back(tmp_path: Path) -> None:
    config = config_of(tmp_path / "store")
    store = opened(config)
    offsets = [put(store, body=b"%03d" % number, now_ms=NOW_MS + number).physical_offset for number in range(20)]
    assert store.shutdown()
    for name in ("watermark", "checkpoint"):
        (Path(config.root) / name).unlink()
    crash(config)
    path = Path(config.commitlog_path) / f"{0:020d}"
    image = bytearray(path.read_bytes())
    newer, size = 5_000_000, offsets[1]
    at = offsets[10]  # the original cut here, wrote one newer message, which is smaller, and was killed
    record = bytearray(image[:size])
    record[28:36] = at.to_bytes(8, "big")
    record[20:28] = (10).to_bytes(8, "big")
    record[56:64] = (NOW_MS + newer).to_bytes(8, "big")
    image[at : at + size] = record
    image[at + size : at + 2 * size - 20] = bytes(size - 20)
    path.write_bytes(image)
    store = opened(config)
    assert store.max_physical_offset == at + size
    assert store.max_offset("T", 0) == 11
    assert store.shutdown()
    check_derived(config)


@pytest.mark.parametrize("shift_ms", [-86_400_000, 86_400_000, 3_650 * 86_400_000])
def test_a_clock_that_jumps_stops_nothing(tmp_path: Path, shift_ms: int) -> None:
    config = filled(config_of(tmp_path / "store"), 100)
    for crashed in (False, True):
        if crashed:
            crash(config)
        store = opened(config, NOW_MS + shift_ms)
        before = store.next_offset("Orders", 0)
        result = put(store, "Orders", now_ms=NOW_MS + shift_ms)
        assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, before)
        assert store.shutdown()
    crash(config)
    store = opened(config)
    assert store.recovery.tail == store.recovery.damages == ()
    assert store.next_offset("Orders", 0) == before + 1
    assert store.shutdown()
    check_derived(config)


def test_deleted_topics_stay_deleted(tmp_path: Path) -> None:
    config = filled(config_of(tmp_path / "store"))
    store = opened(config)
    assert store.delete_topics(["Orders", "Unknown"]) == 1
    assert "Orders" not in store.topics()
    assert put(store, "Orders").queue_offset == 0
    assert store.shutdown()
    (Path(config.root) / "watermark").unlink()
    shutil.rmtree(Path(config.root) / "consumequeue")
    crash(config)
    store = opened(config)
    assert store.topics()["Orders"] == [0]
    assert (store.min_offset("Orders", 0), store.max_offset("Orders", 0)) == (0, 1)
    assert store.shutdown()


# --- damage ---------------------------------------------------------------------------------


@pytest.mark.torture
@pytest.mark.parametrize("seed", rounds(4))
@pytest.mark.parametrize("crashed", [False, True])
def test_damage_in_mid_log_costs_no_other_message(tmp_path: Path, seed: int, crashed: bool) -> None:
    source = random.Random(seed)
    whole = filled(config_of(tmp_path / "whole", append_crc_property=True), 60, seed)
    before = log_records(whole)
    served = {message.physical_offset for message in records(whole) if message.sys_flag & 0xC in (0, 8)}
    for _ in range(25):
        config = config_of(tmp_path / "store", append_crc_property=True)
        shutil.copytree(whole.root, config.root)
        if crashed:
            crash(config)
        hurt, record = source.choice(before[:-1])
        path = Path(config.commitlog_path) / f"{hurt - hurt % 16384:020d}"
        image = bytearray(path.read_bytes())
        covered = len(record) - 20  # all but the checksum itself
        first = source.randrange(covered)
        length = source.choice([1, 1, 4, covered - first])
        for at in range(first, min(first + length, covered)):
            image[hurt % 16384 + at] ^= source.randrange(1, 256)
        path.write_bytes(image)
        store = opened(config)
        report = store.recovery
        assert [damage.physical_offset for damage in report.damages] == [hurt]
        assert store.max_physical_offset == before[-1][0] + len(before[-1][1])
        kept = Path(report.quarantined[0])
        assert kept.read_bytes() == image[hurt % 16384 : hurt % 16384 + len(record)]
        note = json.loads(kept.with_suffix(".json").read_text())
        assert (note["physical_offset"], note["size"]) == (hurt, len(record))
        found = {int.from_bytes(data[28:36], "big") for data in read_all(store)}
        assert found == served - {hurt}
        assert store.shutdown()
        after = log_records(config)
        assert [item for item in after if item[0] != hurt] == [item for item in before if item[0] != hurt]
        store = opened(config)
        assert store.recovery.damages == ()
        assert store.shutdown()
        # Keys of the damaged record stay in the Index, where they lead to nothing.
        check_derived(config, index=False)
        shutil.rmtree(config.root)


def test_a_damaged_end_of_what_was_flushed_is_kept_aside(tmp_path: Path) -> None:
    config = filled(config_of(tmp_path / "store"), 60)
    offset, record = log_records(config)[-1]
    cut_log(config, offset + 50)
    store = opened(config)
    assert store.max_physical_offset == offset
    assert [damage.physical_offset for damage in store.recovery.tail] == [offset]
    assert Path(store.recovery.quarantined[0]).read_bytes().rstrip(b"\0") == record[:50].rstrip(b"\0")
    assert store.shutdown()
    check_derived(config)


def test_what_takes_the_place_of_a_damaged_end_counts_for_the_index_as_it_does_in_a_rebuild(tmp_path: Path) -> None:
    config = config_of(tmp_path / "store", commitlog_file_bytes=4096, index_entries=10)
    store = opened(config, threads=NoThreads())
    for number in range(9):  # which fill an IndexFile
        put(store, properties=b"KEYS\x01k%d\x02" % number)
    place = put(store).physical_offset
    assert put(store, body=bytes(3000)).physical_offset == 4096  # behind a BLANK
    shutil.copytree(config.root, tmp_path / "left")
    store.shutdown()
    left = replace(config, root=str(tmp_path / "left"), commitlog_path="")
    (Path(left.commitlog_path) / f"{4096:020d}").unlink()
    with (Path(left.commitlog_path) / f"{0:020d}").open("r+b") as file:
        file.seek(place + 88)  # its body
        file.write(b"B")
    store = opened(left)
    assert [damage.physical_offset for damage in store.recovery.damages] == [place]
    assert store.max_physical_offset == 4096
    assert store.shutdown()
    check_derived(left)


def test_numbers_of_damaged_messages_are_not_given_again(tmp_path: Path) -> None:
    config = config_of(tmp_path / "store")
    store = opened(config)
    places = [put(store, body=b"%03d" % number).physical_offset for number in range(10)]
    put(store, "Other")
    assert store.shutdown()
    path = Path(config.commitlog_path) / f"{0:020d}"
    image = bytearray(path.read_bytes())
    image[places[9] + 88] ^= 1  # the last of its queue
    path.write_bytes(image)
    store = opened(config)
    assert store.max_offset("T", 0) == 9
    assert put(store).queue_offset == 10
    store.dispatch()
    assert (store.max_offset("T", 0), len(read_all(store, "T"))) == (11, 10)
    assert store.shutdown()
