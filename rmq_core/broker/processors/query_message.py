"""Message lookup by key and by physical offset (request codes 12, 33).

Source: ``QueryMessageProcessor``.
"""

from itertools import accumulate
from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.tables.waiters import REAL_TOPIC
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.frames import MAX_FRAME_BYTES
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import QueryMessage, ViewMessage
from rmq_core.store.results import KeyKind
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.codecs.topics import TIMER_TOPIC

_WAITING_TOPICS: Final = (names.SCHEDULE_TOPIC, TIMER_TOPIC, names.HALF_TOPIC, names.CHECK_MAX_TIME_TOPIC)
_UNIQUE_KEY: Final = "_UNIQUE_KEY_QUERY"
_KINDS: Final = {"U": KeyKind.UNIQUE, "T": KeyKind.TAGS}  # of clients from 5.4 on; others send none
_MOST_UNIQUE: Final = 32
_MOST_BYTES: Final = MAX_FRAME_BYTES - (1 << 20)  # the newest of them that fit into a frame with its header


class Lookups:
    """Handles QUERY_MESSAGE and VIEW_MESSAGE_BY_ID: messages by key, and by place."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code."""
        return {
            RequestCode.QUERY_MESSAGE: self.query,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view,
        }

    def query(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """QUERY_MESSAGE (12): a topic's messages with a key, with a UNIQ_KEY, or with TAGS, from the Index."""
        asked = read_fields(request, QueryMessage)
        unique = request.ext_fields.get(_UNIQUE_KEY, "").lower() == "true"
        kind = KeyKind.UNIQUE if unique else _KINDS.get(asked.index_type or "", KeyKind.ANY)
        most = _MOST_UNIQUE if kind is KeyKind.UNIQUE else asked.max_num
        found = self._state.store.query(
            asked.topic, asked.key, most, asked.begin_timestamp, asked.end_timestamp, kind=kind
        )
        fields = {
            "indexLastUpdateTimestamp": str(found.last_update_timestamp_ms),
            "indexLastUpdatePhyoffset": str(found.last_update_physical_offset),
        }
        if not found.records:
            remark = "can not find message, maybe time range not correct"
            return request.response(int(ResponseCode.QUERY_NOT_FOUND), remark, fields)
        return request.response(ext_fields=fields, body=b"".join(_fitting(found.records)))

    def view(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """VIEW_MESSAGE_BY_ID (33): the record at a physical offset; of the topic that is asked for, if one is."""
        asked = read_fields(request, ViewMessage)
        record = self._state.store.record(asked.offset)
        if record is None:
            return request.response(
                int(ResponseCode.SYSTEM_ERROR), f"can not find message by the offset, {asked.offset}"
            )
        if (asked.topic or "").strip() and not _is_of(self._state.store.message(asked.offset), asked.topic or ""):
            return request.response(int(ResponseCode.NO_PERMISSION), "The topic does not match the message")
        return request.response(body=record)


def _is_of(message: StoredMessage | None, topic: str) -> bool:
    """Whether a message is one of a topic, or waits for it. Source: ``#matchesRequestTopic`` of 5.5.1."""
    if message is not None and message.topic in _WAITING_TOPICS:
        return message.properties.get(REAL_TOPIC) == topic
    return message is not None and message.topic == topic


def _fitting(records: list[memoryview]) -> list[memoryview]:
    """The first records, which are the newest, as far as they fit into one answer, oldest first.

    Source: ``DefaultMessageStore#queryMessage``, which sorts what it has found by its place.
    """
    sizes = accumulate(map(len, records))
    return [record for record, end in zip(records, sizes, strict=True) if end <= _MOST_BYTES][::-1]
