"""Light queues (LMQ): their places, units, ends and files, as the original has them."""

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from rmq_core.store.config import FlushDiskType, StoreConfig
from rmq_core.store.results import PutResult, PutStatus, split_records
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.layout import CRC_PROPERTY_BYTES, SCHEDULE_TOPIC
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.errors import OptionError, StoreLayoutError
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks.store_sizes import StoreSizes
from tests.conftest import LAYOUT_STORES
from tests.store.conftest import Opener
from tests.store.derived_from_log import check_derived, check_rebuilt, found
from tests.store.small_stores import (
    HOST,
    NOW_MS,
    batch_of,
    config_of,
    log_records,
    opened,
    put,
    put_copy,
    start_without,
)
from tests.store.test_golden_stores import config_for, first_difference_of
from tests.support.stores.rebuilt_stores import rebuild
from tests.support.stores.store_files import tree

NAMES, PLACES = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"
LIGHT: dict[str, Any] = {"lmq_enabled": True, "multi_dispatch_enabled": True}


def light(*names: str, **others: str) -> bytes:
    """Properties of a message for light queues."""
    return encode_properties({"KEYS": "k", NAMES: ",".join(f"%LMQ%{name}" for name in names), **others})


def places(store: MessageStore, physical_offset: int) -> str | None:
    """What a record says of its places."""
    message = store.message(physical_offset)
    assert message is not None
    return message.properties.get(PLACES)


@pytest.fixture
def copied(golden: Callable[[str], Path], tmp_path: Path) -> tuple[Path, StoreConfig]:
    """The original's store with light queues: its directory, and the settings of a copy."""
    shutil.copytree(golden("lmq") / "store", tmp_path / "store")
    return golden("lmq"), replace(config_for(tmp_path / "store", LAYOUT_STORES["lmq"]), **LIGHT)


@pytest.mark.parametrize("without", [(), ("abort",), ("consumequeue", "index", "checkpoint")], ids=str)
def test_a_start_leaves_what_the_original_would_rebuild(
    copied: tuple[Path, StoreConfig], without: tuple[str, ...]
) -> None:
    directory, config = copied
    start_without(config, without)
    check_rebuilt(config, directory)


def append_again(store: MessageStore, message: StoredMessage) -> PutResult:
    """Append a message of another store as it came to that one: those of batches have names and no places."""
    properties = message.properties_bytes
    about = message.born_timestamp_ms, message.born_host.to_bytes(), message.store_timestamp_ms
    if NAMES in message.properties and message.topic != SCHEDULE_TOPIC:
        if PLACES not in message.properties:
            head = pack(">iiiii", 22 + len(message.body) + len(properties), 0, 0, message.flag, len(message.body))
            batch = head + message.body + pack(">h", len(properties)) + properties
            return store.bulk.put_batch(
                message.topic, message.queue_id, batch, b"", *about, store_host=message.store_host.to_bytes()
            )
        properties = encode_properties({**message.properties, PLACES: "wrong"})  # it is computed
    return put_copy(store, message, properties)


def test_the_same_messages_at_the_same_times_become_the_same_files(
    copied: tuple[Path, StoreConfig], tmp_path: Path
) -> None:
    _, config = copied
    ours = replace(config, root=str(tmp_path / "ours"), commitlog_path="")
    store = opened(ours)
    for offset, record in log_records(config):
        result = append_again(store, decode_record(record, physical_offset=offset))
        assert (result.status, result.physical_offset) == (PutStatus.PUT_OK, offset)
    assert store.shutdown()
    assert first_difference_of(tree(Path(ours.commitlog_path)), tree(Path(config.commitlog_path))) is None
    assert opened(config).shutdown()
    assert found(ours) == found(config)


def test_places_go_up_by_one_in_each_queue_and_are_read_by_them(open_store: Opener) -> None:
    store = open_store(**LIGHT)
    first = put(store, "A", properties=light("x", "y"))
    put(store, "A", properties=light("y"))
    put(store, "B", 2, properties=light("z", "x", TAGS="t"))
    assert first.queue_offset == 0
    store.dispatch()
    assert places(store, first.physical_offset) == "0,0"
    offsets = {}
    for name in ("x", "y", "z"):
        result = store.get(f"%LMQ%{name}", 0, 0, 32)
        offsets[name] = [decode_record(stretch).properties[PLACES] for stretch in split_records(result.slices)]
        assert (result.min_offset, result.max_offset) == (0, result.message_count)
    assert offsets == {"x": ["0,0", "0,1"], "y": ["0,0", "1"], "z": ["0,1"]}
    assert store.max_offset("A", 0) == 2


