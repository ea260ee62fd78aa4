"""Verification of a ConsumeQueue in RocksDB: sound ones have no finding, and each fault has its own."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rocksdict import AccessType, Options, Rdict

from rmq_formats.codecs import rocksdb_queue as codec
from rmq_formats.codecs.rocksdb_queue import QueueBound
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Severity
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from rmq_offline.verify.report import VerifyReport
from tests.layouts.conftest import Untouched
from tests.support.stores.rebuilt_stores import Splits

Golden = Callable[[str], Path]
UNITS = {"rocksdb": 709, "rocksdb_lmq": 1274, "rocksdb_crash": 1274}
KEY = codec.unit_key("Orders", 0, 3)


def verified(store: Path, splits: int = 1) -> VerifyReport:
    return verify_store(str(store), VerifyOptions(), ProcessRunner(1) if splits == 1 else Splits(splits))


def faults(store: Path) -> dict[str, int]:
    """Findings that are errors or warnings, by code."""
    return {kind.code: count for kind, count in verified(store).kinds() if kind.severity is not Severity.INFO}


@contextmanager
def changed(store: Path) -> Iterator[tuple[Rdict, Rdict]]:
    """The two column families of a store's database, to be changed."""
    path = str(store / "consumequeue")
    families = {name: Options(raw_mode=True) for name in ("default", "offset")}
    database = Rdict(path, Options(raw_mode=True), column_families=families, access_type=AccessType.read_write())
    offsets = database.get_column_family("offset")
    yield database, offsets
    offsets.close()
    database.close()


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("splits", [1, 5])
def test_sound_queues_have_no_finding(name: str, splits: int, golden: Golden, untouched: Untouched) -> None:
    with untouched(golden(name) / "store"):
        report = verified(golden(name) / "store", splits)
    assert report.is_clean
    assert not any(kind.code.endswith("not_checked") for kind, _ in report.kinds())
    assert report.units == UNITS[name]
    undispatched = dict(report.kinds()).get(finding_kinds.UNIT_UNDISPATCHED, 0)
    assert undispatched == (UNITS[name] if name == "rocksdb_crash" else 0)


def value(store: Path, key: bytes) -> bytearray:
    with changed(store) as (units, _):
        return bytearray(units[key])


@pytest.mark.parametrize(
    ("at", "code"),
    [(11, "consumequeue.unit.size"), (19, "consumequeue.unit.tags_code"), (27, "consumequeue.unit.store_timestamp")],
)
def test_a_field_that_is_another_s_is_told(at: int, code: str, golden_copy: Golden) -> None:
    store = golden_copy("rocksdb")
    with changed(store) as (units, _):
        bent = bytearray(units[KEY])
        bent[at] ^= 1
        units[KEY] = bytes(bent)
    (finding,) = (item for item in verified(store).findings if item.kind.code == code)
    assert (finding.topic, finding.queue_id, finding.queue_offset) == ("Orders", 0, 3)
    assert "abort" in finding.kind.remedy
    assert "rmq rebuild" not in finding.kind.remedy
    assert faults(store) == {code: 1}


def test_a_unit_that_is_not_there_is_missing(golden_copy: Golden) -> None:
    store = golden_copy("rocksdb")
    with changed(store) as (units, _):
        for queue_offset in (3, 4, 9):
            del units[codec.unit_key("Orders", 0, queue_offset)]
    assert faults(store) == {"consumequeue.unit.missing": 3}
    assert len([item for item in verified(store).findings if item.kind.code.endswith("unit.missing")]) == 2


def test_a_queue_that_is_not_there_is_missing(golden_copy: Golden) -> None:
    store = golden_copy("rocksdb")
    with changed(store) as (units, _):
        keys = [key for key in units.keys() if key.startswith(codec.queue_prefix("Orders", 0))]  # noqa: SIM118
        for key in keys:
            del units[key]
    assert faults(store) == {"consumequeue.missing": len(keys)}


def test_a_light_queue_s_unit_is_missed_too(golden_copy: Golden) -> None:
    store = golden_copy("rocksdb_lmq")
    with changed(store) as (units, _):
        del units[codec.unit_key("%LMQ%device0", 0, 1)]
    assert faults(store) == {"consumequeue.unit.missing": 1}


def test_units_that_lead_elsewhere_are_told_by_where(golden_copy: Golden) -> None:
    store = golden_copy("rocksdb")
    with changed(store) as (units, _):
        other = units[codec.unit_key("Orders", 0, 5)]
        units[KEY] = other  # a second one to the same record
        wrong = bytearray(units[codec.unit_key("Orders", 0, 4)])
        wrong[7] ^= 1  # where no record begins
        units[codec.unit_key("Orders", 0, 4)] = bytes(wrong)
    assert faults(store) == {"consumequeue.unit.duplicate": 1, "consumequeue.unit.dangling": 1}


