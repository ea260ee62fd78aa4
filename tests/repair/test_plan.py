"""A repair replaces the queues and IndexFiles that have findings, says what that takes, and nothing else changes."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.codecs.index import IndexHeader
from rmq_formats.codecs.layout import MAGIC_V1
from rmq_formats.errors import NotAcceptedError
from rmq_formats.scan.splits import Split
from rmq_offline.rebuild import job as rebuild_job
from rmq_offline.repair import job as repair_job
from rmq_offline.repair.job import repair_store
from rmq_offline.repair.plan import RepairPlan
from rmq_offline.repair.report import RepairReport
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.support.stores.store_files import tree
from tests.support.stores.verified_stores import (
    FIRST_MS,
    REBUILT,
    SIZES,
    copied,
    log_path,
    patch,
    rebuild,
    store_whose_clock_went_back,
)


def repair(store: Path, *accept: str, apply: bool = True) -> RepairReport:
    return repair_store(str(store), SIZES, ProcessRunner(1), apply=apply, accept=accept)


def queue_file(store: Path, queue: str = "Orders/1") -> Path:
    return store / "consumequeue" / queue / f"{0:020d}"


def flip_a_unit(store: Path) -> None:
    patch(queue_file(store), 47, b"\xff")


def flip_a_body(store: Path) -> None:
    path = store / "commitlog" / f"{4096:020d}"
    at = path.read_bytes().index(b"body ")
    patch(path, at, b"\xff")


def identities(store: Path) -> dict[str, tuple[int, int, bytes]]:
    """Inode, time of the last change and bytes of the files of the queues and the Index."""
    return {
        str(path.relative_to(store)): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for name in ("consumequeue", "index")
        for path in (store / name).rglob("*")
        if path.is_file()
    }


def replaced(store: Path) -> set[str]:
    root = store / "quarantine" / "0001" / "replaced"
    return {str(path.relative_to(root).parent) for path in root.rglob("*") if path.is_file()}


def test_a_bad_unit_costs_the_other_queues_and_the_index_nothing(store: Path) -> None:
    before = identities(store)
    flip_a_unit(store)
    report = repair(store)
    assert (report.is_clean, report.disturbed) == (True, ())
    assert [step.path for step in report.steps] == ["consumequeue/Orders/1", "checkpoint"]
    after = identities(store)
    assert {name for name in before if before[name] != after[name]} == {
        name for name in before if name.startswith("consumequeue/Orders/1/")
    }
    assert {name: data for name, (_, _, data) in after.items()} == {name: data for name, (_, _, data) in before.items()}
    assert replaced(store) == {"consumequeue/Orders/1"}
    assert all(path.stat().st_nlink == 1 for path in store.rglob("*") if path.is_file())


def test_a_damaged_message_touches_its_own_queue_and_the_index_of_its_keys(store: Path) -> None:
    before = identities(store)
    flip_a_body(store)
    report = repair(store)
    assert (report.is_clean, report.disturbed, report.outcome.unaccepted_queues) == (True, (), [])
    after = identities(store)
    changed = {str(Path(name).parent) for name in before if before[name] != after.get(name)}
    assert len(changed - {"index"}) == 1
    assert replaced(store) == changed


def test_units_that_no_broker_adds_come_back_by_a_rebuild_and_not_by_the_repair_of_another_queue(store: Path) -> None:
    whole = tree(store)["consumequeue/Clicks/0/00000000000000000400"]
    path = store / "consumequeue/Clicks/0" / f"{400:020d}"
    patch(path, 160, bytes(40))  # the last two; other queues name later messages
    before = identities(store)
    flip_a_unit(store)
    report = repair(store)
    assert [finding.kind.code for finding in report.left] == ["consumequeue.unit.not_added"]
    assert [step.path for step in report.steps] == ["consumequeue/Orders/1", "checkpoint"]
    after = identities(store)
    assert {name: data for name, (_, _, data) in after.items()} == {name: data for name, (_, _, data) in before.items()}
    rebuild(store)
    assert tree(store)["consumequeue/Clicks/0/00000000000000000400"] == whole


def test_the_command_of_the_report_brings_the_former_queues_back(store: Path) -> None:
    flip_a_unit(store)
    flip_a_body(store)
    former = {name: data for name, (_, _, data) in identities(store).items()}
    report = repair(store)
    assert report.outcome.bring_back is not None
    subprocess.run(["/bin/sh", "-c", report.outcome.bring_back], check=True)
    assert {name: data for name, (_, _, data) in identities(store).items()} == former


def test_a_unit_that_comes_back_needs_no_word(store: Path) -> None:
    flip_a_unit(store)
    report = repair(store, apply=False)
    (change,) = report.outcome.changes.queues
    assert (change.name, change.leaving, change.returning, change.is_harmful) == ("Orders/1", 0, 1, False)
    assert report.to_dict()["changes"]["messages_returning"] == 1


@pytest.fixture
def taking(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make rebuilds read the first files of the log only, from here on."""
    plan_splits = rebuild_job.plan_splits

    def first_splits(*given: Any, **named: Any) -> list[Split]:
        return plan_splits(*given, **named)[:3]

    return lambda: monkeypatch.setattr(rebuild_job, "plan_splits", first_splits)


def test_harm_to_consumers_is_refused_before_any_change(store: Path, taking: Callable[[], None]) -> None:
    flip_a_unit(store)
    taking()
    before = tree(store)
    with pytest.raises(NotAcceptedError, match="messages leave Orders/1") as refusal:
        repair(store)
    assert refusal.value.names == ("Orders/1",)
    assert tree(store) == before


