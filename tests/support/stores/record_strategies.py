"""Hypothesis strategies for messages and segments."""

from hypothesis import strategies as st

from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import MAGIC_BLANK, PROPERTY_CRC
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore, encode_record

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
hosts = st.builds(Host, st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)), int32)
texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)
topics = st.one_of(
    st.text(st.sampled_from("%|abcXYZ019_-"), min_size=1, max_size=127),
    st.text(st.sampled_from("%|abcXYZ019_-"), min_size=128, max_size=255),
    texts,
)
# Hypothesis knows our constants: a CRC property would not be kept, see the tests of its own.
names = texts.filter(lambda name: not name.startswith(PROPERTY_CRC))
properties = st.dictionaries(names, texts, max_size=6)


def messages_of(queue_ids: st.SearchStrategy[int], hosts: st.SearchStrategy[Host]) -> st.SearchStrategy[MessageToStore]:
    """Messages of any kind, of these queues and hosts."""
    return st.builds(
        MessageToStore,
        topic=topics,
        queue_id=queue_ids,
        body=st.binary(max_size=300),
        properties_bytes=properties.map(encode_properties),
        flag=int32,
        sys_flag=st.integers(0, 0xFFF),
        born_timestamp_ms=int64,
        born_host=hosts,
        store_host=hosts,
        reconsume_times=int32,
        prepared_transaction_offset=int64,
    )


messages = messages_of(int32, hosts)


def plain_message(topic: str = "TopicTest", body: bytes = b"Hello RocketMQ", **more: object) -> MessageToStore:
    """A message of which a test says only what it is about."""
    fields: dict[str, object] = {
        "queue_id": 1,
        "born_timestamp_ms": 1_700_000_000_000,
        "born_host": Host(bytes([10, 0, 0, 1]), 40000),
        "store_host": Host(bytes([10, 0, 0, 2]), 10911),
    }
    return MessageToStore(topic=topic, body=body, **{**fields, **more})  # type: ignore[arg-type]


def encode_segment(
    stored: list[MessageToStore], file_offset: int, spare_bytes: int, *, blank: bool, crc: bool = False
) -> tuple[bytes, list[tuple[int, int]]]:
    """A segment file of some records, then a BLANK or zeros; and each record's position and size."""
    image = bytearray()
    places = []
    for number, message in enumerate(stored):
        record = encode_record(
            message,
            queue_offset=number,
            physical_offset=file_offset + len(image),
            store_timestamp_ms=1_700_000_000_123 + number,
            append_crc_property=crc,
        )
        places.append((len(image), len(record)))
        image += record
    if blank:
        image += (spare_bytes + 8).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big", signed=True)
    return bytes(image) + bytes(spare_bytes), places
