"""The pages under docs/formats against the golden stores and the code: what they say is true, or a test fails."""

import json
import re
from dataclasses import fields
from itertools import pairwise

import pytest

from rmq_formats.codecs import dledger, layout, record_layout
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.compression import Compression, decompress
from rmq_formats.codecs.consumequeue import PRE_BLANK, Unit, delay_levels_ms
from rmq_formats.codecs.consumequeue_ext import ExtUnit, decode_ext_address, encode_ext_address
from rmq_formats.codecs.fastjson import loads
from rmq_formats.codecs.hashing import index_key_hash, tags_code
from rmq_formats.codecs.index import IndexEntry, IndexHeader, entry_position, slot_position
from rmq_formats.codecs.layout import index_file_bytes
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.codecs.record_frame import DamageCode, body_crc
from rmq_formats.codecs.topics_json import StoredTopicConfig, topic_configs
from rmq_formats.scan import derived_images
from rmq_formats.storage.rocksdb import open_rocksdb
from rmq_formats.storage.segments import LocalStorage
from tests.docs.page_dumps import BLOCK, DECODERS, DOCS, DUMPS, PAGES, Dump, Golden, property_fields, says
from tests.support.oracles.consumequeue import dispatch_tags_code
from tests.support.oracles.index import build_index, find_key

FILE_TYPES = [
    "batchconsumequeue",
    "checkpoint",
    "commitlog",
    "compaction",
    "config",
    "consumequeue",
    "consumequeue_ext",
    "controller",
    "dledger",
    "index",
    "light_queues",
    "rocksdb",
    "store",
    "tiered",
    "timer",
]


def golden_bytes(golden: Golden, store: str, path: str) -> bytes:
    place = golden(store) / "store" / path
    if not place.is_dir():
        return place.read_bytes()
    with open_rocksdb(LocalStorage(), str(place), str(golden(store) / "store")) as database:
        return b"".join(key + value for family in database.families for key, value in database.pairs(family))


def dump_id(dump: Dump) -> str:
    return f"{dump.page}:{dump.store}/{dump.path}@{dump.position}"


@pytest.mark.parametrize("dump", DUMPS, ids=dump_id)
def test_a_dump_is_the_bytes_of_the_golden_store(dump: Dump, golden: Golden) -> None:
    data = golden_bytes(golden, dump.store, dump.path)
    assert dump.data == data[dump.position : dump.position + len(dump.data)]
    position = 0
    for line in dump.lines:
        assert line.position == position, f"the page says +{line.position}"
        position += len(line.data)


@pytest.mark.parametrize("dump", [dump for dump in DUMPS if DECODERS[dump.kind]], ids=dump_id)
def test_a_dump_shows_each_field_as_the_codec_decodes_it(dump: Dump, golden: Golden) -> None:
    decoder = DECODERS[dump.kind]
    assert decoder is not None
    decoded = list(decoder(golden_bytes(golden, dump.store, dump.path), dump.position, len(dump.data)))
    assert [line.name for line in dump.lines] == [name for name, _, _ in decoded]
    assert [line.data for line in dump.lines] == [data for _, _, data in decoded]
    wrong = [
        (name, line.value, value)
        for line, (name, value, _) in zip(dump.lines, decoded, strict=True)
        if not says(line.value or "", value)
    ]
    assert wrong == []


def test_each_file_type_has_a_page_with_all_its_parts() -> None:
    assert sorted(PAGES) == FILE_TYPES
    for page in FILE_TYPES:
        text = PAGES[page]
        assert "## Worked example" in text, page
        for part in ("Invariants\n1. ", "Edge cases\n- ", "```\n     ", "| offset | width |"):
            assert part in text or (page, part) == ("store", "| offset | width |"), (page, part)
        assert re.search("big-endian", text, re.IGNORECASE), page
    assert {dump.page for dump in DUMPS} == set(FILE_TYPES)


def rows_of(page: str, *header: str) -> list[list[str]]:
    """Cells of the table rows below each header line that begins with these columns."""
    found: list[list[str]] = []
    inside = False
    for line in PAGES[page].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        if not cells:
            inside = False
        elif tuple(cells[: len(header)]) == header:
            inside = True
        elif inside and not set(line) <= set("|- "):
            found.append(cells)
    return found


