"""Verification of queues' own logs, in tiered storage and of compacted topics: sound ones are, damage is found."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats.codecs.layout import BATCH_UNIT_BYTES, UNIT_BYTES
from rmq_formats.codecs.tiered import segment_name
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.findings import Finding, Severity
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.cli.conftest import Rmq
from tests.layouts.test_queue_logs import BROKER, expire, tier_file

Golden = Callable[[str], Path]
COMPACTED = "compaction/compactionLog/Settings/0/00000000000000064400"
COMPACTED_UNITS = "compaction/compactionCq/Settings/0/00000000000000064400"


def found(store: Path, workers: int = 1) -> list[Finding]:
    tier = str(store / "tiered") if (store / "tiered").exists() else None
    report = verify_store(str(store), VerifyOptions(tier=tier), ProcessRunner(workers))
    return [item for item in report.findings if item.kind.severity is not Severity.INFO]


def codes(store: Path) -> set[str]:
    return {item.kind.code for item in found(store)}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x5A
    path.write_bytes(data)


def record_sizes(path: Path, count: int) -> list[int]:
    data, at, sizes = path.read_bytes(), 0, []
    while len(sizes) < count:
        sizes.append(int.from_bytes(data[at : at + 4], "big"))
        at += sizes[-1]
    return sizes


@pytest.mark.parametrize("name", ["tiered", "compaction"])
@pytest.mark.parametrize("workers", [1, 4])
def test_java_s_logs_are_sound(name: str, workers: int, golden: Golden) -> None:
    store = golden(name) / "store"
    tier = f"{store}/tiered" if name == "tiered" else None
    report = verify_store(str(store), VerifyOptions(tier=tier), ProcessRunner(workers))
    assert report.is_clean, report.counts
    assert not any(kind.code.endswith("not_checked") for kind in report.counts)


def test_what_java_makes_of_the_log_alone_is_sound(golden_copy: Golden, golden: Golden) -> None:
    """Full files with a filler and an end unit, as they are before any compaction."""
    store = golden_copy("compaction")
    shutil.rmtree(store / "compaction")
    shutil.copytree(golden("compaction") / "expected" / "compaction", store / "compaction")
    assert found(store) == []


@pytest.mark.parametrize("files", [1, 2])
def test_a_tier_is_sound_when_the_log_has_expired(files: int, golden_copy: Golden) -> None:
    store = golden_copy("tiered")
    expire(store, files)
    assert not any(code.startswith(("queue_log", "tier")) for code in codes(store))


@pytest.mark.parametrize("at", range(UNIT_BYTES))
def test_each_byte_of_a_tier_s_unit_counts(at: int, golden_copy: Golden) -> None:
    store = golden_copy("tiered")
    flip(tier_file(store, "Orders/1", 0, "CONSUME_QUEUE"), 30 * UNIT_BYTES + at)
    (finding,) = found(store)
    assert (finding.kind.code, finding.topic, finding.queue_id) == ("queue_log.unit", "Orders", 1)
    assert finding.queue_offset == 30


@pytest.mark.parametrize("at", range(BATCH_UNIT_BYTES))
def test_each_byte_of_a_compacted_unit_counts(at: int, golden_copy: Golden) -> None:
    store = golden_copy("compaction")
    flip(store / COMPACTED_UNITS, 7 * BATCH_UNIT_BYTES + at)
    told = found(store)
    assert {item.kind.code for item in told} <= {"queue_log.unit", "queue_log.unit.missing"}
    assert any(item.path == str(store / COMPACTED_UNITS) for item in told)
    assert all((item.topic, item.queue_id) == ("Settings", 0) for item in told)


def test_bytes_behind_the_last_unit_are_told(golden_copy: Golden) -> None:
    store = golden_copy("compaction")
    flip(store / COMPACTED_UNITS, 4590)
    (finding,) = found(store)
    assert finding.kind.code == "queue_log.unit"
    assert "bytes behind it" in finding.detail


@pytest.mark.parametrize(("name", "at"), [("tiered", 4), ("tiered", 90), ("compaction", 4), ("compaction", 88)])
def test_a_damaged_record_is_told_with_its_unit(name: str, at: int, golden_copy: Golden) -> None:
    store = golden_copy(name)
    path = tier_file(store, "Batched/1") if name == "tiered" else store / COMPACTED
    begin = record_sizes(path, 1)[0]
    flip(path, begin + at)
    record, unit = sorted(found(store), key=lambda item: item.kind.code)
    assert (record.kind.code, unit.kind.code) == ("queue_log.record", "queue_log.unit.lost")
    assert record.path == str(path)
    assert record.physical_offset == unit.physical_offset == begin + (64_400 if name == "compaction" else 0)


def test_a_segment_that_was_cut_is_told(golden_copy: Golden) -> None:
    store = golden_copy("tiered")
    path = tier_file(store, "Batched/1")
    path.write_bytes(path.read_bytes()[:-700])
    assert codes(store) == {"queue_log.record", "queue_log.unit", "queue_log.unit.lost", "tier.segment.size"}


def test_a_segment_that_is_gone_is_told(golden_copy: Golden) -> None:
    store = golden_copy("tiered")
    tier_file(store, "Orders/2", 1).unlink()
    assert {"queue_log.segment.missing", "queue_log.unit"} == codes(store)
    shutil.rmtree(store / "tiered" / BROKER / "Orders/2")
    (finding,) = found(store)
    assert finding.kind.code == "queue_log.segment.missing"
    assert (finding.topic, finding.queue_id, finding.count) == ("Orders", 2, 2)


def test_a_segment_between_others_that_is_gone_is_told(golden_copy: Golden) -> None:
    store = golden_copy("tiered")
    (store / "config" / "tieredStoreMetadata.json").unlink()
    path = tier_file(store, "Payments/1", 0)
    first = sum(record_sizes(path, 3))
    data = path.read_bytes()
    second = first + int.from_bytes(data[first : first + 4], "big")
    path.write_bytes(data[:first])
    path.with_name(segment_name(second)).write_bytes(data[second:])
    told = {item.kind.code: item for item in found(store)}
    assert set(told) == {"queue_log.segment.missing", "queue_log.unit.lost"}
    assert told["queue_log.segment.missing"].physical_offset == first
    assert told["queue_log.unit.lost"].queue_offset == 3


def test_units_that_are_gone_are_told(golden_copy: Golden) -> None:
    store = golden_copy("tiered")
    shutil.rmtree(store / "tiered" / BROKER / "Orders/3/CONSUME_QUEUE")
    (finding,) = found(store)
    assert finding.kind.code == "queue_log.unit.missing"
    assert finding.count == 180
    compacted = golden_copy("compaction")
    (compacted / COMPACTED_UNITS).unlink()
    assert codes(compacted) == {"queue_log.unit.missing"}
    shutil.copy(compacted / "compaction/compactionCq/Settings/1" / f"{0:020d}", compacted / COMPACTED_UNITS)
    assert "queue_log.unit" in codes(compacted)


def test_records_of_another_queue_are_told(golden_copy: Golden) -> None:
    store = golden_copy("tiered")
    shutil.copy(tier_file(store, "Batched/0"), tier_file(store, "Batched/1"))
    told = [item for item in found(store) if item.kind.code == "queue_log.record"]
    assert told
    assert {(item.expected, item.actual) for item in told} == {("Batched/1", "Batched/0")}


def test_messages_that_the_log_has_otherwise_are_told(golden_copy: Golden) -> None:
    store = golden_copy("tiered")
    path = tier_file(store, "Batched/2")
    data = bytearray(path.read_bytes())
    data[56 + 6] ^= 0x01  # of the store timestamp
    path.write_bytes(data)
    (finding,) = found(store)
    assert (finding.kind.code, finding.queue_offset) == ("queue_log.differs", 0)


def test_messages_that_neither_has_are_told(golden_copy: Golden) -> None:
    store = golden_copy("tiered")
    expire(store, 2)
    for kind in ("COMMIT_LOG", "CONSUME_QUEUE"):
        tier_file(store, "Orders/1", 1, kind).unlink()
    (store / "config" / "tieredStoreMetadata.json").unlink()
    path = tier_file(store, "Orders/1", 0, "CONSUME_QUEUE")
    last = tier_file(store, "Orders/1")
    last.write_bytes(last.read_bytes()[: sum(record_sizes(last, 100))])
    assert path.stat().st_size == 100 * UNIT_BYTES
    told = [item for item in found(store) if item.kind.code.startswith("tier")]
    assert [(item.kind.code, item.queue_id, item.queue_offset) for item in told] == [("tier.gap", 1, 100)]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"commitLogFileSegmentTable":{"x":{}}}', b"\xff" * 50])
def test_metadata_that_does_not_parse_is_told(data: bytes, golden_copy: Golden) -> None:
    store = golden_copy("tiered")
    metadata = store / "config" / "tieredStoreMetadata.json"
    backup = metadata.rename(f"{metadata}.bak")
    metadata.write_bytes(data)
    is_object = data.startswith(b'{"')
    assert codes(store) == (set() if is_object else {"config.unparsable"})  # a broker takes the .bak
    backup.unlink()
    assert codes(store) == ({"tier.metadata"} if is_object else {"tier.metadata", "config.lost"})


def test_a_tier_that_is_not_there_is_told(golden_copy: Golden) -> None:
    store = golden_copy("tiered")
    shutil.rmtree(store / "tiered")
    (store / "tiered").mkdir()
    assert codes(store) == {"tier.missing"}


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"queueOffsetMap":{"Settings_0":"x"}}', b'{"queueOffsetMap":{"Settings_0":220}}']
)
def test_a_position_that_cannot_be_is_told(data: bytes, golden_copy: Golden) -> None:
    store = golden_copy("compaction")
    (store / "compaction" / "position-checkpoint").write_bytes(data)
    assert codes(store) == {"compaction.checkpoint"}


def test_overlapping_segments_are_told(golden_copy: Golden) -> None:
    store = golden_copy("tiered")
    path = tier_file(store, "Batched/3")
    shutil.copy(path, path.with_name(segment_name(100)))
    assert codes(store) == {"queue_log.record"}


def test_the_command_takes_the_tier(golden_copy: Golden, rmq: Rmq) -> None:
    store = golden_copy("tiered")
    flip(tier_file(store, "Batched/1"), 90)
    result = rmq("verify", store, "--tier", store / "tiered", "--json", "--workers", 1)
    assert result.exit_code == 1, result.output
    report = json.loads(result.stdout)
    assert report["finding_counts"].keys() >= {"queue_log.record", "queue_log.unit.lost"}
    result = rmq("verify", store, "--json", "--workers", 1)
    assert result.exit_code == 0, result.output
    assert "tiered storage needs --tier" in result.stdout
