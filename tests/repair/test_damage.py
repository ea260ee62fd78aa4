"""Every kind of damage: what is sound stays, what is not is put aside, and a verification finds nothing more."""

import os
import random
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from rmq_formats.codecs.layout import CHECKPOINT_FILE_BYTES
from rmq_formats.errors import StoreError, StoreLockedError, StoreNotFoundError
from rmq_formats.storage.store_lock import store_lock
from rmq_offline.repair.job import repair_store
from rmq_offline.repair.report import RepairReport
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.conftest import GOLDEN_SETTINGS
from tests.repair.damaged_logs import remove_claims, sound_records
from tests.support.processes.dying_processes import run_and_die
from tests.support.stores.store_files import tree
from tests.support.stores.store_with_queues import write_config, write_log, write_queue
from tests.support.stores.verified_stores import FILE_BYTES, SIZES, codes, copied, flip_at, patch, verify
from tests.support.torture import rounds

Golden = Callable[[str], Path]
Damage = Callable[[Path], None]
KEPT = ("commitlog", "consumequeue", "consumequeue_ext", "index", "config", "checkpoint")


def repair(
    store: Path, options: VerifyOptions = SIZES, *, apply: bool = True, accept: Collection[str] = ()
) -> RepairReport:
    return repair_store(str(store), options, ProcessRunner(1), apply=apply, accept=accept)


def accepted(damage: Damage) -> tuple[str, ...]:
    """What a repair of a damage asks a word for: queues whose last message was the log's last one."""
    return ("all",) if damage is short_at_the_end else ()