def constant(name: str) -> object:
    """The value of a constant that a page names."""
    module = next(each for each in (layout, record_layout, derived_images, dledger) if hasattr(each, name.strip("`")))
    return getattr(module, name.strip("`"))


@pytest.mark.parametrize("page", FILE_TYPES)
def test_constants_on_a_page_are_those_of_the_code(page: str) -> None:
    for name, value, *_ in rows_of(page, "constant", "value"):
        actual = constant(name)
        assert int(value, 0) in {actual, actual % (1 << 32)}, name


def test_bits_on_the_page_are_those_of_the_code() -> None:
    rows = rows_of("commitlog", "bits", "constant")
    assert len(rows) == 8
    for bits, name, _ in rows:
        assert getattr(layout, name.strip("`")) == int(bits, 16)


@pytest.mark.parametrize("page", [page for page in FILE_TYPES if page != "store"])
def test_fields_in_a_table_follow_each_other_without_a_gap(page: str) -> None:
    rows = rows_of(page, "offset", "width", "field")
    assert rows
    for (offset, width, *_), (following, *_) in pairwise(rows):
        if offset.isdigit() and width.isdigit() and following.isdigit() and following != "0":
            assert int(offset) + int(width) == int(following)
    for offset, _, _, name, *_ in (row for row in rows if len(row) > 4 and row[3].startswith("`")):
        assert constant(name) == int(offset)


def test_damage_codes_on_the_page_are_those_of_the_scan() -> None:
    rows = rows_of("commitlog", "code", "name", "the check that failed")
    assert rows == [[str(int(code)), f"`{code.name}`", code.text] for code in DamageCode]


def test_links_lead_to_pages_and_headings_that_are_there() -> None:
    root = DOCS.parent
    for path in (*root.glob("*.md"), *DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)]+)\)", path.read_text("utf-8")):
            if target.startswith("http"):
                continue
            name, _, anchor = target.partition("#")
            linked = (path.parent / name).resolve() if name else path
            assert linked.exists(), f"{path.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.+)$", linked.read_text("utf-8"), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in slugs, f"{path.name}: {target}"


def test_the_index_of_the_documents_lists_each_of_them() -> None:
    index = (DOCS / "README.md").read_text("utf-8")
    listed = {(DOCS / target).resolve() for target in re.findall(r"\]\(([^)#]+)\)", index)}
    documents = {path.resolve() for path in DOCS.rglob("*.md") if path != DOCS / "README.md"}
    assert documents - listed == set(), "list these in docs/README.md"


def mixed_record(golden: Golden, physical_offset: int) -> StoredMessage:
    start = physical_offset // (1 << 20) * (1 << 20)
    data = golden_bytes(golden, "mixed", f"commitlog/{start:020d}")
    return decode_record(data, physical_offset - start, physical_offset=physical_offset)


def test_the_compressed_bodies_in_the_table_inflate(golden: Golden) -> None:
    rows = rows_of("commitlog", "record at (mixed)", "sys_flag")
    assert {row[2] for row in rows} == {codec.name for codec in Compression}
    for at, sys_flag, codec, stored, plain, first in rows:
        message = mixed_record(golden, int(at))
        assert (f"0x{message.sys_flag:X}", str(len(message.body))) == (sys_flag, stored)
        assert Compression.of_sys_flag(message.sys_flag) is Compression[codec]
        assert len(decompress(message.body, message.sys_flag)) == int(plain)
        assert message.body.startswith(bytes.fromhex(first.strip("`")))
    grown = rows[0]
    assert int(grown[3]) - int(grown[4]) == 9, "Edge cases: compression can grow a body"


def test_what_the_commitlog_page_says_of_records(golden: Golden) -> None:
    assert body_crc(b"123456789") == 1274296614
    commit = mixed_record(golden, 2309568)
    assert commit.sys_flag & layout.FLAG_TRANSACTION_MASK == layout.FLAG_TRANSACTION_COMMIT
    assert commit.prepared_transaction_offset == 2308638
    half = mixed_record(golden, 2308638)
    assert (half.topic, half.sys_flag) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0)
    assert {"REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP"} <= commit.properties.keys()
    batched = mixed_record(golden, 1048576 + 424443)
    uniq_keys = [value for name, value, _ in property_fields(batched.properties_bytes) if name == "UNIQ_KEY"]
    assert len(set(uniq_keys)) == 2
    assert batched.uniq_key == uniq_keys[-1]
    with_crc = decode_record(golden_bytes(golden, "exotic_crc", "commitlog/00000000000000065536"), 43099)
    assert with_crc.properties[layout.PROPERTY_CRC][::-1] == "1578372291"
    behind_the_blank = mixed_record(golden, 1048576)
    assert behind_the_blank.size == 499


