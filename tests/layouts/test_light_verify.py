"""Light queues (LMQ) verified: each unit against the records' lists, and the offsets of consumers of such queues."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats.codecs.consumequeue import PRE_BLANK
from rmq_formats.codecs.layout import UNIT_BYTES
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.phases.plan import VerifyOptions
from rmq_offline.verify.report import VerifyReport
from tests.conftest import LAYOUT_STORES
from tests.support.stores.light_records import LightQueues, message
from tests.support.stores.rebuilt_stores import SMALL, Splits, golden_options, live, rebuild
from tests.support.stores.store_files import write_commitlog
from tests.support.stores.verified_stores import codes, flip_at, only, patch, verify_with

Golden = Callable[[str], Path]
DEVICE = "%LMQ%device0"
FILE = f"consumequeue/{DEVICE}/0/{0:020d}"


def verify(store: Path, splits: int = 1) -> VerifyReport:
    return verify_with(store, VerifyOptions(), Splits(splits))


def found(store: Path) -> dict[str, int]:
    return codes(verify(store))


@pytest.mark.parametrize("splits", [1, 7])
def test_java_s_light_queues_are_sound(splits: int, golden: Golden) -> None:
    report = verify(golden("lmq") / "store", splits)
    assert report.is_clean, report.counts
    assert not any(kind.code.endswith("not_checked") for kind in report.counts)
    directories = list((golden("lmq") / "store" / "consumequeue").glob("*/*"))
    assert report.queues == len(directories) > 200
    assert report.units > report.messages


@pytest.mark.parametrize("name", ["lmq_odd", "lmq_odd_ext"])
@pytest.mark.parametrize("splits", [1, 9])
def test_odd_lists_are_expected_as_java_dispatches_them(name: str, splits: int, golden: Golden, tmp_path: Path) -> None:
    for tree in (golden(name) / "store" / "commitlog", *(golden(name) / "expected").iterdir()):
        shutil.copytree(tree, tmp_path / tree.name)
    report = verify_with(tmp_path, VerifyOptions(delay_levels_ms=(1000,)), Splits(splits))
    assert codes(report, informing=True).keys() == {"store.layout", "checkpoint.missing"}
    assert report.queues == len(list((tmp_path / "consumequeue").glob("*/*")))


@pytest.mark.parametrize("at", range(UNIT_BYTES))
def test_each_byte_of_a_unit_counts(at: int, golden_copy: Golden) -> None:
    store = golden_copy("lmq")
    flip_at(store / FILE, 3 * UNIT_BYTES + at)
    report = verify(store)
    assert codes(report)
    told = [item for item in report.findings if item.kind.code in codes(report)]
    assert all((item.topic, item.queue_id, item.path) == (DEVICE, 0, str(store / FILE)) for item in told)
    assert {item.queue_offset for item in told} == {3}


@pytest.mark.parametrize(
    ("code", "unit"),
    [
        ("consumequeue.unit.dangling", b"\0" * 6 + b"\1\0" + b"\0\0\1\0" + bytes(8)),
        ("consumequeue.unit.zero", bytes(UNIT_BYTES)),
        ("consumequeue.unit.missing", PRE_BLANK),
        ("consumequeue.unit.duplicate", None),
    ],
    ids=["dangling", "zero", "missing", "duplicate"],
)
def test_a_unit_that_is_not_its_records_is_told(code: str, unit: bytes | None, golden_copy: Golden) -> None:
    store = golden_copy("lmq")
    third = (store / FILE).read_bytes()[3 * UNIT_BYTES : 4 * UNIT_BYTES]
    patch(store / FILE, 2 * UNIT_BYTES, unit or third)
    report = verify(store)
    assert codes(report) == {code: 1}
    told = only(report, code)
    assert (told.topic, told.queue_id, told.queue_offset) == (DEVICE, 0, 2)


def test_units_beyond_the_log_s_end_are_told(golden_copy: Golden) -> None:
    store = golden_copy("lmq")
    sorted((store / "commitlog").iterdir())[-1].unlink()
    report = verify(store)
    told = {item.topic for item in report.findings if item.kind.code == "consumequeue.unit.beyond"}
    assert any(topic is not None and topic.startswith("%LMQ%") for topic in told)


def test_lost_and_foreign_light_queues_are_told(golden_copy: Golden) -> None:
    store = golden_copy("lmq")
    directories = sorted((store / "consumequeue").glob("%LMQ%*"))
    shutil.rmtree(directories[0])
    (only_missing,) = [item for item in verify(store).findings if item.kind.code == "consumequeue.missing"]
    assert only_missing.topic == directories[0].name
    shutil.copytree(directories[1], store / "consumequeue" / "%LMQ%nobody")
    assert set(found(store)) == {"consumequeue.missing", "consumequeue.unit.dangling"}
    shutil.rmtree(store / "consumequeue" / "%LMQ%nobody")
    rebuild(store, None, golden_options(LAYOUT_STORES["lmq"]))
    assert found(store) == {}


def test_all_light_queues_lost_are_missing_where_the_offsets_tell_of_them(golden_copy: Golden) -> None:
    store = golden_copy("lmq")
    directories = list((store / "consumequeue").glob("%LMQ%*"))
    for path in directories:
        shutil.rmtree(path)
    missing = [item for item in verify(store).findings if item.kind.code == "consumequeue.missing"]
    assert {item.topic for item in missing} == {path.name for path in directories}


def test_a_broker_without_light_queues_has_none_to_lose(tmp_path: Path) -> None:
    light = LightQueues()
    write_commitlog(tmp_path, [light.message("%LMQ%a") for _ in range(9)], 65536)
    rebuild(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / "%LMQ%a")
    report = verify(tmp_path)
    assert report.is_clean
    assert "the broker has none" in only(report, "consumequeue.not_checked").detail
    assert codes(report, informing=True)["consumequeue.not_checked"] == 1


def test_a_gap_and_a_place_that_is_taken_twice_are_told(tmp_path: Path) -> None:
    stored = [message(names="%LMQ%a", places=str(place)) for place in (0, 1, 4, 2, 5)]
    write_commitlog(tmp_path, stored, 65536)
    rebuild(tmp_path)
    report = verify(tmp_path)
    assert codes(report) == {"commitlog.queue_offset.gap": 2, "commitlog.queue_offset.repeated": 1}
    assert {item.topic for item in report.findings if item.kind.code.startswith("commitlog.")} == {"%LMQ%a"}


def test_names_that_no_directory_can_have_are_told(tmp_path: Path) -> None:
    write_commitlog(tmp_path, [message(names="..,%LMQ%a", places="0,0")], 65536)
    rebuild(tmp_path)
    report = verify(tmp_path)
    assert codes(report) == {"commitlog.topic": 1}
    assert only(report, "commitlog.topic").topic == ".."


def test_units_of_topics_that_a_rebuild_left_out_are_missing(tmp_path: Path) -> None:
    light = LightQueues()
    stored = [light.message("%LMQ%a", topic=f"Topic{number % 2}") for number in range(6)]
    write_commitlog(tmp_path / "store", stored, 65536)
    rebuild(tmp_path / "store", tmp_path / "out", live(SMALL, "Topic0"))
    shutil.copytree(tmp_path / "store" / "commitlog", tmp_path / "out" / "commitlog")
    report = verify(tmp_path / "out")
    missing = [item for item in report.findings if item.kind.code == "consumequeue.unit.missing"]
    assert {item.topic for item in missing} == {"%LMQ%a"}


def offsets(**tables: object) -> str:
    return json.dumps({"dataVersion": {}, **tables})


def test_offsets_of_light_consumers_are_compared_with_their_queues(golden_copy: Golden) -> None:
    store = golden_copy("lmq")
    path = store / "config" / "lmqConsumerOffset.json"
    end = _end(store)
    path.write_text(offsets(lmqOffsetTable={f"{DEVICE}@%LMQ%g": end, "Gone@g": 7}, offsetTable={"Orders@g": {"0": 1}}))
    assert found(store) == {}
    path.write_text(offsets(lmqOffsetTable={f"{DEVICE}@%LMQ%g": end + 1}, offsetTable={"Orders@g": {"0": 1 << 40}}))
    told = [item for item in verify(store).findings if item.kind.code == "config.consumer_offset"]
    assert {(item.topic, item.path) for item in told} == {(DEVICE, str(path)), ("Orders", str(path))}


def _end(store: Path) -> int:
    data = b"".join(path.read_bytes() for path in sorted((store / FILE).parent.iterdir()))
    return sum(any(data[at : at + UNIT_BYTES]) for at in range(0, len(data), UNIT_BYTES))


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"lmqOffsetTable":[]}', '{"lmqOffsetTable":{"a@b":{"0":1}}}', '{"offsetTable":{"a@b":5}}'],
)
def test_light_offsets_that_a_broker_does_not_take_are_told(text: str, golden_copy: Golden) -> None:
    store = golden_copy("lmq")
    path = store / "config" / "lmqConsumerOffset.json"
    backup = path.with_name(f"{path.name}.bak")
    backup.write_bytes(path.read_bytes())
    path.write_text(text)
    assert found(store) == {"config.unparsable": 1}
    backup.unlink()
    assert found(store) == {"config.lost": 1}


@pytest.mark.long
def test_ten_thousand_light_queues_are_few_tasks(tmp_path: Path) -> None:
    light = LightQueues()
    stored = [light.message(*(f"%LMQ%{first + n}" for n in range(500))) for first in range(0, 10_000, 500)]
    write_commitlog(tmp_path, stored, 1 << 20)
    rebuild(tmp_path, None, SMALL)
    runner = ProcessRunner(1)
    waves: list[int] = []

    class Counting(Splits):
        def map(self, function, arguments, on_done=None):  # type: ignore[no-untyped-def]
            waves.append(len(arguments))
            return runner.map(function, arguments, on_done)

    report = verify_with(tmp_path, VerifyOptions(), Counting(1))
    assert report.is_clean, report.counts
    assert report.queues == 10_001
    assert max(waves) <= 16
