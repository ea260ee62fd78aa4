"""Bodies of the name server: registrations of brokers, topic routes, clusters, lists of names, key-value tables.

The body of a registration (code 103) is JSON, or one zlib stream of its parts::

    int size, DataVersion as JSON
    int count, then as often: int size, text "topic readQueues writeQueues perm filterType {attributes}"
    int size, filter servers as a JSON array
    int count, then as often: int size, TopicQueueMapping as JSON     (from version 5.0.0 on)

Source: ``RegisterBrokerBody``.
"""

# ruff: noqa: RUF012 # an empty list or dictionary as a default is made anew for each struct

import zlib
from contextlib import suppress
from struct import Struct
from typing import Final

import msgspec
from msgspec import UNSET

from rmq_core.remoting.bodies.codec import BodyStruct, Maybe, decode_body, encode_body
from rmq_core.remoting.bodies.configs import DataVersion, TopicConfig, TopicConfigAndMapping, TopicQueueMapping
from rmq_core.remoting.codes import Version
from rmq_formats.errors import DecodeError, LengthError, TruncatedError

MAX_INFLATED_BYTES: Final = 16 << 20  # a frame's limit for one that is not compressed; it could inflate to 16 GiB
MAX_TOPICS: Final = 1 << 20  # more than that many do not fit into a frame
_OBJECTS_OF_A_TOPIC: Final = 2  # in JSON: the topic and its attributes
_OTHER_OBJECTS: Final = 64
_INT = Struct(">i")
_ZLIB: Final = b"\x78"  # a stream's first byte; JSON cannot begin so


class BrokerMemberGroup(BodyStruct, frozen=True, kw_only=True):
    """The addresses of a master and its slaves, by broker id."""

    broker_addrs: dict[int, str] = {}  # without spaces, as the Go client splits the JSON itself
    broker_name: str = ""
    cluster: str = ""


class BrokerData(BrokerMemberGroup, frozen=True, kw_only=True):
    """A master and its slaves in a route."""

    enable_acting_master: bool = False
    zone_name: Maybe[str] = UNSET


class QueueData(BodyStruct, frozen=True, kw_only=True):
    """A topic's queues on one broker."""

    broker_name: str = ""
    perm: int = 0
    read_queue_nums: int = 0
    topic_sys_flag: int = 0
    write_queue_nums: int = 0


class TopicRouteData(BodyStruct, frozen=True, kw_only=True):
    """The route of a topic: its brokers and queues (code 105)."""

    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: Maybe[str] = UNSET
    queue_datas: list[QueueData] = []
    topic_queue_mapping_by_broker: Maybe[dict[str, TopicQueueMapping]] = UNSET