def test_what_the_consumequeue_page_says_of_units(golden: Golden, golden_settings: dict) -> None:
    assert f"`{PRE_BLANK[:8].hex()} {PRE_BLANK[8:12].hex()} {PRE_BLANK[12:].hex()}`" in PAGES["consumequeue"]
    assert tags_code("TagA") == 2598919
    assert tags_code("TAG_😀") == -1826110392
    assert Unit(0, 1, tags_code("TAG_😀")).encode().hex().endswith("ffffffff9327c448")
    assert tags_code("AaAa") == tags_code("BBBB")
    delayed = mixed_record(golden, 1509085)
    levels = delay_levels_ms(golden_settings["mixed"].delay_levels)
    assert (delayed.store_timestamp_ms, delayed.properties["DELAY"], levels[0]) == (1795230324045, "1", 1000)
    unit = Unit.decode(golden_bytes(golden, "mixed", "consumequeue/SCHEDULE_TOPIC_XXXX/0/00000000000000000000"))
    assert unit == Unit(1509085, delayed.size, dispatch_tags_code(delayed, levels))


def test_what_the_ext_page_says_of_addresses(golden: Golden) -> None:
    assert [encode_ext_address(offset) % (1 << 64) for offset in (0, 20)] == [0x8000000000000000, 0x8000000000000014]
    assert decode_ext_address(layout.EXT_MAX_ADDRESS) == layout.EXT_MAX_ADDRESS + (1 << 63)
    queue = golden_bytes(golden, "exotic_crc", "consumequeue/Exotic/0/00000000000000000000")
    ext = golden_bytes(golden, "exotic_crc", "consumequeue_ext/Exotic/0/00000000000000000000")
    log = golden_bytes(golden, "exotic_crc", "commitlog/00000000000000000000")
    for number in (0, 1):
        unit = Unit.decode(queue, number * layout.UNIT_BYTES)
        message = decode_record(log, unit.physical_offset)
        ext_unit = ExtUnit.decode(ext, decode_ext_address(unit.tags_code))
        assert ext_unit == ExtUnit(tags_code(message.tags), message.store_timestamp_ms)
    assert message.tags == "tag2"
    assert (65536 - layout.EXT_END_BYTES) // layout.EXT_UNIT_MIN_BYTES == 3276


def test_what_the_index_page_says_of_chains(golden: Golden, golden_settings: dict) -> None:
    slots, entries = golden_settings["mixed"].index_slots, golden_settings["mixed"].index_entries
    key_hash = index_key_hash("%DLQ%golden_cg", "o1")
    image = golden_bytes(golden, "mixed", "index/20261121030524016")
    assert slot_position(key_hash, slots) == 1464
    assert key_hash % slots == 2062005856 % slots == 356
    chain = [IndexEntry.decode(image, entry_position(number, slots)) for number in (407, 405, 121)]
    assert [entry.previous for entry in chain] == [405, 121, 0]
    assert find_key(image, slots, entries, key_hash) == [entry.physical_offset for entry in chain[:2]]
    assert index_file_bytes(layout.INDEX_SLOTS, layout.INDEX_ENTRIES) == 420_000_040


def test_the_empty_trailing_index_file_is_as_the_page_says() -> None:
    keyed, keyless = (7, 100, 5000), (None, 200, 6000)
    *_, last = build_index([keyed, keyless], slots=3, entries_per_file=2)
    assert IndexHeader.decode(last) == IndexHeader(5000, 5000, 100, 100, 0, 1)
    assert not any(last[layout.INDEX_HEADER_BYTES :])
    (only,) = build_index([keyless], slots=3, entries_per_file=2)
    assert IndexHeader.decode(only) == IndexHeader(0, 0, 0, 0, 0, 1)
    assert build_index([], slots=3, entries_per_file=2) == []