def test_units_behind_the_log_are_beyond_only_within_the_queue(golden_copy: Golden) -> None:
    store = golden_copy("rocksdb")
    with changed(store) as (units, offsets):
        last = QueueBound.decode(offsets[codec.bound_key("Orders", 0)])
        beyond = (1 << 40).to_bytes(8, "big") + bytes(units[KEY])[8:]
        units[codec.unit_key("Orders", 0, last.queue_offset + 1)] = beyond
    assert faults(store) == {}  # left there by a log that was cut, and replaced by the next message
    with changed(store) as (_, offsets):
        offsets[codec.bound_key("Orders", 0)] = QueueBound(1 << 40, last.queue_offset + 1).encode()
    assert faults(store) == {"consumequeue.unit.beyond": 1, "consumequeue.end": 1}


@pytest.mark.parametrize("end", [None, QueueBound(0, 2), QueueBound(1 << 40, 1 << 20)])
def test_the_queue_s_end_is_that_of_its_last_unit(end: QueueBound | None, golden_copy: Golden) -> None:
    store = golden_copy("rocksdb")
    with changed(store) as (_, offsets):
        if end is None:
            del offsets[codec.bound_key("Orders", 0)]
        else:
            offsets[codec.bound_key("Orders", 0)] = end.encode()
    assert faults(store) == {"consumequeue.end": 1}


def test_what_was_not_dispatched_is_no_fault(golden_copy: Golden) -> None:
    store = golden_copy("rocksdb")
    with changed(store) as (units, offsets):
        last = QueueBound.decode(offsets[codec.bound_key("Orders", 0)])
        key, before = (codec.unit_key("Orders", 0, last.queue_offset - back) for back in (0, 1))
        offsets[codec.bound_key("Orders", 0)] = QueueBound(
            int.from_bytes(units[before][:8], "big"), last.queue_offset - 1
        ).encode()
        del units[key]
        offsets[codec.CHECKPOINT_KEY] = codec.encode_checkpoint(last.physical_offset)
    assert faults(store) == {}
    (told,) = (item for item in verified(store).findings if item.kind is finding_kinds.UNIT_UNDISPATCHED)
    assert told.physical_offset == last.physical_offset


def test_a_pair_that_is_none_makes_its_queue_unreadable(golden_copy: Golden) -> None:
    store = golden_copy("rocksdb")
    with changed(store) as (units, _):
        units[KEY] = b"short"
    assert faults(store) == {"consumequeue.unreadable": 1}
    with changed(store) as (units, _):
        units[b"\0\0\0\1Q"] = b""
    assert faults(store) == {"consumequeue.database": 1}


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-000005", "000010.sst", "000011.sst"])
@pytest.mark.parametrize("is_cut", [True, False])
def test_a_broken_database_is_a_finding(name: str, golden_copy: Golden, *, is_cut: bool) -> None:
    store = golden_copy("rocksdb")
    path = store / "consumequeue" / name
    if is_cut:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif name.endswith("sst"):
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 0x5A
        path.write_bytes(data)
    else:
        shutil.move(path, store.parent / "aside")
    found = faults(store)
    assert found
    assert set(found) <= {"consumequeue.database", "consumequeue.unreadable"}


def test_a_database_without_current_is_none(golden_copy: Golden) -> None:
    """So are its files, which nobody knows among topics' directories."""
    store = golden_copy("rocksdb")
    (store / "consumequeue" / "CURRENT").unlink()
    (store / "consumequeue").rename(store / "consumequeue_rocksdb")
    assert faults(store) == {"consumequeue.database": 1}


def test_tags_codes_of_a_former_hash_in_rocksdb(golden_copy: Golden) -> None:
    store = golden_copy("rocksdb")
    with changed(store) as (units, _):
        keys = [key for key in units.keys() if key.startswith(KEY[:-8])]  # noqa: SIM118
        tagged = sum(any(units[key][12:20]) for key in keys)
        for key in keys:
            units[key] = bytes(units[key])[:12] + bytes(8) + bytes(units[key])[20:]
    report = verified(store)
    told = [item for item in report.findings if item.kind.code == "consumequeue.former_tags"]
    assert [item.count for item in told] == [tagged]
    assert not any(kind.code == "consumequeue.unit.tags_code" for kind, _ in report.kinds())
