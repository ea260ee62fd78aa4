"""The real Apache RocketMQ opens a repaired store, and reads on behind what was quarantined."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_formats.layout import EXT_FILE_BYTES
from rmq_formats.offline.repair_filler import TOPIC
from rmq_formats.offline.repair_store import repair_store
from rmq_formats.offline.runner import ProcessRunner
from rmq_formats.offline.verify_plan import VerifyOptions
from tests.conftest import GOLDEN_SETTINGS
from tests.interop import peer
from tests.repair.repairing import sound_records
from tests.stores import tree
from tests.verify.verifying import patch

pytestmark = pytest.mark.peer

MIB = 1 << 20
Damage = Callable[[list[Path]], None]


def open_in_java(store: Path, name: str) -> dict[str, Any]:
    settings = GOLDEN_SETTINGS[name]
    return peer.rebuild(
        store, mappedFileSizeCommitLog=settings.commitlog_file_bytes,
        mappedFileSizeConsumeQueue=settings.consumequeue_file_bytes, maxHashSlotNum=settings.index_slots,
        maxIndexNum=settings.index_entries, messageDelayLevel=settings.delay_levels,
        enableConsumeQueueExt=settings.ext_file_bytes is not None,
        mappedFileSizeConsumeQueueExt=settings.ext_file_bytes or EXT_FILE_BYTES,
    )  # fmt: skip


def files_with_data(store: Path) -> dict[str, bytes]:
    """Log and queues, without the files made in advance, which Java removes and makes again.

    Of ConsumeQueueExt it writes all units anew when it recovers, behind those that are there.
    """
    parts = ("commitlog", "consumequeue")
    return {f"{part}/{name}": data for part in parts for name, data in tree(store / part).items() if any(data)}


def junk_over_two_files(files: list[Path]) -> None:
    junk = random.Random(5).randbytes(MIB)
    patch(files[0], 600_000, junk[: MIB - 600_000])
    patch(files[1], 0, junk[MIB - 600_000 :])


def flips(files: list[Path]) -> None:
    chance = random.Random(3)
    for path in files:
        for _ in range(6):
            patch(path, chance.randrange(path.stat().st_size), b"\xa5")


def cut_in_the_middle(files: list[Path]) -> None:
    data = files[1].read_bytes()
    files[1].write_bytes(data[: len(data) // 2])


def one_file_missing(files: list[Path]) -> None:
    files[1].unlink()


@pytest.mark.parametrize(
    ("name", "damage", "is_killed"),
    [
        ("mixed", junk_over_two_files, False),
        ("mixed", junk_over_two_files, True),
        ("mixed", flips, False),
        ("crash", cut_in_the_middle, True),
        ("mixed", one_file_missing, True),
        ("exotic_crc", flips, True),
    ],
)
def test_java_reads_every_sound_message_of_a_repaired_store(
    golden: Callable[[str], Path], tmp_path: Path, name: str, damage: Damage, is_killed: bool
) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden(name) / "store", store)
    damage(sorted((store / "commitlog").iterdir()))
    expected = sound_records(store, GOLDEN_SETTINGS[name].commitlog_file_bytes)
    repair_store(str(store), VerifyOptions(), ProcessRunner(1), apply=True)
    repaired = files_with_data(store)
    if is_killed:
        (store / "abort").write_text("1")
    report = open_in_java(store, name)
    assert report["loaded"]
    records = [record for record in peer.dump(store) if not TOPIC.startswith(record["topic"])]
    assert {record["physical_offset"]: record["body_crc"] for record in records} == expected
    assert files_with_data(store) == repaired, "Java has truncated or dispatched something"
    assert report["bytes"] > max(expected)