def test_one_message_is_followed_through_the_files(golden: Golden, golden_settings: dict) -> None:
    settings = golden_settings["mixed"]
    message = mixed_record(golden, 947281)
    assert (message.topic, message.keys) == ("Clicks", ["order-73"])
    file_start, position = 2000, 480
    assert message.queue_offset * layout.UNIT_BYTES == file_start + position
    unit = Unit.decode(golden_bytes(golden, "mixed", f"consumequeue/Clicks/1/{file_start:020d}"), position)
    assert unit == Unit(message.physical_offset, message.size, tags_code(message.tags))
    key_hash = index_key_hash(message.topic, "order-73")
    assert (key_hash, key_hash % settings.index_slots) == (586116915, 415)
    assert entry_position(1978, settings.index_slots) == 41600
    image = golden_bytes(golden, "mixed", "index/20261121030519542")
    assert find_key(image, settings.index_slots, settings.index_entries, key_hash) == [message.physical_offset]


def test_what_the_checkpoint_page_says_of_times(golden: Golden) -> None:
    exotic = Checkpoint.decode(golden_bytes(golden, "exotic", "checkpoint"))
    lines = (golden("exotic") / "expected" / "messages.jsonl").read_text("utf-8").splitlines()
    stored = {record["physical_offset"]: record["store_timestamp"] for record in map(json.loads, lines)}
    assert exotic.physic_msg_timestamp_ms == 1795230416709 == stored[65536]
    assert max(stored.values()) == 1795230416756 == exotic.logics_msg_timestamp_ms
    mixed = Checkpoint.decode(golden_bytes(golden, "mixed", "checkpoint"))
    *_, third, _ = sorted((golden("mixed") / "store" / "index").iterdir())
    assert mixed.index_msg_timestamp_ms == IndexHeader.decode(third.read_bytes()).end_timestamp_ms
    assert mixed.min_timestamp_ms == mixed.physic_msg_timestamp_ms - 3000


def test_the_config_page_reads_the_dialect_as_the_code_does() -> None:
    rows = rows_of("config", "fastjson writes", "we read")
    assert len(rows) == 2
    for written, read in rows:
        assert loads(written.strip("`")) == json.loads(read.strip("`"))


def test_the_config_page_shows_what_delay_offsets_say(golden: Golden) -> None:
    text = golden_bytes(golden, "mixed", "config/delayOffset.json").decode()
    (dump,) = (dump for dump in DUMPS if dump.kind == "json")
    assert dump.data.decode() == text
    flat = {
        f"`{table}.{name}`": str(value)
        for table, members in json.loads(json.dumps(loads(text))).items()
        for name, value in members.items()
    }
    assert dict(rows_of("config", "key", "value")) == flat
    for level, count in ((1, 4), (2, 3), (3, 11)):
        data = golden_bytes(golden, "mixed", f"consumequeue/SCHEDULE_TOPIC_XXXX/{level - 1}/00000000000000000000")
        units = [Unit.decode(data, at) for at in range(0, len(data), layout.UNIT_BYTES)]
        assert sum(unit.is_written for unit in units) == count == int(flat[f"`offsetTable.{level}`"])


def test_the_config_page_names_the_defaults_of_a_topic() -> None:
    rows = rows_of("config", "member of `topicConfigTable.NAME`", "default")
    (topic,) = topic_configs('{"topicConfigTable":{"T":{}}}').values()
    assert topic == StoredTopicConfig("T")
    assert len(rows) == len(fields(StoredTopicConfig))
    for member, default, *_ in rows[1:]:
        name = re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", member.strip("`"))
        actual = getattr(topic, name)
        assert default.strip("`") == (actual if isinstance(actual, str) else json.dumps(actual))


def test_the_tree_on_the_store_page_is_that_of_the_golden_store(golden: Golden) -> None:
    ((info, text),) = [(info, text) for language, info, text in BLOCK.findall(PAGES["store"]) if language == "tree"]
    root = golden(info) / "store"
    shown = {path: int(size) for path, size in map(str.split, text.splitlines())}
    actual = {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}
    hidden = actual.keys() - shown.keys()
    assert {path: actual.get(path) for path in shown} == shown
    assert all(path.startswith("consumequeue/") for path in hidden), hidden
    assert not any((root / "commitlog" / "00000000000002097152").read_bytes()), "made ahead, all zeros"
