"""What a rebuild would take from consumers is said before, refused without a word, and compared again afterwards."""

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rmq_formats.codecs.consumequeue import Unit, delay_levels_ms
from rmq_formats.errors import NotAcceptedError, OptionError, StoreLockedError
from rmq_formats.storage.segments import LocalStorage, list_segments
from rmq_formats.storage.store_lock import store_lock
from rmq_offline.rebuild import job
from rmq_offline.rebuild.changes import QueueChange, compare_views
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.rebuild.publication import PublishOptions, parse_publish_options
from rmq_offline.rebuild.queue_views import QueueIdentity, QueueView, RecordHeads, Units, open_tree, view
from rmq_offline.rebuild.report import RebuildReport
from rmq_offline.tasks.quarantine import FormerFiles
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.tasks.store_sizes import StoreSizes
from tests.conftest import MIXED_DELAY_LEVELS
from tests.support.processes import warm_processes
from tests.support.stores.rebuilt_stores import SMALL, built, live, rebuild, small_store
from tests.support.stores.store_files import tree

NO_TOPIC2 = live(SMALL, "Topic0", "Topic1")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A sound store of three topics with two queues of 20 messages each, and a group that has read most of one."""
    root = small_store(tmp_path / "store")
    rebuild(root)
    (root / "config").mkdir()
    offsets = {"Topic2@Readers": {"0": 15, "1": 20}, "Topic1@Readers": {"1": 20}}
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    return root


def planned(store: Path, options: RebuildOptions, work: Path | None = None) -> RebuildReport:
    publishing = PublishOptions(is_plan=True, work=None if work is None else str(work))
    return rebuild_store(str(store), None, options, ProcessRunner(1), publishing=publishing)


def accepting(store: Path, options: RebuildOptions, *names: str) -> RebuildReport:
    return rebuild_store(str(store), None, options, ProcessRunner(1), publishing=PublishOptions(frozenset(names)))


def test_a_plan_of_a_sound_store_changes_nothing(store: Path, tmp_path: Path) -> None:
    before = tree(store)
    (tmp_path / "work").mkdir()
    report = planned(store, SMALL, tmp_path / "work")
    assert report.is_clean
    assert report.to_dict()["changes"] == {
        "queues": [], "groups_outside": [], "messages_leaving": 0, "messages_returning": 0, "needs_accept": [],
    }  # fmt: skip
    assert tree(store) == before
    assert not list((tmp_path / "work").iterdir())


def test_a_plan_has_the_queues_that_would_go_and_the_groups_outside(store: Path) -> None:
    report = planned(store, NO_TOPIC2)
    assert not report.is_clean
    changes = report.to_dict()["changes"]
    assert changes["needs_accept"] == ["Topic2/0", "Topic2/1"]
    assert changes["messages_leaving"] == 40
    assert changes["queues"][0] == {
        "queue": "Topic2/0", "topic": "Topic2", "queue_id": 0, "least_before": 0, "least_after": None,
        "largest_before": 20, "largest_after": None, "messages_before": 20, "messages_after": 0, "leaving": 20,
        "returning": 0, "moved": 0, "leaving_offsets": (0, 19), "needs_accept": True,
    }  # fmt: skip
    assert [(one["group"], one["queue_id"], one["offset"]) for one in changes["groups_outside"]] == [
        ("Readers", 0, 15), ("Readers", 1, 20),
    ]  # fmt: skip


def test_what_nobody_has_accepted_is_refused_and_nothing_is_changed(store: Path) -> None:
    before = tree(store)
    with pytest.raises(NotAcceptedError) as refusal:
        accepting(store, NO_TOPIC2, "Topic1", "Topic2/1")
    assert refusal.value.names == ("Topic2/0",)
    assert "20 messages leave Topic2/0" in str(refusal.value)
    assert "the end of Topic2/0 goes from 20 to none" in str(refusal.value)
    assert refusal.value.with_command(["rmq", "rebuild", "/a b"]).endswith(
        "to accept, run: rmq rebuild '/a b' --accept Topic2/0"
    )
    assert tree(store) == before


@pytest.mark.parametrize("names", [("Topic2",), ("Topic2/0", "Topic2/1"), ("all",)])
def test_what_is_accepted_is_done_and_the_former_files_come_back(store: Path, names: tuple[str, ...]) -> None:
    before = built(store)
    report = accepting(store, NO_TOPIC2, *names)
    assert report.is_clean
    assert [change.name for change in report.outcome.changes.queues] == ["Topic2/0", "Topic2/1"]
    assert report.outcome.quarantine == str(store / "quarantine" / "0001")
    assert report.outcome.quarantine_bytes > 0
    assert built(store / "quarantine" / "0001") == before
    assert not (store / "consumequeue" / "Topic2").exists()
    subprocess.run(report.outcome.bring_back, shell=True, check=True)
    assert built(store) == before


def clear_first_unit(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(bytes(20) + data[20:])


@pytest.mark.parametrize("disturb", [Path.unlink, clear_first_unit])
def test_a_disturbed_publication_is_reported(
    store: Path, monkeypatch: pytest.MonkeyPatch, disturb: Callable[[Path], None]
) -> None:
    """The second comparison looks at the store, not at what was planned."""
    retain = FormerFiles.retain

    def and_disturb_a_file(self: FormerFiles, replaced: Path) -> None:
        retain(self, replaced)
        disturb(min((store / "consumequeue" / "Topic0" / "1").iterdir()))

    monkeypatch.setattr(FormerFiles, "retain", and_disturb_a_file)
    report = accepting(store, SMALL)
    assert not report.is_clean
    assert report.to_dict()["taken_unaccepted"] == ["Topic0/1"]
    assert report.to_dict()["verified"] is False


def test_a_locked_store_is_refused_by_a_plan(store: Path) -> None:
    run = "from rmq_cli.main import main; main()"
    sizes = ["--consumequeue-file-bytes", "400", "--index-slots", "50", "--index-entries", "20"]
    arguments = [sys.executable, "-c", run, "rebuild", str(store), "--plan", *sizes]
    with store_lock(str(store)):  # which does not hold against its own process
        done = warm_processes.run(arguments, capture_output=True, check=False, text=True)
    assert (done.returncode, "a running broker has locked this store" in done.stderr) == (2, True)


def test_a_plan_that_meets_a_lock_late_leaves_no_work_directory(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "refuse_locked_store", lambda _root: None)  # a broker that starts after the check
    with store_lock(str(store)), pytest.raises(StoreLockedError):
        planned(store, SMALL, tmp_path)
    assert not list(tmp_path.glob("*rmq-rebuild-*"))


def test_options_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(OptionError, match="--plan and --out"):
        parse_publish_options(Namespace(plan=True, accept=None, work=None, out="/out"))
    with pytest.raises(OptionError, match="--work: only with --plan"):
        parse_publish_options(Namespace(plan=False, accept=None, work="/work", out=None))


def test_only_the_requested_queues_are_replaced(store: Path) -> None:
    before = built(store)
    inodes = {path: path.stat().st_ino for path in (store / "consumequeue").rglob("0*")}
    options = replace(SMALL, index=False, queues=frozenset({("Topic1", 1)}))
    report = accepting(store, options)
    assert report.is_clean
    assert built(store) == before
    changed = {path for path, inode in inodes.items() if path.is_file() and path.stat().st_ino != inode}
    assert {path.parent for path in changed} == {store / "consumequeue" / "Topic1" / "1"}
    assert {Path(path).parent for path in tree(store / "quarantine")} == {Path("0001/consumequeue/Topic1/1")}
    links = {path.stat().st_nlink for path in store.rglob("*") if path.is_file()}
    assert links == {1}, "a broker that writes into the store must not change the quarantine"


# --- what consumers get of a queue ----------------------------------------------------------


def viewed(store: Path, topic: str, units: dict[int, bytes], file_bytes: int = 400) -> QueueView | None:
    """The view of a queue with these files, of the store's log."""
    for start, data in units.items():
        path = store / "consumequeue" / topic / "0" / f"{start:020d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.ljust(file_bytes, b"\0"))
    segments = list_segments(LocalStorage(), str(store / "commitlog"))
    heads = RecordHeads(segments, segments[-1].start_offset + 100, is_local=True)
    with open_tree(str(store)) as queues:
        return view(QueueIdentity(topic, 0), queues.units(QueueIdentity(topic, 0)), heads)