@pytest.mark.parametrize(
    ("topic", "properties"),
    [
        ("%RETRY%g", light("x")),
        ("rmq_sys_any", light("x")),
        (SCHEDULE_TOPIC, light("x")),
        ("T", light("x/y")),
        ("T", light("x") + b"INNER_MULTI_DISPATCH\x01plain,%LMQ%x\x02"),
        ("T", light("x") + b"INNER_MULTI_DISPATCH\x01%LMQ%x,,%LMQ%y\x02"),
        ("T", light("n" * 251)),
        ("T", b"INNER_MULTI_DISPATCH\x01 \x02KEYS\x01k\x02"),
        ("T", b"INNER_MULTI_DISPATCH\x01,,\x02KEYS\x01k\x02"),
        ("T", b"KEYS\x01INNER_MULTI_DISPATCH\x01%LMQ%x\x02"),
    ],
)
@pytest.mark.parametrize("brought", [b"", b"INNER_MULTI_QUEUE_OFFSET\x01700\x02"])
def test_no_places_are_given_where_the_original_gives_none_or_breaks(
    open_store: Opener, topic: str, properties: bytes, brought: bytes
) -> None:
    store = open_store(**LIGHT)
    result = put(store, topic, properties=properties + brought)
    assert result.status is PutStatus.PUT_OK
    store.dispatch()
    assert list(store.topics()) == [topic]
    if topic == "T":
        record = store.record(result.physical_offset)
        assert record is not None
        assert b"_QUEUE_OFFSET\x01" not in bytes(record)


def test_records_without_a_unit_take_no_place(open_store: Opener) -> None:
    store = open_store(**LIGHT)
    for sys_flag in (4, 12, 0, 8):
        put(store, properties=light("x"), sys_flag=sys_flag)
    store.dispatch()
    assert store.max_offset("%LMQ%x", 0) == 2


def test_a_name_that_stands_twice_takes_one_place(open_store: Opener) -> None:
    store = open_store(**LIGHT)
    result = put(store, properties=light("x", "x", "y"))
    put(store, properties=light("x"))
    direct = put(store, "%LMQ%x", properties=light("x", "y"))
    store.dispatch()
    assert (places(store, result.physical_offset), places(store, direct.physical_offset)) == ("0,0,0", "2,1")
    assert direct.queue_offset == 2
    assert (store.max_offset("%LMQ%x", 0), store.max_offset("%LMQ%y", 0)) == (3, 2)


def test_batches_get_no_places_and_may_bring_none(open_store: Opener) -> None:
    store = open_store(**LIGHT)
    batch = batch_of([(b"one", light("x")), (b"two", light("x"))])
    assert store.bulk.put_batch("T", 0, batch, b"", NOW_MS, HOST, NOW_MS).status is PutStatus.PUT_OK
    for own, common in ((light("x", **{PLACES: "9"}), b""), (light("x"), b"INNER_MULTI_QUEUE_OFFSET\x019\x02")):
        result = store.bulk.put_batch("T", 0, batch_of([(b"one", own)]), common, NOW_MS, HOST, NOW_MS)
        assert result.status is PutStatus.MESSAGE_ILLEGAL
    store.dispatch()
    assert list(store.topics()) == ["T"]


def test_a_message_that_does_not_fit_takes_no_place(open_store: Opener) -> None:
    store = open_store(**LIGHT)
    wide = {"W": "w" * 32_720}
    assert put(store, properties=light("x", **wide)).status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    assert put(store, properties=light("x"), body=bytes(20_000)).status is PutStatus.MESSAGE_ILLEGAL
    assert places(store, put(store, properties=light("x")).physical_offset) == "0"


def test_the_checksum_is_of_the_record_with_its_places(open_store: Opener) -> None:
    store = open_store(append_crc_property=True, **LIGHT)
    result = put(store, properties=light("x"))
    assert result.size > CRC_PROPERTY_BYTES
    message = store.message(result.physical_offset)
    assert message is not None
    assert message.properties[PLACES] == "0"


