"""What is in the quarantine stays there, whatever is done to the notes of earlier repairs."""

import re
import shutil
from pathlib import Path
from unittest import mock

import pytest

from rmq_formats.errors import StoreError
from rmq_offline.repair import journal
from tests.repair.test_damage import flip, foreign, junk, log_files, long, repair, torn_tail
from tests.support.stores.store_files import tree
from tests.support.stores.verified_stores import FILE_BYTES, patch

_MOVED = {"commitlog/notes.txt": b"mine\n", "consumequeue/Orders/notes.txt": b"mine too\n"}


def stop_before(store: Path, name: str) -> None:
    """Leave a repair as a kill does before a function of the journal."""
    with mock.patch.object(journal, name, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        repair(store)


@pytest.mark.parametrize("killed_at", ["apply_plan", "_overwrite"])
def test_a_plan_deleted_as_advised_costs_no_quarantined_file(store: Path, killed_at: str) -> None:
    foreign(store)
    junk(store)
    junk_bytes = log_files(store)[1].read_bytes()[3000:]
    stop_before(store, killed_at)
    patch(log_files(store)[1], 3200, b"a message that a broker wrote since then")
    changed = {name: data for name, data in tree(store).items() if name != "lock"}
    with pytest.raises(StoreError, match=r"changed at \d+ since a repair began; delete quarantine/0001/plan.json"):
        repair(store)
    assert {name: data for name, data in tree(store).items() if name != "lock"} == changed
    copies = {name: data for name, data in tree(store / "quarantine" / "0001").items() if name != "plan.json"}
    of_the_file = {int(name.rpartition(".")[2]): data for name, data in copies.items() if f"{FILE_BYTES:020d}." in name}
    assert junk_bytes in b"".join(of_the_file[position] for position in sorted(of_the_file)) + bytes(FILE_BYTES)

    (store / "quarantine" / "0001" / "plan.json").unlink()
    done = repair(store)
    assert (done.is_clean, done.directory) == (True, str(store / "quarantine" / "0002"))
    aside = tree(store / "quarantine")
    assert copies.items() <= {name.removeprefix("0001/"): data for name, data in aside.items()}.items()
    for name, data in _MOVED.items():
        assert [found for path, found in aside.items() if path.endswith(name)] == [data]
    assert any(b"a message that a broker wrote" in data for data in aside.values())


@pytest.mark.parametrize("number", ["0001", "0002"])
def test_a_manifest_moved_as_advised_costs_no_other_repair(store: Path, number: str) -> None:
    flip(store)
    repair(store)
    torn_tail(store)
    repair(store)
    other = {"0001": "0002", "0002": "0001"}[number]
    kept = tree(store / "quarantine" / other)
    flip(store)
    (store / "quarantine" / number / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match=re.escape(f"move {store}/quarantine/{number} away")):
        repair(store)
    shutil.move(store / "quarantine" / number, store.parent / "aside")
    assert repair(store).is_clean
    assert tree(store / "quarantine" / other) == kept


def test_a_resumed_repair_reports_an_invalid_manifest_before_any_change(store: Path) -> None:
    flip(store)
    repair(store)
    junk(store)
    stop_before(store, "apply_plan")
    (store / "quarantine" / "0001" / "manifest.json").write_text("{")
    before = tree(store / "commitlog")
    for apply in (False, True):
        with pytest.raises(StoreError, match=r"0001/manifest.json: is no plan of a repair"):
            repair(store, apply=apply)
    assert tree(store / "commitlog") == before


def test_a_directory_without_a_note_is_left_alone(store: Path) -> None:
    flip(store)
    kept = store / "quarantine" / "0007" / "commitlog" / "notes.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine\n")
    assert repair(store).directory == str(store / "quarantine" / "0008")
    assert kept.read_text() == "mine\n"


def test_bytes_that_a_broker_wrote_after_the_planned_size_are_not_truncated(store: Path) -> None:
    long(store)
    stop_before(store, "apply_plan")
    with log_files(store)[2].open("ab") as file:
        file.write(b"more since then")
    with pytest.raises(StoreError, match="was changed"):
        repair(store)
    assert log_files(store)[2].read_bytes().endswith(b"more since then")


def test_a_config_file_that_was_written_since_is_not_replaced_by_its_bak(store: Path) -> None:
    topics = store / "config" / "topics.json"
    shutil.copy(topics, f"{topics}.bak")
    topics.write_text("{")
    stop_before(store, "apply_plan")
    topics.write_text('{"topicConfigTable":{"New":{}}}')
    with pytest.raises(StoreError, match=re.escape(f"{topics}: was changed since a repair began")):
        repair(store)
    assert "New" in topics.read_text()
