"""Whether the TAGS of messages are in a store's Index is told by the Index itself, else by signs of the broker."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_core.store.config import StoreConfig
from rmq_core.store.index.index import tags_from as tags_from_of_broker
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.index import ALL_TAGS, NO_TAGS, parse_index_tags
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.errors import OptionError
from rmq_formats.read.index_tags import IndexTags, find_index_tags
from rmq_formats.storage.store_files import open_store
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.conftest import GoldenSettings
from tests.support.stores.rebuilt_stores import SMALL, message, rebuild
from tests.support.stores.store_files import with_sizes, write_commitlog

FILE_BYTES = 4096
VERIFY = VerifyOptions(FILE_BYTES, 400, 0, 50, 20, (1000, 5000))


def asked(store: Path) -> IndexTags:
    return find_index_tags(open_store(str(store)))


def asked_by_broker(store: Path, index_tags: str = "auto") -> int:
    sizes = SMALL.sizes
    config = StoreConfig(
        root=str(store),
        commitlog_file_bytes=FILE_BYTES,
        index_slots=sizes.index_slots,
        index_entries=sizes.index_entries,
        index_tags=index_tags,
    )
    return tags_from_of_broker(config)


def test_golden_stores_are_told_by_their_index(
    golden: Callable[[str], Path], golden_name: str, golden_settings: dict[str, GoldenSettings]
) -> None:
    told = asked(golden(golden_name) / "store")
    assert told.tags_from == golden_settings[golden_name].tags_from
    assert "as the Index has it" in told.reason


@pytest.mark.parametrize("name", ["dledger", "dledger_mixed"])
def test_the_records_of_a_dledger_log_are_asked_too(name: str, golden: Callable[[str], Path]) -> None:
    assert asked(golden(name) / "store") == IndexTags(NO_TAGS, "no, as the Index has it")


def test_entries_of_deleted_records_do_not_count(tmp_path: Path) -> None:
    write_commitlog(tmp_path, [message(number) for number in range(120)], FILE_BYTES)
    rebuild(tmp_path, None, with_sizes(SMALL, tags_from=ALL_TAGS))
    for path in sorted((tmp_path / "commitlog").iterdir())[:-2]:
        path.unlink()
    assert asked(tmp_path) == IndexTags(ALL_TAGS, "yes, as the Index has it")


@pytest.mark.parametrize("number", [1, 2, 9, 10, 11, 57, 118, 119])
def test_where_an_upgrade_was_is_found(number: int, tmp_path: Path) -> None:
    """Files without entries for TAGS, one with both, and files with them."""
    placed = write_commitlog(tmp_path, [message(number) for number in range(120)], FILE_BYTES)
    rebuild(tmp_path, None, with_sizes(SMALL, tags_from=placed[number]))
    told = asked(tmp_path)
    assert told == IndexTags(placed[number], f"from physical offset {placed[number]} on, as the Index has it")
    assert asked_by_broker(tmp_path) == ALL_TAGS
    report = verify_store(str(tmp_path), VERIFY, ProcessRunner(1))
    assert not any(kind.code.startswith("index") for kind, _ in report.kinds())
    assert f"--index-tags {told.reason}" in {item.detail for item in report.findings}


@pytest.mark.parametrize("tags_from", [ALL_TAGS, NO_TAGS])
@pytest.mark.parametrize("count", [1, 2, 30])
def test_one_message_is_enough(count: int, tags_from: int, tmp_path: Path) -> None:
    write_commitlog(tmp_path, [message(number) for number in range(count)], FILE_BYTES)
    rebuild(tmp_path, None, with_sizes(SMALL, tags_from=tags_from))
    assert asked(tmp_path).tags_from == asked_by_broker(tmp_path) == tags_from


def test_without_tags_the_signs_of_the_broker_decide(tmp_path: Path) -> None:
    untagged = encode_properties({"KEYS": "k"})
    write_commitlog(tmp_path, [message(number, properties_bytes=untagged) for number in range(200)], FILE_BYTES)
    rebuild(tmp_path)
    assert (asked(tmp_path).tags_from, asked_by_broker(tmp_path)) == (NO_TAGS, NO_TAGS)
    (tmp_path / "checkpoint").write_bytes(Checkpoint(logics_physical_offset=7).encode())
    assert asked(tmp_path) == (ALL_TAGS, "yes, because the checkpoint is that of a broker 5.5 or later")
    assert asked_by_broker(tmp_path) == ALL_TAGS
    (tmp_path / "checkpoint").write_bytes(Checkpoint().encode())
    (tmp_path / "rocksdbstore").mkdir()
    assert (asked(tmp_path).tags_from, asked_by_broker(tmp_path)) == (ALL_TAGS, ALL_TAGS)
    assert "rocksdbstore" in asked(tmp_path).reason
    assert asked_by_broker(tmp_path, "no") == NO_TAGS


def test_an_older_broker_that_took_over_is_gone_on_from(tmp_path: Path) -> None:
    """What is at the end of the Index counts: no single rule makes such an Index anew."""
    write_commitlog(tmp_path, [message(number) for number in range(120)], FILE_BYTES)
    rebuild(tmp_path, tmp_path / "older", with_sizes(SMALL, tags_from=ALL_TAGS))
    rebuild(tmp_path)
    first, second = sorted((tmp_path / "older" / "index").iterdir())[:2]
    first.rename(tmp_path / "index" / first.name)
    second.rename(tmp_path / "index" / f"{int(first.name) + 1:017d}")
    told = asked(tmp_path)
    assert told.tags_from == asked_by_broker(tmp_path) == NO_TAGS
    assert "its beginning has entries for TAGS" in told.reason


def test_damage_does_not_change_the_answer(tmp_path: Path) -> None:
    write_commitlog(tmp_path, [message(number) for number in range(120)], FILE_BYTES)
    rebuild(tmp_path, None, with_sizes(SMALL, tags_from=ALL_TAGS))
    files = sorted((tmp_path / "index").iterdir())
    files[0].write_bytes(b"\x5a" * 100)
    files[-1].write_bytes(b"\x5a" * files[-1].stat().st_size)
    log = sorted((tmp_path / "commitlog").iterdir())
    log[1].write_bytes(bytes(FILE_BYTES))
    assert asked(tmp_path).tags_from == asked_by_broker(tmp_path) == ALL_TAGS


def test_an_option_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--index-tags maybe: give auto, yes, no"):
        parse_index_tags("maybe")
    with pytest.raises(OptionError, match="indexTags"):
        asked_by_broker(tmp_path, "maybe")
