"""A rebuild leaves queues without a fault as they stand, and merges those that have one with the log."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.codecs.consumequeue_ext import ExtUnit, encode_ext_address
from rmq_formats.codecs.hashing import tags_code
from rmq_formats.codecs.layout import UNIT_BYTES
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks.runner import ProcessRunner
from tests.support.stores.store_files import tree, write_commitlog
from tests.support.stores.store_with_queues import write_config, write_log, write_queue
from tests.support.stores.verified_stores import FILE_BYTES, FIRST_MS, REBUILT, log_path, message, patch


def rebuild(store: Path, out: Path | None = None, options: RebuildOptions = REBUILT) -> dict[str, int]:
    return rebuild_store(str(store), None if out is None else str(out), options, ProcessRunner(1)).finding_counts


def queue_path(store: Path, start: int = 0, topic: str = "Orders") -> Path:
    return store / "consumequeue" / topic / "0" / f"{start:020d}"


def lives() -> list[tuple[str, Callable[[Path], None]]]:
    def made_again(store: Path) -> None:
        units = write_log(store, [*range(40), *range(25)])
        write_queue(store, dict(enumerate(units[40:])))

    def gap(store: Path) -> None:
        write_queue(store, dict(enumerate(write_log(store, [*range(50), *range(52, 100), *range(98, 110)]))))

    def passed_over(store: Path) -> None:
        units = write_log(store, [*range(40), *range(35, 50)])
        write_queue(store, dict(enumerate([*units[:35], *units[40:]])))

    def expired(store: Path) -> None:
        write_queue(store, dict(enumerate(write_log(store, range(90)))))
        sorted((store / "commitlog").iterdir())[0].unlink()

    def former_tags(store: Path) -> None:
        write_queue(store, dict(enumerate(former_hash(write_log(store, range(60)), 20))))

    return [(made.__name__, made) for made in (made_again, gap, passed_over, expired, former_delay, former_tags)]


def former_delay(store: Path) -> None:
    """A queue of delayed messages: 15 with a delay of 8 s, and 25 with that of now, 5 s."""
    messages = [
        message(n, topic="SCHEDULE_TOPIC_XXXX", queue_id=0, properties_bytes=b"DELAY\x012\x02") for n in range(40)
    ]
    units = []
    for number, physical_offset in enumerate(write_commitlog(store, messages, FILE_BYTES, FIRST_MS)):
        path, position = log_path(store, physical_offset)
        size = int.from_bytes(path.read_bytes()[position : position + 4], "big")
        units.append(Unit(physical_offset, size, FIRST_MS + number + (8000 if number < 15 else 5000)))
    write_queue(store, dict(enumerate(units)), "SCHEDULE_TOPIC_XXXX")


def former_hash(units: Sequence[Unit], end: int) -> list[Unit]:
    """The units, those before a place with tags codes of another hash."""
    return [replace(unit, tags_code=unit.tags_code * 7 + 1) for unit in units[:end]] + list(units[end:])


def with_idle(store: Path) -> None:
    """A queue whose messages have all expired, of which one file of zeros is left."""
    write_queue(store, {100: Unit(0, 0, 0)}, "Zeros")


@pytest.mark.parametrize(("name", "make"), lives())
@pytest.mark.parametrize("is_in_place", [True, False])
def test_queues_without_a_fault_stay_byte_for_byte(
    tmp_path: Path, name: str, make: Callable[[Path], None], is_in_place: bool
) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    make(store)
    with_idle(store)
    write_config(store, "Orders", "Zeros")
    before = tree(store / "consumequeue")
    out.mkdir()
    rebuild(store, None if is_in_place else out)
    assert tree((store if is_in_place else out) / "consumequeue") == before, name


@pytest.mark.parametrize("numbers", [[3], [20, 21], [0], [24], [5, 6, 7, 8]])
def test_bad_units_are_made_again_and_the_others_stay(tmp_path: Path, numbers: Sequence[int]) -> None:
    units = write_log(tmp_path, [*range(40), *range(25)])
    write_queue(tmp_path, dict(enumerate(units[40:])))
    write_config(tmp_path, "Orders")
    before = tree(tmp_path / "consumequeue")
    for number in numbers:
        patch(queue_path(tmp_path, number // 20 * 400), number % 20 * UNIT_BYTES, Unit(77, 99, 1).encode())
    assert rebuild(tmp_path) == {}
    assert tree(tmp_path / "consumequeue") == before


@pytest.mark.parametrize(
    ("numbers", "is_restored"), [([7], True), ([5, 6, 7], True), ([30], True), ([14, 15], False), ([0], False)]
)
@pytest.mark.parametrize("unit", [Unit(77, 99, 1), None], ids=["whole", "delivery time"])
def test_damaged_units_between_two_of_one_former_delay_have_that_delay_again(
    tmp_path: Path, numbers: Sequence[int], is_restored: bool, unit: Unit | None
) -> None:
    former_delay(tmp_path)
    write_config(tmp_path)
    before = tree(tmp_path / "consumequeue")
    for number in numbers:
        path = tmp_path / "consumequeue/SCHEDULE_TOPIC_XXXX/0" / f"{number // 20 * 400:020d}"
        at = number % 20 * UNIT_BYTES
        patch(path, at if unit else at + 18, unit.encode() if unit else b"\x77")
    assert rebuild(tmp_path) == {}
    assert (tree(tmp_path / "consumequeue") == before) == is_restored


def test_tags_codes_of_a_former_hash_stay_where_a_unit_of_their_queue_is_wrong(tmp_path: Path) -> None:
    units = write_log(tmp_path, range(60))
    write_queue(tmp_path, dict(enumerate(former_hash(units, 30))))
    write_config(tmp_path, "Orders")
    before = tree(tmp_path / "consumequeue")
    patch(queue_path(tmp_path), 7 * UNIT_BYTES, Unit(77, 99, 1).encode())
    patch(queue_path(tmp_path, 800), 5 * UNIT_BYTES + 19, b"\x01")
    assert rebuild(tmp_path) == {}
    after = tree(tmp_path / "consumequeue")
    changed = [
        number
        for name in sorted(before)
        for number in range(20)
        if before[name][number * UNIT_BYTES :][:UNIT_BYTES] != after[name][number * UNIT_BYTES :][:UNIT_BYTES]
    ]
    assert changed == [7]  # its former code is lost
    rebuild(tmp_path, options=replace(REBUILT, from_log_alone=True))
    assert b"".join(path.read_bytes() for path in sorted(queue_path(tmp_path).parent.iterdir())) == b"".join(
        unit.encode() for unit in units
    )


def test_the_log_alone_makes_what_a_broker_makes_of_it(tmp_path: Path) -> None:
    units = write_log(tmp_path / "store", [*range(40), *range(25)])
    write_queue(tmp_path / "store", dict(enumerate(units[40:])))
    (tmp_path / "out").mkdir()
    alone = replace(REBUILT, from_log_alone=True)
    assert rebuild(tmp_path / "store", tmp_path / "out", alone) == {"commitlog.queue_offset.repeated": 24}
    made = tree(tmp_path / "out" / "consumequeue")
    image = b"".join(made[name] for name in sorted(made))
    assert image == b"".join(unit.encode() for unit in units[:41]) + bytes(19 * UNIT_BYTES)


def write_orders_and_live(store: Path, *, orders_before: int, orders_behind: int) -> list[Unit]:
    """Write messages of Orders before and behind three of Live, which alone has its queue; the units of Orders."""
    topics = ["Orders"] * orders_before + ["Live"] * 3 + ["Orders"] * orders_behind
    messages = [message(number, topic=topic, queue_id=0) for number, topic in enumerate(topics)]
    units: dict[str, list[Unit]] = {"Orders": [], "Live": []}
    for number, (topic, physical_offset) in enumerate(
        zip(topics, write_commitlog(store, messages, FILE_BYTES, FIRST_MS), strict=True)
    ):
        path, position = log_path(store, physical_offset)
        size = int.from_bytes(path.read_bytes()[position : position + 4], "big")
        units[topic].append(Unit(physical_offset, size, tags_code(f"T{number % 3}")))
    write_queue(store, dict(enumerate(units["Live"])), "Live")
    return units["Orders"]


@pytest.mark.parametrize(
    ("known", "offsets", "findings", "is_made"),
    [
        (["Live"], None, {}, False),
        (["Live", "Orders"], None, {"consumequeue.absent": 20}, False),
        (["Live", "Orders"], {"Orders@g": {"0": 7}}, {}, True),
    ],
    ids=["deleted", "made_again_without_a_message", "lost"],
)
def test_a_deleted_topic_stays_deleted_and_a_lost_queue_comes_back(
    tmp_path: Path, known: list[str], offsets: dict[str, dict[str, int]] | None, findings: dict[str, int], is_made: bool
) -> None:
    units = write_orders_and_live(tmp_path, orders_before=20, orders_behind=0)
    write_config(tmp_path, *known, offsets=offsets)
    assert rebuild(tmp_path) == findings
    assert queue_path(tmp_path).exists() == is_made
    if is_made:
        assert queue_path(tmp_path).read_bytes() == b"".join(unit.encode() for unit in units)


def test_messages_that_no_broker_has_dispatched_get_their_queue(tmp_path: Path) -> None:
    """A broker dispatches what is behind the last unit of all queues when it starts, of a new topic, too."""
    units = write_orders_and_live(tmp_path, orders_before=0, orders_behind=20)
    write_config(tmp_path, "Live", "Orders")
    assert rebuild(tmp_path) == {}
    assert queue_path(tmp_path).read_bytes() == b"".join(unit.encode() for unit in units)


@pytest.mark.parametrize(("begin", "end"), [(5, 20), (0, 15), (3, 18)], ids=["on", "off", "on_and_off"])
def test_ext_files_stay_where_a_unit_of_their_queue_is_wrong(tmp_path: Path, begin: int, end: int) -> None:
    """Bit maps are in no log, and a broker puts its last message there again at each start."""
    store, sizes = tmp_path / "store", replace(REBUILT.sizes, consumequeue_ext_file_bytes=1024)
    options = replace(REBUILT, sizes=sizes)
    units = write_log(store, range(20))
    ext_units = [ExtUnit(units[number].tags_code, FIRST_MS + number, b"bits") for number in range(begin, end)]
    addresses = [encode_ext_address(number * ext_units[0].size) for number in range(15)]
    addressed = [replace(unit, tags_code=address) for unit, address in zip(units[begin:end], addresses, strict=True)]
    ext_units.append(ext_units[-1])
    write_queue(store, dict(enumerate([*units[:begin], *addressed, *units[end:]])))
    ext_path = store / "consumequeue_ext" / "Orders" / "0" / f"{0:020d}"
    ext_path.parent.mkdir(parents=True)
    ext_path.write_bytes(b"".join(unit.encode() for unit in ext_units).ljust(1024, b"\0"))
    before = tree(store)
    patch(queue_path(store), 3 * UNIT_BYTES + 19, b"\x01")
    patch(queue_path(store), 10 * UNIT_BYTES + 7, b"\xff")
    patch(ext_path, 12 * ext_units[0].size + 5, b"\xff")
    assert tree(store) != before
    rebuild(store, options=options)
    after = tree(store)
    assert {path: after[path] for path in before} == before


def test_a_queue_without_ext_files_gets_none_where_ext_was_switched_on_later(tmp_path: Path) -> None:
    write_queue(tmp_path, dict(enumerate(write_log(tmp_path, range(20)))))
    before = tree(tmp_path)
    patch(queue_path(tmp_path), 3 * UNIT_BYTES + 7, b"\xff")
    rebuild(tmp_path, options=replace(REBUILT, sizes=replace(REBUILT.sizes, consumequeue_ext_file_bytes=1024)))
    after = tree(tmp_path)
    assert {path: after[path] for path in before} == before
    assert not tree(tmp_path / "consumequeue_ext")
