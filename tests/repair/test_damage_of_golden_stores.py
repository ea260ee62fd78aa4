"""Every kind of damage on every store that the original wrote; CI runs each kind once, ``make torture-jobs`` all."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from rmq_offline.verify.phases.plan import VerifyOptions
from tests.conftest import GOLDEN_SETTINGS
from tests.repair.damaged_logs import remove_claims, sound_records
from tests.repair.test_damage import (
    bad_checkpoint,
    cut_checkpoint,
    index_is_a_file,
    log_files,
    no_queues,
    parts,
    repair,
    short,
    short_at_the_end,
)
from tests.support.stores.verified_stores import codes, copied, flip_at, patch, verify
from tests.support.torture import TIMES

Damage = Callable[[Path], None]
_BLANK: Final = b"\xcb\xd4\x31\x94"


def first(store: Path) -> Path:
    return log_files(store)[0]


def flips(store: Path) -> None:
    """Of the magic of every fifth record of a file."""
    data, at, count = first(store).read_bytes(), 0, 0
    while data[at + 4 : at + 8] != _BLANK:
        if count % 5 == 0:
            flip_at(first(store), at + 4)
        at, count = at + int.from_bytes(data[at : at + 4], "big"), count + 1


def junk(store: Path) -> None:
    patch(first(store), 30_000, random.Random(1).randbytes(30_000))
    patch(log_files(store)[1], 0, random.Random(2).randbytes(1500))


def zeros_in_the_middle(store: Path) -> None:
    patch(first(store), 8192, bytes(4096))


def record_of_zeros(store: Path) -> None:
    patch(first(store), 0, bytes(int.from_bytes(first(store).read_bytes()[:4], "big")))


def size_of(value: int) -> Damage:
    def damage(store: Path) -> None:
        second = int.from_bytes(first(store).read_bytes()[:4], "big")
        patch(first(store), second, value.to_bytes(4, "big", signed=True))

    damage.__name__ = f"size_of_{value}"
    return damage


def long(store: Path) -> None:
    with first(store).open("ab") as file:
        file.write(b"more" * 100)


def doubled(store: Path) -> None:
    for path in log_files(store):
        os.truncate(path, 2 * path.stat().st_size)


def empty(store: Path) -> None:
    first(store).write_bytes(b"")


def zeros(store: Path) -> None:
    first(store).write_bytes(bytes(first(store).stat().st_size))


def missing(store: Path) -> None:
    log_files(store)[1].unlink()


def stale(store: Path) -> None:
    shutil.copy(first(store), log_files(store)[1])


def misplaced(store: Path) -> None:
    shutil.copy(first(store), store / "commitlog" / f"{first(store).stat().st_size + 100:020d}")


def renamed(store: Path) -> None:
    log_files(store)[-1].rename(store / "commitlog" / f"{9 * first(store).stat().st_size:020d}")


def exchanged(store: Path) -> None:
    one, other = log_files(store)[:2]
    one.rename(store / "aside")
    other.rename(one)
    (store / "aside").rename(other)


def torn_tail(store: Path) -> None:
    path = log_files(store)[-1]
    patch(path, len(path.read_bytes().rstrip(b"\0")), b"\x00\x00\x01\x23\xda\xa3\x20\xa7 half a record")


def no_end_mark(store: Path) -> None:
    patch(first(store), first(store).read_bytes().rindex(_BLANK) - 4, bytes(8))


def foreign(store: Path) -> None:
    (store / "commitlog" / "notes.txt").write_text("mine\n")
    (store / "index" / "old").mkdir()


def queue_files_gone(store: Path) -> None:
    for path in (store / "consumequeue").rglob("0" * 20):
        path.unlink()


def queues_of_junk(store: Path) -> None:
    chance = random.Random(3)
    for path in (store / "consumequeue").rglob("0" * 20):
        path.write_bytes(chance.randbytes(path.stat().st_size))


def index_of_junk(store: Path) -> None:
    for path in (store / "index").iterdir():
        patch(path, 0, random.Random(4).randbytes(1000))


DAMAGES: Final[tuple[Damage, ...]] = (
    flips, junk, zeros_in_the_middle, record_of_zeros, size_of(0), size_of(-1), size_of((1 << 31) - 1), short,
    short_at_the_end, long, empty, zeros, missing, misplaced, renamed,
    exchanged, stale, torn_tail,
    no_end_mark, foreign, no_queues, queue_files_gone, queues_of_junk, index_of_junk, index_is_a_file, bad_checkpoint,
    cut_checkpoint, doubled,
)  # fmt: skip
CASES: Final = [(name, damage) for damage in DAMAGES for name in GOLDEN_SETTINGS]
_NAMES: Final = list(GOLDEN_SETTINGS)
# Each kind once, on the stores in turn; a misplaced file is hardest to tell in a log of three.
_SAMPLE: Final = [
    *((_NAMES[number % len(_NAMES)], damage) for number, damage in enumerate(DAMAGES) if damage is not misplaced),
    ("mixed", misplaced),
]


@pytest.mark.torture
@pytest.mark.parametrize(
    ("name", "damage"), CASES if TIMES > 1 else _SAMPLE, ids=lambda item: getattr(item, "__name__", item)
)
def test_it_is_repaired_and_every_sound_record_stays(
    golden: Callable[[str], Path], tmp_path: Path, name: str, damage: Damage
) -> None:
    store = copied(golden(name) / "store", tmp_path / "store")
    remove_claims(store)
    file_bytes = GOLDEN_SETTINGS[name].commitlog_file_bytes
    damage(store)
    assert not verify(store, VerifyOptions()).is_clean
    sound = sound_records(store, file_bytes)
    planned = repair(store, VerifyOptions(), apply=False)
    assert not (store / "quarantine").exists()
    changes = planned.outcome.planned
    accept = [] if changes is None else [change.name for change in changes.needing_accept()]
    done = repair(store, VerifyOptions(), accept=accept)
    if changes is not None and done.outcome.verified is not None:
        assert done.outcome.verified == changes, "the repair changes what its plan lists"
    # Whose queues are gone and of which no consumer offset tells, that topic may have been deleted and made again.
    expected_codes = {"consumequeue.absent"} if damage is queue_files_gone else set()
    assert done.steps == planned.steps
    assert {finding.kind.code for finding in done.left} <= expected_codes
    assert done.is_clean == (not done.left)
    assert codes(verify(store, VerifyOptions())).keys() <= {"commitlog.queue_offset.gap", *expected_codes}
    records = sound_records(store, file_bytes)
    assert {offset: crc for offset, crc in records.items() if offset in sound} == sound
    assert {path.stat().st_size for path in log_files(store)} == {file_bytes}
    repaired = parts(store)
    assert repair(store, VerifyOptions()).steps == ()
    assert parts(store) == repaired


def test_the_plan_sees_the_log_end_where_the_torn_tail_begins(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """A queue whose only message stands in the torn tail ends where its first file begins, by plan and by repair."""
    store = copied(golden("crash") / "store", tmp_path / "store")
    remove_claims(store)
    queue = store / "consumequeue" / "Large" / "0"
    (queue / f"{0:020d}").rename(queue / f"{4000:020d}")
    (queue / f"{2000:020d}").write_bytes(bytes(2000))
    short(store)
    planned = repair(store, VerifyOptions(), apply=False).outcome.planned
    assert planned is not None
    assert [(change.name, change.largest_after) for change in planned.needing_accept()] == [("Large/0", 100)]
    assert repair(store, VerifyOptions(), accept=("Large/0",)).outcome.verified == planned
