"""The real Apache RocketMQ opens a repaired store, and reads on behind what was quarantined."""

import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from rmq_core.client import Message, Producer
from rmq_core.remoting.loop import run
from rmq_formats.codecs.layout import EXT_FILE_BYTES
from rmq_formats.store import Store
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.repair.config import repair_config
from rmq_offline.repair.job import repair_store
from rmq_offline.repair.report import RepairReport
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.verify.findings import Severity
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.conftest import GOLDEN_SETTINGS
from tests.interop import peer
from tests.interop.test_namesrv_against_java import wait_for
from tests.interop.test_store_handed_over import HandedOver
from tests.repair.damaged_logs import is_written_by_repair, sound_messages, sound_records
from tests.support.oracles.consumequeue import goes_to_consumequeue
from tests.support.stores.store_files import tree
from tests.support.stores.verified_stores import (
    FILE_BYTES,
    SIZES,
    patch,
    store_whose_clock_went_back,
)

pytestmark = pytest.mark.peer

MIB = 1 << 20
Damage = Callable[[list[Path]], None]


def settings_of(name: str) -> dict[str, object]:
    settings = GOLDEN_SETTINGS[name]
    return {
        "mappedFileSizeCommitLog": settings.commitlog_file_bytes,
        "mappedFileSizeConsumeQueue": settings.consumequeue_file_bytes,
        "maxHashSlotNum": settings.index_slots,
        "maxIndexNum": settings.index_entries,
        "messageDelayLevel": settings.delay_levels,
        "enableConsumeQueueExt": settings.ext_file_bytes is not None,
        "mappedFileSizeConsumeQueueExt": settings.ext_file_bytes or EXT_FILE_BYTES,
    }


def consumed(store: Path, name: str) -> set[tuple[str, int, int]]:
    """Topic, queue and queue offset of each message that the original's consumers are given."""
    lines = peer.command("queues", str(store), *(f"{key}={value}" for key, value in settings_of(name).items()))
    messages = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    return {(message["topic"], message["queue_id"], message["queue_offset"]) for message in messages}


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


def repair_as_planned(store: Path) -> RepairReport:
    """Repair a store, and accept what the plan says that queues lose."""
    changes = repair_store(str(store), VerifyOptions(), ProcessRunner(1), apply=False).outcome.planned
    accept = [] if changes is None else [change.name for change in changes.needing_accept()]
    return repair_store(str(store), VerifyOptions(), ProcessRunner(1), apply=True, accept=accept)


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
@pytest.mark.long
def test_java_reads_every_sound_message_of_a_repaired_store(
    golden: Callable[[str], Path], tmp_path: Path, name: str, damage: Damage, is_killed: bool
) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden(name) / "store", store)
    damage(sorted((store / "commitlog").iterdir()))
    expected = sound_records(store, GOLDEN_SETTINGS[name].commitlog_file_bytes)
    repair_as_planned(store)
    repaired = files_with_data(store)
    if is_killed:
        (store / "abort").write_text("1")
    report = peer.rebuild(store, **settings_of(name))
    assert report["loaded"]
    records = [record for record in peer.dump(store) if not is_written_by_repair(record["topic"], record["sys_flag"])]
    assert {record["physical_offset"]: record["body_crc"] for record in records} == expected
    assert files_with_data(store) == repaired, "Java has truncated or dispatched something"
    assert report["bytes"] > max(expected)