def log_files(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def parts(store: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(store).items() if name.partition("/")[0] in KEPT}


def flip(store: Path) -> None:
    path = log_files(store)[1]
    flip_at(path, path.read_bytes().index(b"body "))


def flips(store: Path) -> None:
    for path in log_files(store)[:-1]:
        for at in (95, 100, 1500):
            flip_at(path, at)


def junk(store: Path) -> None:
    patch(log_files(store)[1], 3000, random.Random(1).randbytes(1096))
    patch(log_files(store)[2], 0, random.Random(2).randbytes(1500))


def short(store: Path) -> None:
    os.truncate(log_files(store)[1], 1234)


def short_at_the_end(store: Path) -> None:
    os.truncate(log_files(store)[-1], 300)


def long(store: Path) -> None:
    with log_files(store)[2].open("ab") as file:
        file.write(b"more" * 100)


def empty(store: Path) -> None:
    log_files(store)[2].write_bytes(b"")


def zeros(store: Path) -> None:
    log_files(store)[2].write_bytes(bytes(FILE_BYTES))


def missing(store: Path) -> None:
    log_files(store)[2].unlink()


def two_missing(store: Path) -> None:
    for path in log_files(store)[1:3]:
        path.unlink()


def foreign(store: Path) -> None:
    (store / "commitlog" / "notes.txt").write_text("mine\n")
    (store / "consumequeue" / "Orders" / "notes.txt").write_text("mine too\n")
    (store / "consumequeue" / "Orders" / "0" / "notes.txt").write_text("and this\n")
    (store / "index" / "old").mkdir()


def misplaced(store: Path) -> None:
    shutil.copy(log_files(store)[0], store / "commitlog" / f"{2 * FILE_BYTES + 100:020d}")


def stale(store: Path) -> None:
    shutil.copy(log_files(store)[0], log_files(store)[2])


def torn_tail(store: Path) -> None:
    path = log_files(store)[-1]
    end = len(path.read_bytes().rstrip(b"\0"))
    patch(path, end, b"\x00\x00\x01\x23\xda\xa3\x20\xa7 half a record")


def no_end_mark(store: Path) -> None:
    path = log_files(store)[1]
    at = path.read_bytes().rindex(b"\xcb\xd4\x31\x94") - 4
    patch(path, at, bytes(8))


def after_the_end_mark(store: Path) -> None:
    path = log_files(store)[1]
    at = path.read_bytes().rindex(b"\xcb\xd4\x31\x94") + 4
    patch(path, at, b"left behind")


def bad_topic(store: Path) -> None:
    path = log_files(store)[1]
    at = path.read_bytes().index(b"Orders")
    patch(path, at, b"../../")


def cycle(store: Path) -> None:
    path = min((store / "index").iterdir())
    patch(path, 40 + 50 * 4 + 20 * 3 + 16, (9).to_bytes(4, "big"))


def no_queues(store: Path) -> None:
    shutil.rmtree(store / "consumequeue")


def queue_files_gone(store: Path) -> None:
    for path in (store / "consumequeue").rglob("0" * 20):
        path.unlink()


def queue_file_cut(store: Path) -> None:
    os.truncate(store / "consumequeue" / "Clicks" / "0" / ("0" * 20), 100)


def index_is_a_file(store: Path) -> None:
    shutil.rmtree(store / "index")
    (store / "index").write_bytes(b"a file\n")


def bad_checkpoint(store: Path) -> None:
    (store / "checkpoint").write_bytes(b"\x7f" * CHECKPOINT_FILE_BYTES)


def cut_checkpoint(store: Path) -> None:
    (store / "checkpoint").write_bytes(b"\0" * 7)


def bad_config(store: Path) -> None:
    path = store / "config" / "topics.json"
    shutil.copy(path, f"{path}.bak")
    path.write_text('{"topicConfigTable":{"Ord')


ON_THE_LOG = (
    flip, flips, junk, short, short_at_the_end, long, empty, zeros, missing, two_missing, misplaced, stale, torn_tail,
    no_end_mark, after_the_end_mark, bad_topic,
)  # fmt: skip
ELSEWHERE = (
    foreign, cycle, no_queues, queue_files_gone, queue_file_cut, index_is_a_file, bad_checkpoint, cut_checkpoint,
    bad_config,
)  # fmt: skip


@pytest.mark.parametrize("damage", [*ON_THE_LOG, *ELSEWHERE])
def test_damage_is_repaired_and_every_sound_record_stays(store: Path, damage: Damage) -> None:
    damage(store)
    found = verify(store)
    before = tree(store)
    sound = sound_records(store, FILE_BYTES)
    planned = repair(store, apply=False)
    assert tree(store) == before, "a plan writes nothing"
    assert not found.is_clean
    assert not planned.is_clean

    done = repair(store, accept=accepted(damage))
    assert done.left == ()
    assert done.is_clean
    assert done.steps == planned.steps
    assert {code for code in codes(verify(store)) if code != "commitlog.queue_offset.gap"} == set()
    records = sound_records(store, FILE_BYTES)
    assert {offset: crc for offset, crc in records.items() if offset in sound} == sound
    assert len(log_files(store)) >= 5
    assert {path.stat().st_size for path in log_files(store)} == {FILE_BYTES}

    repaired = parts(store)
    again = repair(store)
    assert (again.steps, again.is_clean) == ((), True)
    assert parts(store) == repaired


@pytest.mark.parametrize("damage", ON_THE_LOG)
def test_every_byte_that_was_overwritten_is_in_the_quarantine(store: Path, damage: Damage) -> None:
    damage(store)
    before = {path.name: path.read_bytes() for path in log_files(store)}
    repair(store, accept=accepted(damage))
    aside = store / "quarantine" / "0001"
    restored = {path.name: bytearray(path.read_bytes()) for path in log_files(store)}
    for copy in (aside / "commitlog").glob("*"):
        name, dot, position = copy.name.partition(".")
        if not dot:  # a file that was moved
            restored[name] = bytearray(copy.read_bytes())
            continue
        data = copy.read_bytes()
        restored[name] = restored[name].ljust(int(position), b"\0")
        restored[name][int(position) : int(position) + len(data)] = data
    for name, data in before.items():
        changed = [at for at, byte in enumerate(data) if restored[name][at] != byte]
        # Zeros that end a file are not copied; an end mark may stand there now.
        assert not any(data[at] for at in changed), (name, changed)
    assert (aside / "manifest.json").exists()


def test_what_was_in_the_way_is_moved_and_never_deleted(store: Path) -> None:
    foreign(store)
    repair(store)
    aside = store / "quarantine" / "0001"
    assert (aside / "commitlog" / "notes.txt").read_text() == "mine\n"
    assert (aside / "consumequeue" / "Orders" / "notes.txt").read_text() == "mine too\n"
    assert (aside / "consumequeue" / "Orders" / "0" / "notes.txt").read_text() == "and this\n"
    assert (aside / "index" / "old").is_dir()


def test_a_second_repair_has_a_directory_of_its_own(store: Path) -> None:
    flip(store)
    repair(store)
    torn_tail(store)
    assert repair(store).directory == str(store / "quarantine" / "0002")
    assert len(list((store / "quarantine").glob("*/manifest.json"))) == 2


@pytest.mark.torture
@pytest.mark.parametrize("seed", rounds(6))
@pytest.mark.parametrize("name", ["mixed", "exotic_crc"])
def test_golden_stores_with_damage_at_random(golden: Golden, tmp_path: Path, name: str, seed: int) -> None:
    store = copied(golden(name) / "store", tmp_path / "store")
    remove_claims(store)
    file_bytes = GOLDEN_SETTINGS[name].commitlog_file_bytes
    chance = random.Random(seed)
    for _ in range(chance.randrange(1, 5)):
        path = chance.choice(log_files(store))
        size = chance.choice([1, 1, 4, 300, 5000])
        patch(path, chance.randrange(file_bytes - size), chance.randbytes(size))
    sound = sound_records(store, file_bytes)
    done = repair(store, VerifyOptions())
    records = sound_records(store, file_bytes)
    assert {offset: crc for offset, crc in records.items() if offset in sound} == sound
    # A header without a checksum may have been hit; what reads the log comes to its end all the same.
    assert {item.kind.code.partition(".")[0] for item in done.left} <= {"commitlog"}
    assert not any(state.damage_count for state in verify(store, VerifyOptions()).segments)


def test_the_log_is_readable_after_1_mib_of_junk_and_groups_retain_their_offsets(
    golden: Golden, tmp_path: Path
) -> None:
    store = copied(golden("mixed") / "store", tmp_path / "store")
    bytes_of_junk = random.Random(5).randbytes(1 << 20)
    patch(log_files(store)[0], 600_000, bytes_of_junk[: (1 << 20) - 600_000])
    patch(log_files(store)[1], 0, bytes_of_junk[(1 << 20) - 600_000 :])
    sound = sound_records(store, 1 << 20)
    ends = queue_ends(store)
    done = repair(store, VerifyOptions())
    assert done.left == ()
    assert done.lost > 1800
    assert sound_records(store, 1 << 20).items() >= sound.items()
    assert queue_ends(store) == ends


def queue_ends(store: Path) -> dict[str, int]:
    """Bytes up to the end of each queue's last unit."""
    ends: dict[str, int] = {}
    for path in (store / "consumequeue").rglob("0*"):
        if path.is_file() and any(path.read_bytes()):
            name = str(path.parent.relative_to(store / "consumequeue"))
            ends[name] = max(ends.get(name, 0), int(path.name) + -(-len(path.read_bytes().rstrip(b"\0")) // 20) * 20)
    return ends


@pytest.mark.parametrize("damage", [flip, junk, short, missing, two_missing])
def test_lost_messages_that_queues_name_get_placeholders_in_the_log(store: Path, damage: Damage) -> None:
    before = tree(store / "consumequeue")
    damage(store)
    lost = codes(verify(store))["consumequeue.unit.lost"]
    repair(store)
    after = tree(store / "consumequeue")
    assert codes(verify(store)) == {}, "no gap is left"
    assert after.keys() == before.keys()
    changed = [
        (old[at : at + 20], new[at : at + 20])
        for old, new in ((before[path], after[path]) for path in before)
        for at in range(0, len(old), 20)
        if old[at : at + 20] != new[at : at + 20]
    ]
    # Physical offset and size stay; the tags of a lost message are not known.
    assert all(old[:12] == new[:12] and new[12:] == bytes(8) for old, new in changed)
    assert len(changed) == lost > 0


def test_without_queues_lost_messages_are_gaps_reported_as_quarantined(store: Path) -> None:
    flip(store)
    no_queues(store)
    done = repair(store)
    assert (done.left, done.explained) == ((), 1)
    assert codes(verify(store)) == {"commitlog.queue_offset.gap": 1}


def test_a_gap_that_the_queue_has_closed_is_nothing_to_repair(tmp_path: Path) -> None:
    """A broker closes it, and so does a rebuild; a verification tells it all the same."""
    units = write_log(tmp_path, [*range(50), *range(52, 100), *range(98, 110)])
    write_queue(tmp_path, dict(enumerate(units)))
    queues = tree(tmp_path / "consumequeue")
    repair(tmp_path)  # the Index and the checkpoint
    for apply in (False, True):
        done = repair(tmp_path, apply=apply)
        assert (done.left, done.steps, done.explained, done.closed) == ((), (), 0, 2)
        assert done.is_clean
    assert tree(tmp_path / "consumequeue") == queues
    assert codes(verify(tmp_path)) == {"commitlog.queue_offset.gap": 2}


def test_messages_that_no_consumer_gets_are_reported_and_not_repaired(tmp_path: Path) -> None:
    """They were passed over, or their queue has no files and no offsets: a rebuild in place leaves both."""
    *units, other = write_log(tmp_path, [*range(40), *range(35, 50)], "Other")
    write_queue(tmp_path, dict(enumerate([*units[:35], *units[40:]])))
    write_queue(tmp_path, {0: other}, "Other")
    repair(tmp_path)
    done = repair(tmp_path)
    assert ({item.kind.code for item in done.left}, done.steps) == ({"consumequeue.passed_over"}, ())
    shutil.rmtree(tmp_path / "consumequeue" / "Orders")
    write_config(tmp_path, "Orders", "Other")
    done = repair(tmp_path)
    assert ({item.kind.code for item in done.left}, done.steps) == ({"consumequeue.absent"}, ())


def test_a_group_ahead_of_its_queue_is_reported_and_not_changed(golden: Golden, tmp_path: Path) -> None:
    store = copied(golden("mixed") / "store", tmp_path / "store")
    offsets = (store / "config" / "consumerOffset.json").read_bytes()
    patch(log_files(store)[-1], 0, bytes(1 << 20))
    done = repair(store, VerifyOptions())
    assert done.left
    assert {item.kind.code for item in done.left} <= {
        "config.consumer_offset", "config.delay_offset", "config.offset.no_queue",
    }  # fmt: skip
    assert not done.is_clean
    assert (store / "config" / "consumerOffset.json").read_bytes() == offsets


@pytest.mark.parametrize("name", ["topics.json", "topics.json.bak"])  # a kill leaves only the latter
def test_a_topic_that_was_deleted_stays_deleted(store: Path, name: str) -> None:
    (store / "config" / "topics.json").unlink()
    (store / "config" / name).write_text('{"topicConfigTable":{"Orders":{}}}')
    shutil.rmtree(store / "consumequeue" / "Clicks")
    flip(store)
    assert repair(store).left == (), "its keys are in the Index all the same"
    assert [path.name for path in (store / "consumequeue").iterdir()] == ["Orders"]


def hold_lock(store: Path) -> None:
    with store_lock(str(store)):
        assert run_and_die(lambda: expect_refusal(store, apply=False)) is not None
        assert run_and_die(lambda: expect_refusal(store, apply=True)) is not None


def expect_refusal(store: Path, *, apply: bool) -> None:
    with pytest.raises(StoreLockedError):
        repair(store, apply=apply)


def test_a_store_that_a_broker_has_is_refused(store: Path) -> None:
    flip(store)
    before = parts(store)
    hold_lock(store)
    assert parts(store) == before
    assert not (store / "quarantine").exists()


def test_a_store_without_a_log_is_refused(store: Path) -> None:
    shutil.rmtree(store / "commitlog")
    with pytest.raises(StoreNotFoundError):
        repair(store)
    with pytest.raises(StoreNotFoundError):
        repair(store / "nowhere")


def test_a_range_without_room_for_a_filler_is_reported_and_not_repaired(store: Path) -> None:
    path = log_files(store)[0]
    data = path.read_bytes()
    size = int.from_bytes(data[:4], "big")
    second = int.from_bytes(data[size : size + 4], "big")
    # A stretch of fifty bytes, as no broker's record leaves: the record behind it is made to say that it is there.
    moved = bytearray(data[size : size + second])
    moved[28:36] = (50).to_bytes(8, "big")
    patch(path, 0, b"\xff" * 50 + bytes(moved))
    before = path.read_bytes()
    done = repair(store)
    assert any("too few for a filler" in item.detail or item.kind.code == "commitlog.magic" for item in done.left)
    assert not done.is_clean
    assert path.read_bytes()[:50] == before[:50]


@pytest.mark.long
def test_a_log_that_was_changed_between_two_runs_is_not_overwritten(store: Path) -> None:
    junk(store)
    at = 1
    while not list((store / "quarantine").glob("0*/plan.json")):
        run_and_die(lambda: repair(store), at)
        at += 5
    patch(log_files(store)[1], 3200, b"a message that a broker wrote since then")
    before = log_files(store)[1].read_bytes()
    with pytest.raises(StoreError, match=r"changed at \d+ since a repair began"):
        repair(store)
    assert log_files(store)[1].read_bytes() == before