@pytest.mark.parametrize("ext", [False, True])
def test_units_and_ends_are_those_of_a_rebuild_after_each_start(open_store: Opener, ext: bool) -> None:
    source = random.Random(5)
    settings = {**LIGHT, "consumequeue_ext_enabled": ext, "consumequeue_ext_file_bytes": 1000}
    for _ in range(4):
        store = open_store(**settings)
        for number in range(60):
            names = [f"q{source.randrange(9)}" for _ in range(source.randrange(4))]
            topic = source.choice(["A", "B", "%LMQ%q1", SCHEDULE_TOPIC, "%RETRY%g"])
            put(store, topic, properties=light(*names, TAGS=f"t{number % 3}") if names else b"TAGS\x01x\x02")
            if source.randrange(7) == 0:
                store.dispatch()
        assert store.shutdown()
        if not ext:
            check_derived(store.config)
        else:
            check_with_ext(store.config)


def check_with_ext(config: StoreConfig) -> None:
    """Queues and their extensions are those of a rebuild."""
    root, out = Path(config.root), Path(config.root).with_name("rebuilt")
    sizes = StoreSizes(config.commitlog_file_bytes, 400, config.consumequeue_ext_file_bytes, 50, 100, (1000, 5000))
    rebuild(root, out, RebuildOptions(True, False, sizes))
    for name in ("consumequeue", "consumequeue_ext"):
        assert tree(root / name) == tree(out / name)
    shutil.rmtree(out)


@pytest.mark.parametrize("sync", [False, True])
def test_what_was_lost_of_a_light_queue_is_written_again(tmp_path: Path, sync: bool) -> None:
    config = config_of(tmp_path / "store", flush_disk_type=FlushDiskType.SYNC if sync else FlushDiskType.ASYNC, **LIGHT)
    store = opened(config)
    for number in range(90):
        put(store, "T", number % 2, properties=light("a", f"b{number % 7}"))
    store.wait_flushed(store.max_physical_offset, 60)
    store.dispatch()
    assert store.flush()
    kept = tmp_path / "kept"
    shutil.copytree(config.root, kept)
    assert store.shutdown()
    for lost in ("%LMQ%a", "%LMQ%b3", "T"):
        left = tmp_path / "left"
        shutil.copytree(kept, left)
        shutil.rmtree(left / "consumequeue" / lost)
        again = opened(replace(config, root=str(left), commitlog_path=""))
        assert again.next_offset("%LMQ%a", 0) == 90
        assert again.shutdown()
        check_derived(again.config)
        shutil.rmtree(left)


def test_a_light_queue_can_be_deleted_and_begins_at_0_again(open_store: Opener) -> None:
    store = open_store(**LIGHT)
    for _ in range(3):
        put(store, properties=light("a", "b"))
    store.dispatch()
    assert store.delete_topics(["%LMQ%a"]) == 1
    assert store.max_offset("%LMQ%a", 0) == 0
    result = put(store, properties=light("a", "b"))
    store.dispatch()
    assert places(store, result.physical_offset) == "0,3"
    assert store.shutdown()
    store = open_store(**LIGHT)
    assert (store.max_offset("%LMQ%a", 0), store.max_offset("%LMQ%b", 0), store.max_offset("T", 0)) == (1, 4, 4)


def test_old_messages_go_from_light_queues_and_their_numbers_stay(open_store: Opener) -> None:
    store = open_store(file_reserved_hours=0, **LIGHT)
    put(store, properties=light("old"))
    while store.max_physical_offset < 5 * 16_384:
        put(store, properties=light("new"), body=bytes(200))
    store.dispatch()
    assert store.flush()
    assert store.clean(NOW_MS * 2, manually=True).log_files > 0
    low, high = store.min_offset("%LMQ%new", 0), store.max_offset("%LMQ%new", 0)
    assert 0 < low < high
    assert (store.min_offset("%LMQ%old", 0), store.max_offset("%LMQ%old", 0)) == (1, 1)
    assert store.get("%LMQ%new", 0, low, 1).message_count == 1
    assert store.shutdown()
    store = open_store(**LIGHT)
    result = put(store, properties=light("old", "new"))
    assert places(store, result.physical_offset) == f"1,{high}"


def test_a_store_with_light_queues_needs_the_settings(open_store: Opener, tmp_path: Path) -> None:
    store = open_store(**LIGHT)
    put(store, properties=light("a"))
    assert store.shutdown()
    before = tree(tmp_path / "store")
    with pytest.raises(StoreLayoutError, match="enableLmq=true and enableMultiDispatch=true"):
        open_store()
    assert tree(tmp_path / "store") == before
    for one in LIGHT:
        with pytest.raises(OptionError, match="go together"):
            config_of(tmp_path / "store", **{one: True})