class ClusterInfo(BodyStruct, frozen=True, kw_only=True):
    """All brokers by name, and broker names by cluster (code 106)."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class BrokerMembers(BodyStruct, frozen=True, kw_only=True):
    """A master and its slaves: the response to GET_BROKER_MEMBER_GROUP (901)."""

    broker_member_group: BrokerMemberGroup = BrokerMemberGroup()


class TopicList(BodyStruct, frozen=True, kw_only=True):
    """Names of topics."""

    broker_addr: Maybe[str] = UNSET
    topic_list: list[str] = []


class KVTable(BodyStruct, frozen=True, kw_only=True):
    """Names and values; all values are strings, numbers too."""

    table: dict[str, str] = {}


class RegisterBrokerBody(BodyStruct, frozen=True, kw_only=True):
    """The topics and filter servers that a broker registers."""

    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: TopicConfigAndMapping = TopicConfigAndMapping()


class _BodyReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def integer(self) -> int:
        return int(_INT.unpack(self._read(_INT.size))[0])

    def part(self) -> bytes:
        return self._read(self.integer())

    def _read(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise TruncatedError("a registration that ends within a part", physical_offset=self._at, actual=size)
        part, self._at = self._data[self._at : end], end
        return part


def check_topic_count(body: bytes | memoryview, most_topics: int) -> None:
    """Refuse a JSON body of too many topics before its decoding. Raises LengthError."""
    objects = bytes(body).count(b"{")
    if objects > _OBJECTS_OF_A_TOPIC * most_topics + _OTHER_OBJECTS:
        raise LengthError("a registration of too many topics", expected=most_topics, actual=objects)


def decode_registration(
    body: bytes | memoryview, compressed: bool, version: int, most_topics: int = MAX_TOPICS
) -> RegisterBrokerBody:
    """Decode a registration.

    A body that begins like a zlib stream is inflated even if ``compressed`` is false: brokers of 5.3.3 say so of their
    compressed bodies (``BrokerOuterAPI#registerBrokerAll``), and their own name server fails at such a body.

    A broker without topics sends no body. Compressed bodies have queue mappings from version 5.0.0 on.
    Raises FormatError.
    """
    if not body:
        return RegisterBrokerBody()
    if not compressed and body[:1] != _ZLIB:
        check_topic_count(body, most_topics)
        return decode_body(body, RegisterBrokerBody, is_request=True)
    reader = _BodyReader(_inflate(body))
    data_version = decode_body(reader.part(), DataVersion)
    topics = [_parse_topic(reader.part()) for _ in range(_count(reader, most_topics))]
    filter_servers = decode_body(reader.part(), list[str])
    mappings: dict[str, TopicQueueMapping] = {}
    if version >= Version.V5_0_0:
        for _ in range(_count(reader, most_topics)):
            mapping = decode_body(reader.part(), TopicQueueMapping)
            mappings[mapping.topic or ""] = mapping
    return RegisterBrokerBody(
        filter_server_list=filter_servers,
        topic_config_serialize_wrapper=TopicConfigAndMapping(
            data_version=data_version,
            topic_config_table={topic.topic_name: topic for topic in topics},
            topic_queue_mapping_info_map=mappings,
        ),
    )


def _count(reader: _BodyReader, most: int) -> int:
    count = reader.integer()
    if count > most:
        raise LengthError("a registration of too many topics", expected=most, actual=count)
    return count


def _inflate(body: bytes | memoryview) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise DecodeError(f"a registration that does not inflate: {error}") from error
    if inflater.unconsumed_tail:
        raise LengthError("a registration that inflates to too much", expected=MAX_INFLATED_BYTES)
    return data


def _parse_topic(text: bytes) -> TopicConfig:
    """Parse a topic's line. Attributes with a space in them are cut off there and lost, in Java too."""
    try:
        words = text.decode().split(" ")
        name, read_queues, write_queues, perm, filter_type = words[:5]
        numbers = int(read_queues), int(write_queues), int(perm)
    except ValueError as error:
        raise DecodeError("a registration with a bad topic", actual=repr(text[:64])) from error
    attributes: dict[str, str] = {}
    if len(words) > 5:
        with suppress(DecodeError):
            attributes = decode_body(words[5].encode(), dict[str, str])
    return TopicConfig(
        topic_name=name,
        read_queue_nums=numbers[0],
        write_queue_nums=numbers[1],
        perm=numbers[2],
        topic_filter_type=filter_type,
        attributes=attributes,
    )


def encode_registration(body: RegisterBrokerBody, compressed: bool = False) -> bytes:
    """Encode a registration."""
    if not compressed:
        return encode_body(body)
    topics = body.topic_config_serialize_wrapper
    pieces = [_with_length(encode_body(topics.data_version)), _INT.pack(len(topics.topic_config_table))]
    for topic in topics.topic_config_table.values():
        attributes = msgspec.json.encode(topic.attributes).decode()
        words = topic.topic_name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_filter_type
        pieces.append(_with_length(" ".join([*map(str, words), attributes]).encode()))
    pieces.append(_with_length(msgspec.json.encode(body.filter_server_list)))
    pieces.append(_INT.pack(len(topics.topic_queue_mapping_info_map)))
    pieces += [_with_length(encode_body(mapping)) for mapping in topics.topic_queue_mapping_info_map.values()]
    return zlib.compress(b"".join(pieces), zlib.Z_BEST_COMPRESSION)


def _with_length(part: bytes) -> bytes:
    return _INT.pack(len(part)) + part