def test_a_queue_of_expired_messages_retains_its_end(store: Path) -> None:
    (store / "commitlog" / f"{0:020d}").unlink()
    expired = b"".join(Unit(number, 100, 0).encode() for number in range(7))
    found = viewed(store, "Idle", {2000: expired})
    assert found is not None
    assert (found.least, found.largest, found.message_count) == (107, 107, 0)


def test_a_queue_of_zeros_ends_at_its_file_s_name(store: Path) -> None:
    found = viewed(store, "Idle", {2400: b""})
    assert found is not None
    assert (found.least, found.largest) == (120, 120)


def test_a_unit_that_points_to_no_record_of_its_queue_is_no_message(store: Path) -> None:
    own = (store / "consumequeue" / "Topic0" / "0" / f"{0:020d}").read_bytes()
    other = (store / "consumequeue" / "Topic1" / "0" / f"{0:020d}").read_bytes()
    nowhere = Unit(17, 130, 0).encode() + Unit(1 << 40, 130, 0).encode()
    found = viewed(store, "Topic0", {0: own[:100] + other[:40] + nowhere})
    assert found is not None
    assert (found.least, found.largest, found.message_count) == (0, 5, 5)


def test_no_queue_has_no_view(store: Path) -> None:
    assert viewed(store, "None", {}) is None


