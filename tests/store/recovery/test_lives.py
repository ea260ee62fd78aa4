"""A start leaves the queues of sound lives as they are: what a queue says of its records is kept.

The lives are those of the rebuild's tests: a topic made again, closed gaps, records passed over, expired ones.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_core.store.config import StoreConfig
from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.codecs.layout import PRE_BLANK_SIZE, UNIT_BYTES
from tests.rebuild.test_existing_queues import lives, queue_path, with_idle
from tests.store.small_stores import config_of, opened, put
from tests.support.stores.store_files import tree
from tests.support.stores.store_with_queues import write_config, write_log, write_queue
from tests.support.stores.verified_stores import FILE_BYTES, FIRST_MS, patch


def config(root: Path) -> StoreConfig:
    return config_of(root, commitlog_file_bytes=FILE_BYTES, index_entries=1000)


def start(root: Path, *, crashed: bool = False, without: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Start and stop a broker's store; the queues that are there then."""
    if crashed:
        (root / "abort").write_text("1")
    for name in without:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    store = opened(config(root), FIRST_MS + 1_000_000)
    assert store.shutdown()
    return tree(root / "consumequeue")


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize(("name", "make"), lives())
def test_the_queues_of_a_life_stay_byte_for_byte(
    tmp_path: Path, name: str, make: Callable[[Path], None], crashed: bool
) -> None:
    make(tmp_path)
    with_idle(tmp_path)
    write_config(tmp_path, "Orders", "Zeros")
    before = tree(tmp_path / "consumequeue")
    assert start(tmp_path, crashed=crashed) == before, name
    assert start(tmp_path, crashed=True) == before, "after a kill"
    assert start(tmp_path, crashed=True, without=("watermark",)) == before, "without the watermark"


@pytest.mark.parametrize(("name", "make"), lives())
def test_a_lost_queue_is_made_anew_and_the_others_stay(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    make(tmp_path)
    write_config(tmp_path, "Orders", "Other")
    store = opened(config(tmp_path), FIRST_MS + 1_000_000)
    for _ in range(30):
        put(store, "Other", now_ms=FIRST_MS + 1_000_000)
    assert store.shutdown()
    before = tree(tmp_path / "consumequeue")
    assert start(tmp_path, without=("consumequeue/Other",)) == before, name
    assert start(tmp_path, crashed=True, without=("consumequeue/Other",)) == before, name


@pytest.mark.parametrize("size", range(1, UNIT_BYTES))
def test_a_last_unit_of_which_a_sector_is_lost_is_made_again(tmp_path: Path, size: int) -> None:
    units = write_log(tmp_path, [*range(40), *range(25)])
    write_queue(tmp_path, dict(enumerate(units[40:])))
    before = tree(tmp_path / "consumequeue")
    patch(queue_path(tmp_path, 400), 4 * UNIT_BYTES + size, bytes(UNIT_BYTES - size))
    assert start(tmp_path, crashed=True) == before


def test_messages_of_a_former_life_do_not_come_back_to_a_queue_that_begins_with_pre_blanks(tmp_path: Path) -> None:
    """The original dispatches whole files of the log after a kill: to a deleted topic's queue the end of its life."""
    units = write_log(tmp_path, range(40))
    write_queue(tmp_path, dict(enumerate(units)) | dict.fromkeys(range(7), Unit(0, PRE_BLANK_SIZE, 0)))
    write_config(tmp_path, "Orders")
    before = tree(tmp_path / "consumequeue")
    assert start(tmp_path) == before
    assert start(tmp_path, crashed=True) == before
    assert start(tmp_path, crashed=True, without=("watermark",)) == before


def test_units_of_a_log_that_was_cut_give_way_to_those_of_the_new_records(tmp_path: Path) -> None:
    """The original cuts queues in memory: units of lost records stand behind those of the records in their place."""
    units = write_log(tmp_path, range(60))
    end = units[-1].physical_offset + units[-1].size
    lost = [Unit(units[40].physical_offset + 7 + 50 * number, 50, 0) for number in range(30)]
    write_queue(tmp_path, dict(enumerate([*units[:50], *lost, Unit(end + 50, 100, 0)])))
    wanted = tmp_path / "wanted"
    write_queue(wanted, dict(enumerate(units)))
    assert start(tmp_path, crashed=True) == tree(wanted / "consumequeue")


@pytest.mark.parametrize("place", [35, 57], ids=["between", "at_the_end"])
def test_expired_units_that_a_cut_left_after_live_ones_stay(tmp_path: Path, place: int) -> None:
    offsets = [number + 3 * (number >= place) for number in range(57)]
    units = write_log(tmp_path, offsets)
    placed = dict(zip(offsets, units, strict=True))
    placed |= {place + number: Unit(1000 + 100 * number, 100, 7) for number in range(3)}
    sorted((tmp_path / "commitlog").iterdir())[0].unlink()
    write_queue(tmp_path, placed)
    write_config(tmp_path, "Orders")
    before = tree(tmp_path / "consumequeue")
    assert start(tmp_path) == before
    assert start(tmp_path, crashed=True) == before, "after a kill"
    assert start(tmp_path, crashed=True, without=("watermark",)) == before, "without the watermark"