@pytest.mark.parametrize("damage", [junk_over_two_files, flips, one_file_missing])
def test_consumers_of_the_original_get_every_sound_message_and_nothing_else(
    golden: Callable[[str], Path], tmp_path: Path, damage: Damage
) -> None:
    """A message that no unit's record can be read of makes them pass over those behind it in the log's first file."""
    store = tmp_path / "store"
    shutil.copytree(golden("mixed") / "store", store)
    damage(sorted((store / "commitlog").iterdir()))
    expected = {
        (message.topic, message.queue_id, message.queue_offset)
        for message in sound_messages(store, GOLDEN_SETTINGS["mixed"].commitlog_file_bytes)
        if goes_to_consumequeue(message.sys_flag)
    }
    done = repair_as_planned(store)
    assert done.lost > 0
    given = consumed(store, "mixed")
    # Places of the broker's own topics are not kept, and pulls pass over what stands behind them.
    own = ("SCHEDULE_TOPIC_", "RMQ_SYS_")
    assert {item for item in given if not item[0].startswith(own)} == {
        item for item in expected if not item[0].startswith(own)
    }


@pytest.mark.long
def test_java_s_consumers_get_the_same_before_and_after_a_repair_of_one_queue(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """One bad unit: its message comes back, all other queues give the original's consumers what they gave."""
    store = shutil.copytree(golden("mixed") / "store", tmp_path / "store")
    sound = consumed(shutil.copytree(store, tmp_path / "sound"), "mixed")
    path = next(path for path in sorted((store / "consumequeue" / "Orders").rglob("0*")) if path.is_file())
    patch(path, 7, b"\xff")
    damaged = consumed(shutil.copytree(store, tmp_path / "damaged"), "mixed")
    assert damaged < sound
    report = repair_store(str(store), VerifyOptions(), ProcessRunner(1), apply=True)
    assert (report.is_clean, report.disturbed, report.outcome.unaccepted_queues) == (True, (), [])
    assert consumed(store, "mixed") == sound


@pytest.mark.usefixtures("each_release")
@pytest.mark.long
def test_java_and_a_repair_leave_a_queue_whose_last_units_are_lost_and_a_rebuild_restores_them(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """No broker adds what stands in the log before the last message that another queue names."""
    store = shutil.copytree(golden("mixed") / "store", tmp_path / "store")
    sound = consumed(shutil.copytree(store, tmp_path / "sound"), "mixed")
    path = sorted((store / "consumequeue/Orders/1").iterdir())[-1]
    units = path.read_bytes().rstrip(b"\0")
    path.write_bytes(units[: (len(units) // 20 - 3) * 20].ljust(path.stat().st_size, b"\0"))
    before = files_with_data(store)
    damaged_copy = shutil.copytree(store, tmp_path / "left")
    assert len(consumed(damaged_copy, "mixed")) == len(sound) - 3
    assert files_with_data(damaged_copy) == before
    counts = verify_store(str(store), VerifyOptions(), ProcessRunner(1)).counts
    faults = {kind.code: count for kind, count in counts.items() if kind.severity is not Severity.INFO}
    assert faults == {"consumequeue.unit.not_added": 3}
    report = repair_store(str(store), VerifyOptions(), ProcessRunner(1), apply=True)
    assert (report.steps, len(report.left)) == ((), 1)
    assert files_with_data(store) == before
    settings = GOLDEN_SETTINGS["mixed"]
    sizes = StoreSizes(settings.commitlog_file_bytes, settings.consumequeue_file_bytes)
    rebuild_store(str(store), None, RebuildOptions(consumequeue=True, index=False, sizes=sizes), ProcessRunner(1))
    assert consumed(store, "mixed") == sound


@pytest.mark.usefixtures("each_release")
@pytest.mark.long
def test_java_s_consumers_get_new_messages_of_queues_that_lost_all_or_their_last_ones(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Of queues that the broker itself consumes, lost messages have no placeholder in the log."""
    store = shutil.copytree(golden("mixed") / "store", tmp_path / "store")
    files = sorted((store / "commitlog").iterdir())
    junk_over_two_files(files)
    half_units = (store / "consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/0/00000000000000000000").read_bytes()
    last_half_message = int.from_bytes(half_units[15 * 20 :][:8], "big") - 2 * MIB
    patch(files[2], last_half_message, random.Random(5).randbytes(488))
    planned = repair_store(str(store), VerifyOptions(), ProcessRunner(1), apply=False).outcome.planned
    assert planned is not None
    assert planned.needing_accept() == []
    assert repair_store(str(store), VerifyOptions(), ProcessRunner(1), apply=True).is_clean
    ends = {"SCHEDULE_TOPIC_XXXX": 4, "rmq_sys_wheel_timer": 4, "RMQ_SYS_TRANS_HALF_TOPIC": 16}
    before = consumed(shutil.copytree(store, tmp_path / "before"), "mixed")
    for _ in range(2):
        put_messages(store, "mixed", ends, tmp_path / "script")
    new = consumed(store, "mixed") - before
    assert new == {(topic, 0, end + number) for topic, end in ends.items() for number in range(10)}


def put_messages(store: Path, name: str, topics: Iterable[str], script: Path) -> None:
    """Start Java's broker core, and put five messages in queue 0 of each topic."""
    settings = [f"{key}={value}" for key, value in settings_of(name).items()]
    steps = [["open", str(store), *settings], *(["put", topic, "0", "5", "20"] for topic in topics), ["close"]]
    script.write_text("\n".join("\t".join(words) for words in steps))
    peer.build()
    answer = subprocess.run(
        ["bash", peer.SCRIPT, "lives", "1"],
        input=f"{script}\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert answer.stdout == f"{script}\tok\n"


@pytest.mark.long
def test_java_opens_topics_and_groups_that_were_made_anew(golden: Callable[[str], Path], tmp_path: Path) -> None:
    store = shutil.copytree(golden("mixed") / "store", tmp_path / "store")
    sound = consumed(shutil.copytree(store, tmp_path / "sound"), "mixed")
    for path in (store / "config").glob("*"):
        if path.name.startswith(("topics.json", "subscriptionGroup.json")):
            path.unlink()
    assert repair_config(str(store), apply=True).is_clean
    assert consumed(store, "mixed") == sound


@pytest.mark.usefixtures("each_release")
@pytest.mark.long
def test_java_delivers_the_timer_messages_after_one_that_is_lost(tmp_path: Path) -> None:
    handed_over, store = HandedOver(tmp_path), tmp_path / "store"
    lost, kept = b"L" * 300, b"K" * 300
    with handed_over.javas() as running:

        async def send() -> None:
            async with Producer(running.namesrv, "timers") as producer:
                due_ms = time.time_ns() // 1_000_000 + 25_000
                for number, body in enumerate((b"now", lost, kept)):
                    at_ms = due_ms + 1000 * number if number else None
                    await producer.send(Message("Kinds", body, deliver_at_ms=at_ms))

        run(send())
        wait_for(lambda: any(store.glob("timerlog/*")))
        time.sleep(2)  # in which the messages are put into the wheel
        running.process.terminate()
        running.process.wait(60)
    path = store / "commitlog" / f"{0:020d}"
    patch(path, path.read_bytes().index(lost), b"\xff")
    repaired = repair_store(str(store), VerifyOptions(), ProcessRunner(1), apply=True)
    assert (repaired.lost, repaired.is_clean) == (1, True)
    with handed_over.javas():
        wait_for(lambda: {message.body for message in Store(str(store)).messages("Kinds")} == {b"now", kept})


@pytest.mark.long
def test_java_keeps_the_index_of_a_repaired_store_whose_clock_went_back(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store_whose_clock_went_back(store)
    (store / "abort").touch()
    patch(store / "consumequeue" / "Orders" / "0" / f"{0:020d}", 7, b"\xff")
    repair_store(str(store), SIZES, ProcessRunner(1), apply=True)
    names = {path.name for path in (store / "index").iterdir()}
    peer.rebuild(
        store,
        mappedFileSizeCommitLog=FILE_BYTES,
        mappedFileSizeConsumeQueue=400,
        maxHashSlotNum=50,
        maxIndexNum=30,
        messageDelayLevel="1s 5s",
    )
    assert names <= {path.name for path in (store / "index").iterdir()}
