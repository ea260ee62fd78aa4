"""What the real RocketMQ wrote is sound, and a verification leaves it alone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.conftest import GoldenSettings
from tests.support.stores.rebuilt_stores import Splits
from tests.support.stores.store_files import tree
from tests.support.stores.verified_stores import codes, copied, verify, verify_with


def options(settings: GoldenSettings) -> VerifyOptions:
    return VerifyOptions(
        settings.commitlog_file_bytes,
        settings.consumequeue_file_bytes,
        settings.ext_file_bytes or 0,
        settings.index_slots,
        settings.index_entries,
        delay_levels_ms(settings.delay_levels),
        settings.tags_from,
    )


def test_a_golden_store_is_sound_with_its_brokers_settings(
    golden: Callable[[str], Path], golden_name: str, golden_settings: dict[str, GoldenSettings]
) -> None:
    directory = golden(golden_name)
    report = verify(directory / "store", options(golden_settings[golden_name]))
    expected = {"store.abort": 1} if golden_name == "crash" else {}
    assert codes(report, informing=True) == expected
    assert report.is_clean
    lines = (directory / "expected" / "messages.jsonl").read_text().splitlines()
    assert report.messages == report.units == len(lines)
    assert report.index_entries > report.messages


def test_a_golden_store_is_sound_without_any_setting_and_the_settings_found_are_told(
    golden: Callable[[str], Path], golden_name: str
) -> None:
    report = verify(golden(golden_name) / "store", VerifyOptions())
    assert codes(report) == {}
    told = " ".join(finding.detail for finding in report.findings if finding.kind.code == "store.layout")
    is_exotic = golden_name.startswith("exotic")
    sizes = (400, 50, 200) if is_exotic else (2000, 500, 2000)
    for option, value in zip(("consumequeue-file-bytes", "index-slots", "index-entries"), sizes, strict=True):
        assert f"--{option} {value}," in told
    assert ("--delay-levels" in told) == (not is_exotic)
    assert ("--index-tags yes" in told) == (golden_name == "mixed_551")


@pytest.mark.parametrize("splits", [2, 7, 40])
def test_how_a_log_is_cut_makes_no_difference(golden: Callable[[str], Path], splits: int) -> None:
    store = golden("mixed") / "store"
    whole, cut = verify(store, VerifyOptions()), verify_with(store, VerifyOptions(), Splits(splits))
    assert (cut.messages, cut.units, cut.index_entries, cut.counts) == (
        whole.messages, whole.units, whole.index_entries, whole.counts,
    )  # fmt: skip
    assert [segment.message_count for segment in cut.segments] == [item.message_count for item in whole.segments]


def test_nothing_is_written_into_a_store(golden: Callable[[str], Path], tmp_path: Path) -> None:
    store = copied(golden("exotic_crc") / "store", tmp_path / "store")
    before, times = tree(store), {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    verify_with(store, VerifyOptions(), Splits(4))
    assert tree(store) == before
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == times