def test_accepted_harm_is_done_and_reported(store: Path, taking: Callable[[], None]) -> None:
    flip_a_unit(store)
    former = queue_file(store).read_bytes()
    taking()
    report = repair(store, "Orders/1")
    assert report.outcome.unaccepted_queues == []
    (change,) = report.outcome.changes.queues
    assert change.leaving > 0
    assert queue_file(store / "quarantine" / "0001" / "replaced").read_bytes() == former


def test_harm_that_nobody_accepted_is_reported_afterwards(
    store: Path, taking: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_a_unit(store)
    monkeypatch.setattr(repair_job._Repair, "_predict", lambda *_: None)
    taking()
    report = repair(store)
    assert not report.is_clean
    assert report.to_dict()["taken_unaccepted"] == ["Orders/1"]


def destroy_the_last_record(store: Path) -> None:
    """Change the magic number of the log's last record, which is of Orders/1: no record stands there any more."""
    log = sorted((store / "commitlog").iterdir())[-1]
    patch(log, log.read_bytes().rindex(MAGIC_V1.to_bytes(4, "big", signed=True)), b"\0")


def test_an_end_that_sinks_with_lost_messages_needs_a_word(store: Path) -> None:
    offsets = {"offsetTable": {"Orders@Readers": {"1": 30}}}
    (store / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    destroy_the_last_record(store)
    before = tree(store)
    changes = repair(store, apply=False).outcome.changes
    (change,) = changes.queues
    assert (change.name, change.largest_before, change.largest_after, change.leaving) == ("Orders/1", 30, 29, 0)
    assert [(group.group, group.offset) for group in changes.groups] == [("Readers", 30)]
    with pytest.raises(NotAcceptedError, match="the end of Orders/1 goes from 30 to 29"):
        repair(store)
    assert tree(store) == before


@pytest.mark.parametrize("is_killed", [False, True])
def test_ends_in_files_of_the_log_that_are_missing_need_a_word(
    golden: Callable[[str], Path], tmp_path: Path, is_killed: bool
) -> None:
    store = copied(golden("mixed") / "store", tmp_path / "store")
    max((store / "commitlog").iterdir()).unlink()
    if is_killed:  # the last pages of the log may not have been flushed
        (store / "abort").touch()
    before = tree(store)

    def run(*accept: str, apply: bool) -> RepairReport:
        return repair_store(str(store), VerifyOptions(), ProcessRunner(1), apply=apply, accept=accept)

    changes = run(apply=False).outcome.changes
    assert changes is not None
    sunk = {change.name: (change.largest_before, change.largest_after) for change in changes.queues}
    if is_killed:
        assert sunk == {}
        return
    assert len(sunk) == 25
    assert sunk["SCHEDULE_TOPIC_XXXX/2"] == (11, 3)
    assert ("golden_cg", "Ordered") in {(group.group, group.topic) for group in changes.groups}
    with pytest.raises(NotAcceptedError, match="and 20 more queues change"):
        run(apply=True)
    (store / "lock").unlink()
    assert tree(store) == before
    assert run("all", apply=True).is_applied


def test_an_accepted_end_is_as_planned(store: Path) -> None:
    destroy_the_last_record(store)
    report = repair(store, "Orders/1")
    assert (report.is_clean, report.outcome.is_as_planned) == (True, True)
    assert report.outcome.changes.queues[0].largest_after == 29


@pytest.mark.parametrize("queue", ["Orders/1", "Clicks/0"])
def test_an_end_that_a_placeholder_restores_needs_no_accept(store: Path, queue: str) -> None:
    units = b"".join(path.read_bytes() for path in sorted((store / "consumequeue" / queue).iterdir()))
    path, at = log_path(store, Unit.decode(units[29 * 20 : 30 * 20]).physical_offset)
    patch(path, path.read_bytes().index(b"body ", at), b"\xff")
    report = repair(store)
    assert (report.is_clean, report.outcome.changes.queues) == (True, ())


def test_a_queue_that_is_disturbed_meanwhile_is_reported(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip_a_unit(store)
    rebuild = repair_job._Repair._rebuild

    def and_disturb(self: object, *given: object) -> object:
        done = rebuild(self, *given)  # type: ignore[arg-type]
        patch(queue_file(store, "Clicks/0"), 15, b"\xff")
        return done

    monkeypatch.setattr(repair_job._Repair, "_rebuild", and_disturb)
    report = repair(store)
    assert report.disturbed == ("Clicks/0",)
    assert not report.is_clean


def test_manifests_without_the_new_fields_are_read() -> None:
    told = json.loads(RepairPlan(REBUILT.sizes).to_json())
    for name in ("queues", "index", "accept"):
        del told[name]
    plan = RepairPlan.from_json(json.dumps(told))
    assert (plan.queues, plan.index, plan.accept) == (None, True, ())


def test_a_checkpoint_covers_index_files_of_times_after_which_the_clock_went_back(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store_whose_clock_went_back(store)
    flip_a_unit(store)
    repair(store)
    ends = [IndexHeader.decode(path.read_bytes()[:40]).end_timestamp_ms for path in (store / "index").iterdir()]
    checkpoint = Checkpoint.decode((store / "checkpoint").read_bytes())
    assert checkpoint.physic_msg_timestamp_ms == FIRST_MS + 199
    assert checkpoint.index_msg_timestamp_ms == max(ends) == FIRST_MS + 3_600_000  # RocketMQ deletes those after it