def a_view(least: int, largest: int, messages: dict[int, int], size: int = 100) -> QueueView:
    offsets, places = (np.array(list(items), dtype=np.int64) for items in (messages.keys(), messages.values()))
    ones = np.ones(len(offsets), dtype=np.int64)
    return QueueView(least, largest, Units(offsets, places, ones * size, ones, 0))


def changed(old: QueueView | None, new: QueueView | None) -> QueueChange | None:
    return compare_views(QueueIdentity("T", 0), old, new)


def test_the_same_messages_at_the_same_offsets_are_no_change() -> None:
    assert changed(a_view(0, 3, {0: 10, 1: 20, 2: 30}), a_view(0, 3, {0: 10, 1: 20, 2: 30})) is None
    assert changed(None, None) is None


@pytest.mark.parametrize(
    ("old", "new", "leaving", "returning", "moved", "is_harmful"),
    [
        (None, a_view(0, 2, {0: 10, 1: 20}), 0, 2, 0, False),
        (a_view(0, 2, {0: 10, 1: 20}), None, 2, 0, 0, True),
        (a_view(120, 120, {}), None, 0, 0, 0, True),
        (a_view(120, 120, {}), a_view(100, 100, {}), 0, 0, 0, True),
        (a_view(0, 2, {0: 10, 1: 20}), a_view(0, 3, {0: 10, 1: 20, 2: 30}), 0, 1, 0, False),
        (a_view(0, 2, {0: 30, 1: 40}), a_view(0, 3, {0: 10, 1: 20, 2: 30}), 1, 2, 1, True),
        (a_view(0, 2, {0: 10, 1: 20}), a_view(2, 4, {2: 10, 3: 20}), 0, 0, 2, True),
        (a_view(0, 3, {0: 10, 1: 20, 2: 10}), a_view(0, 3, {0: 10, 1: 20}), 0, 0, 1, True),
    ],
    ids=["new", "gone", "end gone", "end lowered", "one more", "another life", "moved", "one place less"],
)
def test_what_leaves_comes_back_and_moves_is_counted(
    old: QueueView | None, new: QueueView | None, leaving: int, returning: int, moved: int, is_harmful: bool
) -> None:
    change = changed(old, new)
    assert change is not None
    assert (change.leaving, change.returning, change.moved) == (leaving, returning, moved)
    assert change.is_harmful is is_harmful


def test_a_change_is_one_line() -> None:
    idle = changed(a_view(120, 120, {}), None)
    assert idle is not None
    assert idle.text() == "T/0: 120 -> none; least 120 -> none"
    life = changed(a_view(0, 2, {0: 30, 1: 40}), a_view(0, 3, {0: 10, 1: 20, 2: 30}))
    assert life is not None
    assert life.text() == (
        "T/0: 2 -> 3; messages 2 -> 3; 1 leave, of the queue offsets 1 to 1; 2 come back; 1 get another queue offset"
    )


@pytest.mark.parametrize(("name", "topic"), [("bcq", "BatchOrders"), ("rocksdb", "Orders"), ("lmq", "Payments")])
def test_other_layouts_are_compared_as_well(golden: Callable[[str], Path], name: str, topic: str) -> None:
    """Batch queues, queues in RocksDB, light queues."""
    store = golden(name) / "store"
    sizes = StoreSizes(
        1 << 30, 2000, 0, 500, 2000, delay_levels_ms(MIXED_DELAY_LEVELS), batchconsumequeue_file_bytes=920
    )
    options = RebuildOptions(True, False, sizes)
    report = planned(store, options)
    assert report.to_dict()["changes"]["queues"] == []
    with open_tree(str(store)) as queues:
        topics = {queue.topic for queue in queues.names} - {topic}
    taken = planned(store, replace(options, live_topics=frozenset(topics))).to_dict()["changes"]
    assert topic in {change["topic"] for change in taken["queues"]}
    assert {change["messages_after"] for change in taken["queues"] if change["topic"] == topic} == {0}
