"""Stores that Java wrote, read as rows and written again: the same records, and where it can be the same bytes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GoldenSettings
from tests.support.stores.rebuilt_stores import built, stored_messages
from tests.support.stores.store_files import tree
from tests.support.stores.written_stores import batches_of, dispatch_of, lines, write

# What a record's place decides.
OF_A_PLACE = ("physical_offset", "recorded_physical_offset", "queue_offset", "msg_id")


@pytest.fixture
def directory(golden: Callable[[str], Path], golden_name: str) -> Path:
    return golden(golden_name)


@pytest.fixture
def settings(golden_name: str, golden_settings: dict[str, GoldenSettings]) -> GoldenSettings:
    return golden_settings[golden_name]


def test_with_their_offsets_records_queues_and_index_are_java_s(
    directory: Path, settings: GoldenSettings, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    written = write(
        store,
        [batches_of(directory / "store")],
        keep_offsets=True,
        file_bytes=settings.commitlog_file_bytes,
        dispatch=dispatch_of(settings),
    )
    expected = (directory / "expected" / "messages.jsonl").read_bytes().splitlines(keepends=True)
    assert lines(store) == expected
    assert written == len(expected)
    assert built(store) == built(directory / "expected")


def test_bytes_are_java_s_unless_properties_came_twice(
    directory: Path, settings: GoldenSettings, tmp_path: Path
) -> None:
    write(tmp_path, [batches_of(directory / "store")], keep_offsets=True, file_bytes=settings.commitlog_file_bytes)
    theirs, ours = list(stored_messages(directory / "store")), list(stored_messages(tmp_path))
    same = [before == after for before, after in zip(theirs, ours, strict=True)]
    once = [len(before.properties) == before.properties_bytes.count(b"\x01") for before in theirs]
    assert [is_same for is_same, is_once in zip(same, once, strict=True) if is_once and not is_same] == []
    assert sum(once) > len(once) * 0.7
    if all(once):
        assert tree(tmp_path / "commitlog") == tree(directory / "store" / "commitlog")


def test_without_them_all_but_the_place_is_the_same(directory: Path, settings: GoldenSettings, tmp_path: Path) -> None:
    write(tmp_path, [batches_of(directory / "store")], file_bytes=settings.commitlog_file_bytes)
    assert [_without_place(line) for line in lines(tmp_path)] == [
        _without_place(line) for line in (directory / "expected" / "messages.jsonl").read_bytes().splitlines()
    ]
    counts: dict[tuple[str, int], int] = {}
    for message in stored_messages(tmp_path):
        queue = (message.topic, message.queue_id)
        counts_here = message.sys_flag & 0xC in {0, 0x8}
        assert message.queue_offset == (counts.get(queue, 0) if counts_here else 0)
        counts[queue] = counts.get(queue, 0) + counts_here


def _without_place(line: bytes) -> dict[str, Any]:
    """All but the place, and the size and the sum that depend on it or on how properties are written."""
    found = {name: value for name, value in json.loads(line).items() if name not in {*OF_A_PLACE, "size"}}
    found["properties"].pop("__CRC32#", None)
    return found
