"""The table of a record's head against the numbers of the original's ``MessageDecoder``."""

from rmq_formats.codecs.layout import FLAG_BORN_HOST_V6, FLAG_STORE_HOST_V6, MAGIC_V1
from rmq_formats.codecs.record_layout import (
    BATCH_HEAD,
    HEAD,
    HEAD_FIELDS,
    HEADS,
    HEADS_BEHIND_MAGIC,
    head_struct,
    host_kind,
    store_timestamp_at,
)

V4_OFFSETS = {
    "size": 0, "magic": 4, "body_crc": 8, "queue_id": 12, "flag": 16, "queue_offset": 20, "physical_offset": 28,
    "sys_flag": 36, "born_timestamp": 40, "born_host": 48, "store_timestamp": 56, "store_host": 64,
    "reconsume_times": 72, "prepared_transaction_offset": 76, "body_bytes": 84,
}  # fmt: skip


def test_offsets_with_ipv4_hosts() -> None:
    assert {name: field.at for name, field in HEAD.items()} == V4_OFFSETS


def test_an_ipv6_host_moves_what_is_behind_it() -> None:
    both = HEAD_FIELDS[host_kind(FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6)]
    assert (both["born_host"].at, both["born_host"].width) == (48, 20)
    assert (both["store_timestamp"].at, both["reconsume_times"].at) == (68, 96)
    assert HEAD_FIELDS[host_kind(FLAG_STORE_HOST_V6)]["reconsume_times"].at == 84
    assert (store_timestamp_at(0), store_timestamp_at(FLAG_BORN_HOST_V6)) == (56, 68)


def test_structs_by_kind_of_hosts() -> None:
    assert [head.size for head in HEADS] == [88, 100, 100, 112]
    assert [head.size for head in HEADS_BEHIND_MAGIC] == [80, 92, 92, 104]
    assert BATCH_HEAD.size == 20


def test_head_struct_passes_over_what_it_is_not_asked_for() -> None:
    values = (91, MAGIC_V1, 1, 2, 3, 4, 5, 6, 7, b"born-hos", 8, b"store-ho", 9, 10, 11)
    record = HEADS[0].pack(*values)
    picked = head_struct("magic", "queue_offset", "store_host", "body_bytes")
    assert picked.unpack(record) == (MAGIC_V1, 4, b"store-ho", 11)
    assert head_struct("size", "physical_offset").unpack_from(record) == (91, 5)
